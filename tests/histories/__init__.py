"""Random histories by the thousand, as a command: `python -m tests.histories KIND FIRST LAST`."""
