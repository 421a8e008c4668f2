"""VENUS as a data source of Spark jobs: `format("venus")` for full data and for streams of changes.

`pyspark_venus.py` beside the package lets Spark find the data source without registration. The code runs in Python
workers, beside the driver and in executors, and needs only the broker's address.
"""

from __future__ import annotations

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from venus.errors import ConfigError
from venus.spark.datasource_options import STARTING_MISSING, DataSourceOptions, find_table, raise_in_spark, spark_schema
from venus.spark.datasource_read import FullDataReader, own_fields
from venus.spark.streaming import STREAM_FIELDS


class VenusSource(DataSource):
    """Spark data source for one table of one business (topic) of a broker."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format`."""
        return "venus"

    def _read_options(self) -> DataSourceOptions:
        """Return the checked options of the job."""
        with raise_in_spark():
            return DataSourceOptions.of(self.options)

    def schema(self) -> StructType:
        """Return the table's columns; Spark does not pass the purpose, so the option `starting` marks a stream."""
        options = self._read_options()
        with raise_in_spark():
            table = find_table(options).newest
            if options.starting:
                return spark_schema(table, options, STREAM_FIELDS, len(STREAM_FIELDS))
            return spark_schema(table, options, own_fields(table), 0)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of the full data, for `spark.read`."""
        options = self._read_options()
        if options.starting:
            raise ConfigError("option starting is for spark.readStream")
        return FullDataReader(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return the reader of changes, for `spark.readStream`."""
        from venus.spark.streaming import ChangesReader

        options = self._read_options()
        if not options.starting:
            raise ConfigError(f"option starting is missing: {STARTING_MISSING}")
        return ChangesReader(options, schema)
