-- Queries and statements of a target's cut-over. {own} is the schema of VENUS's own tables.

-- installed --
SELECT to_regclass('{own}.cutover') IS NOT NULL

-- mark --
SELECT state, sequence, "offset", certificate, marked_at, done_at FROM {own}.cutover WHERE group_name = %(group)s

-- put_mark --
INSERT INTO {own}.cutover (group_name, state, sequence, "offset", certificate)
VALUES (%(group)s, 'CUT', %(sequence)s, %(offset)s, %(certificate)s)

-- finish_mark --
UPDATE {own}.cutover SET state = 'DONE', certificate = %(certificate)s, done_at = coalesce(done_at, now())
WHERE group_name = %(group)s

-- remove_mark --
DELETE FROM {own}.cutover WHERE group_name = %(group)s

-- begin_reading --
BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY

-- copy_rows --
COPY (SELECT {columns} FROM {table}) TO STDOUT

-- create_converted --
-- A table with the same column types and without constraints: the target writes values as it would store them.
CREATE TEMPORARY TABLE {converted} AS SELECT {columns} FROM {table} WITH NO DATA

-- empty_converted --
TRUNCATE {converted}

-- drop_converted --
DROP TABLE {converted}

-- foreign_keys --
-- The current foreign keys of these tables.
SELECT f.conname, cn.nspname, c.relname, pn.nspname, p.relname,
       array(SELECT a.attname::text FROM unnest(f.conkey) WITH ORDINALITY k (attnum, n)
               JOIN pg_attribute a ON a.attrelid = f.conrelid AND a.attnum = k.attnum ORDER BY k.n),
       array(SELECT a.attname::text FROM unnest(f.confkey) WITH ORDINALITY k (attnum, n)
               JOIN pg_attribute a ON a.attrelid = f.confrelid AND a.attnum = k.attnum ORDER BY k.n)
  FROM pg_constraint f
  JOIN pg_class c ON c.oid = f.conrelid
  JOIN pg_namespace cn ON cn.oid = c.relnamespace
  JOIN pg_class p ON p.oid = f.confrelid
  JOIN pg_namespace pn ON pn.oid = p.relnamespace
 WHERE f.contype = 'f' AND f.conparentid = 0 AND f.conrelid = ANY (%(tables)s::regclass[])
 ORDER BY cn.nspname, c.relname, f.conname

-- orphans --
-- Rows that refer to no parent. A VALID constraint proves nothing, because VENUS applies with foreign keys disabled.
SELECT count(*), min(ROW({child_columns})::text)
  FROM {child} c
 WHERE {all_set} AND NOT EXISTS (SELECT FROM {parent} p WHERE {match})

-- unvalidated_checks --
SELECT c.conrelid::regclass::text, c.conname FROM pg_constraint c
 WHERE c.contype = 'c' AND NOT c.convalidated AND c.conrelid = ANY (%(tables)s::regclass[]) ORDER BY 1, 2

-- counter --
-- The sequence that numbers a column, and its step.
SELECT s.seqrelid::regclass::text, s.seqincrement FROM pg_sequence s
 WHERE s.seqrelid = pg_get_serial_sequence(%(table)s, %(column)s)::regclass

-- extremes --
SELECT min({column}), max({column}) FROM {table}

-- set_step --
ALTER SEQUENCE {sequence} INCREMENT BY {step}

-- set_counter --
SELECT setval(%(sequence)s::regclass, %(value)s, false)

-- create_sequence --
CREATE SEQUENCE IF NOT EXISTS {sequence} INCREMENT BY {step} MINVALUE {low} MAXVALUE {high} {cycle}

-- set_generated --
ALTER TABLE {table} ALTER COLUMN {column} SET GENERATED {how}

-- relation --
SELECT relkind::text FROM pg_class WHERE oid = to_regclass(%(name)s)
