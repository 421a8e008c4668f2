"""`python -m venus.cli`: the same command without the installed script."""

from venus.cli import main

if __name__ == "__main__":  # a loading process imports its parent's main module again
    main()
