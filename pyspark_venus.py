"""Found by Spark itself: a top-level module `pyspark_*` with a `DefaultSource` needs no registration."""

from venus.spark.datasource import VenusSource as DefaultSource

__all__ = ["DefaultSource"]
