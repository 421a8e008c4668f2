"""SQLite as a source. Reading order: source, capture/, rows; installation/, dictionary/.

Decisions and their reasons:

- One writer at a time gives log numbers in commit order, so a watermark per table (`log_through`) is the exact delete.
  Consumed log rows are purged in bounded pieces. The newest consumed row stays, so that row numbers are never reused
  even without AUTOINCREMENT, which would leave `sqlite_sequence` behind in the application's file.
- The application chooses the journal mode. Capture reads in every journal mode. Without WAL, commits wait while a cut
  is read, and `check` reports a missing WAL. VENUS never changes the journal mode.
- REPLACE removes rows without firing their delete triggers: a BEFORE trigger for each unique index (and for the rowid)
  logs the keys of the rows that REPLACE removes, whatever the connection's `recursive_triggers` says.
- Any column can hold any value. VENUS never alters a value that the column's declared type cannot hold exactly.
  `check` and `install` refuse values that do not fit. If an unfit value appears later, its table becomes PAUSED and
  the reason names the row; the other tables continue. The next write to the table makes capture retry it.
- VENUS never blocks the application's DDL. A rebuilt table has lost its triggers: it becomes RESYNC, and
  `install-triggers` repairs it.
"""

from venus.adapters.dialects.contract import Option

#: Namespace of each table. A PostgreSQL target puts the tables into public, unless its option schema names this.
NAMESPACE = "main"
OPTIONS = frozenset({Option.COLUMNS, Option.LOG_ROWS_MAX})
