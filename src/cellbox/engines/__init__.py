"""Engines isolate guests: the contract (`base`), how to find one by name (`registry`), and those Cellbox brings."""
