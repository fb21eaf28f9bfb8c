"""The `cellbox` command. Start with `main.py`: one module per group of commands, each imported only when it is called.

Commands format and call the client, nothing more; `serve`, `doctor` and the first key reach the server side.
`terminal.py` stands between what a sandbox says and the user's terminal.
"""
