"""``python -m rankgrad``: the command line."""

from rankgrad.cli import main

main()
