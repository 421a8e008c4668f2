"""A folder of Parquet files (a lake) as a target: the current rows of each table, and beside them every change."""
