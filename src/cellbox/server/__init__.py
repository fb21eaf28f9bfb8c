"""HTTP, and nothing but: what `control` can do, served as the operations of `cellbox.protocol.operations`.

Reading order: `serve.py` (a daemon from start to end), `api.py` (the life of one request), `routing.py` (handlers bound
to operations), then `routes/`, one module per resource.
"""
