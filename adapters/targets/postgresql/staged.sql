-- Staging tables of the tasks of `sync --engine spark`; one transaction merges them into the target's tables.

-- create_stage --
-- Visible to other sessions, unlike the staging tables of one connection; need not survive a crash.
CREATE UNLOGGED TABLE {stage} AS SELECT {columns} FROM {table} WITH NO DATA

-- drop_stage --
DROP TABLE IF EXISTS {stage}

-- stages --
SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %(own)s AND c.relkind = 'r' AND starts_with(c.relname, %(prefix)s)
