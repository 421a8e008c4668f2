"""PostgreSQL as a target. Reading order: target, load/full_sync, apply/apply_session, apply/transaction, rows/.

`database.py` has VENUS's own tables at the target. `schema/` is DDL: it creates tables and makes them follow the
source's versions. `load/` is the full load, `apply/` the increments (also those that tasks elsewhere stage for the
scale-out apply), `rows/` how rows get into a table.
"""
