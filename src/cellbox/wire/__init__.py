"""What host and guest say to each other: frames (`frames.py`), flow control (`flow.py`) and messages (`messages.py`).

Standard library only, since the guest runs in images that have nothing else.
"""
