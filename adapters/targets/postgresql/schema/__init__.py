"""DDL of a PostgreSQL target: new and existing tables, schema changes of the source, the application's own types."""
