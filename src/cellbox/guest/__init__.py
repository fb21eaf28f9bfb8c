"""The program of ours that runs inside the sandbox as PID 1, and the kernels it starts.

Standard library and `cellbox.wire` only; IPython is imported in the kernel process alone. Reading order: `agent.py`
(start and dispatch), `channel.py` (streams), then `system.py`, `commands.py`, `files.py`, `contexts.py`, `kernel/`.
"""
