"""PostgreSQL as a target. Reading order: target, database, rows/, schema/; ../relational has load and apply loop.

`database.py` is the interface between the shared code of ../relational and PostgreSQL. `schema/` is DDL: it creates
tables and makes them follow the source's versions. `rows/` writes rows into a table. `apply/` is the scale-out apply:
tasks in other processes stage increments, and one transaction merges them. `cutover/` has the steps of a cut-over.
"""
