"""The data pipeline on Spark."""

if __name__ != "venus.spark":  # the repository root is on sys.path: a second copy of every class would be made
    raise ImportError("import venus.spark, not spark")
