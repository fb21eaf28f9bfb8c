"""What host and guest say to each other: frames (`frames.py`, `pipes.py`), credit (`flow.py`), `messages.py`.

Standard library only, since the guest runs in images that have nothing else.
"""
