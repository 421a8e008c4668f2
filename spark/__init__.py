"""The data pipeline on Spark."""

if __name__ != "venus.spark":  # with the repository root on sys.path, a second copy of every class would be created
    raise ImportError("import venus.spark, not spark")
