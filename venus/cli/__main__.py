"""`python -m venus.cli`: the same command without the installed script."""

from venus.cli import main

if __name__ == "__main__":  # child processes of a load import this module again
    main()
