"""What must outlive the daemon: API keys, the rows of sandboxes, who this installation is.

`base.py` is the contract, `sqlite.py` keeps it in one file. Nothing on the path of a command or a cell comes here.
"""
