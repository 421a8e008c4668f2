"""The application for spark-submit: `job.py migrate --target main`, a command of VENUS with work for executors."""

import sys
from importlib import import_module

if __name__ == "__main__":
    # Spark puts this file's folder first, where modules have names that others have too.
    sys.path.pop(0)
    sys.exit(import_module("venus.cli.app").run(sys.argv[1:]))
