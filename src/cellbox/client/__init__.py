"""The SDK: an HTTP client of the daemon, asynchronous by hand (`_async`) and blocking by generation (`_sync`).

Everything that does no I/O is written once beside the two: `_config` finds the daemon, `_codec` and `_events` turn
values into bytes and back, `_errors` turns answers into exceptions, `_results` is what callers get to see.
The public names are those of the package `cellbox`.
"""
