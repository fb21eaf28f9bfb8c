"""Decides and owns: which sandboxes there are, how they live and die, what is asked of their guests. Knows no HTTP.

Reading order: `control.py` (what a daemon is made of), `sandboxes.py` (create, kill, reap), `sandbox.py` (one of them),
`guest.py` and `link.py` (how it is talked to), then `commands.py`, `contexts.py`, `files.py`.
"""
