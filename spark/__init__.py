"""VENUS on Spark: loads and applies on executors, and the data source `venus` for Spark jobs."""

if __name__ != "venus.spark":  # with the repository root on sys.path, a second copy of every class would be created
    raise ImportError("import venus.spark, not spark")
