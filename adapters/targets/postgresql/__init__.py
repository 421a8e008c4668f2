"""PostgreSQL as a target. Reading order: target, load/full_sync, apply/loop, apply/writer, rows/merging, rowsql.

`database.py` has VENUS's own tables there; `schema/` is DDL, `evolve.py` follows a table from version to version,
`load/` is the full load, `apply/` the increments, `rows/` how rows get into a table, `staged/` the scale-out apply.
"""
