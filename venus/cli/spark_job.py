"""Application for spark-submit: `spark_job.py migrate --target main` runs a command whose work goes to executors."""

import sys

if __name__ == "__main__":
    # Spark puts the folder of this file first, and its modules have names that the standard library has too.
    sys.path.pop(0)
    from venus.cli.app import run

    sys.exit(run(sys.argv[1:]))
