"""`python -m cellbox.cli`."""

from cellbox.cli.main import main

if __name__ == "__main__":
    main()
