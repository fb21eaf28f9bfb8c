"""The asynchronous flavour, written by hand; `_sync` is generated from it."""
