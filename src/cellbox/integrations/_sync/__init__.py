"""The asynchronous flavour, written by hand; `_sync` is generated from it."""

# Generated from _async/__init__.py by tools/unasync.py: edit that, and run it again.
