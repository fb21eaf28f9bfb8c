"""Entry point of `guest.pyz`."""

from cellbox.guest.agent import main

main()
