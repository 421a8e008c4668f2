"""SQLite as a target. Reading order: target, database, session, file; rowsql, types; tables, ddl."""
