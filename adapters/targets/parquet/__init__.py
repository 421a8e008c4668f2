"""A folder of Parquet files as a target: states, and every change beside them."""
