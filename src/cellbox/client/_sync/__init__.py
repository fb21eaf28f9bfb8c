"""One flavour of the client: its connection, its handles and what they offer. `_sync` is generated from `_sync`."""

# Generated from _async/__init__.py by tools/unasync.py: edit that, and run it again.
