"""What client and server say to each other over HTTP: values, and every operation declared once.

Read `operations.py` first; the values lie in one module per resource.
"""
