"""SQLite as a source (capture.md 7). Reading order: source, cut, reading, values; install, triggers, dictionary.

What was decided here, and why:

- One writer at a time gives log numbers in commit order, so a watermark per table (`log_through`) is the exact delete.
  Consumed rows are purged in bounded pieces; the newest one stays, so that plain row numbers are never given twice and
  no AUTOINCREMENT has to leave `sqlite_sequence` behind in the application's file.
- The journal mode is the application's. Reading works in all of them; without WAL its commits wait while a cut is
  read, which `check` says. VENUS sets nothing.
- REPLACE removes rows without firing their delete triggers: a BEFORE trigger for each unique index (and for the rowid)
  notes the keys of the rows that would go, whatever the connection's `recursive_triggers` says.
- Any column can hold anything. A value that its column's declared type cannot hold exactly is never altered: `check`
  and `install` refuse it, and if it comes later, its table is PAUSED with the row named while the others go on; it is
  tried again by itself when the table has been written to.
- DDL of the application is never hindered. A table that was rebuilt has lost its triggers: it becomes RESYNC, and
  `install-triggers` mends it.
"""

from venus.adapters.dialects.contract import Option

OPTIONS = frozenset({Option.COLUMNS})
