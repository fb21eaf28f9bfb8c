"""One flavour of the client: its connection, its handles and what they offer. `_sync` is generated from `_async`."""
