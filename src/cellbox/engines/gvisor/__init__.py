"""The gVisor engine. `engine.py` is the door; everything else is its own."""
