"""An agent to talk to: a model with the code tools, and conversations that are kept.

Nothing here knows a terminal: `Agent` tells an `Observer` what happens, and `cellbox chat` has one. Read `agent.py`
first.
"""
