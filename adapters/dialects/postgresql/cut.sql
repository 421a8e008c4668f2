-- How a cut reads: everything in one REPEATABLE READ transaction, which also deletes what it has read.

-- begin --
BEGIN ISOLATION LEVEL REPEATABLE READ

-- dirty --
-- Prepared once; the marks of the log tables that have something, and one row (number -1) for the clock and whose
-- epoch it is. It costs the same for one table and for thousands.
PREPARE venus_dirty AS
SELECT -1, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, (SELECT epoch FROM venus.checkpoint WHERE id = 1)
UNION ALL
SELECT table_id, count(*), 0 FROM venus.dirty GROUP BY table_id

-- looker --
-- Looks for marks every so often, at most `looks` times: in one round trip, where a poll for each look would cost both
-- ends some forty times as much. Marks of tables that have to wait stay where they are. The marks are only read if a
-- transaction of anybody has ended since the last look, which shows in the snapshot and costs a third; and a query of
-- its own for the pause would cost as much as the pause. A function of the session keeps its plans; a DO block is
-- planned each time it runs.
CREATE OR REPLACE FUNCTION pg_temp.venus_wait(waiting int[], pause_s float8, looks int) RETURNS void
LANGUAGE plpgsql AS $venus${body}$venus$

-- reader --
-- Few rows of many tables in one round trip: what each of these statements returns, with its place, until that weighs
-- so much. The last row has no line; its place is the last one that was read. A row's text has what COPY would write.
CREATE OR REPLACE FUNCTION pg_temp.venus_read(statements text[], bytes_max int) RETURNS TABLE (place int, line text)
LANGUAGE plpgsql AS $venus$
DECLARE
  found record;
  bytes int := 0;
BEGIN
  FOR at IN 1..cardinality(statements) LOOP
    place := at;
    FOR found IN EXECUTE statements[at] LOOP
      line := found::text;
      bytes := bytes + octet_length(line);
      RETURN NEXT;
    END LOOP;
    EXIT WHEN bytes > bytes_max;
  END LOOP;
  line := NULL;
  RETURN NEXT;
END
$venus$

-- read_together --
SELECT place, line FROM pg_temp.venus_read(%s, %s)

-- prepare_wait --
PREPARE venus_wait (int[], float8, int) AS SELECT pg_temp.venus_wait($1, $2, $3)

-- wait --
EXECUTE venus_wait ('{waiting}', {pause_s}, {looks})

-- wait_block --
-- The same where no temporary function may be made.
DO $venus$
DECLARE
  waiting CONSTANT int[] := '{waiting}';
  pause_s CONSTANT float8 := {pause_s};
  looks CONSTANT int := {looks};
{body}$venus$

-- look --
DECLARE
  seen text := '';
BEGIN
  FOR look IN 1..looks LOOP
    IF pg_current_snapshot()::text <> seen THEN
      seen := pg_current_snapshot()::text;
      EXIT WHEN EXISTS (SELECT FROM venus.dirty d WHERE d.table_id <> ALL (waiting));
    END IF;
    EXIT WHEN pg_sleep(pause_s) IS NULL;
  END LOOP;
END

-- logged_from --
-- From how many seconds on a statement is logged; far off if none is.
SELECT coalesce(min(nullif(setting::float8, -1)), 86400000) / 1000 FROM pg_settings
 WHERE name IN ('log_min_duration_statement', 'log_min_duration_sample', 'auto_explain.log_min_duration')

-- tidy --
-- What cuts have deleted is still looked through. In place, without a moment in which the application cannot write, and
-- not where somebody else does it.
VACUUM (TRUNCATE false, SKIP_LOCKED) {tables}

-- with_pages --
-- The logs that may have rows. A row is in a page, and a log that was never written to has none. What may not be read is
-- met by its marks.
SELECT table_id FROM (
    SELECT table_id, to_regclass('venus.l_' || lpad(table_id::text, greatest(5, length(table_id::text)), '0')) AS log
      FROM venus.captured_table) x
 WHERE pg_relation_size(log) > 0 AND has_table_privilege(log, 'SELECT')

-- has_row --
(SELECT {table_id} FROM {log} LIMIT 1)

-- types --
-- Whatever a column may have: values of few rows are taken as the server writes them, as COPY would.
SELECT oid FROM pg_type

-- small --
-- What the logs have that are `each`; the same snapshot. Counted together: a query of its own for every log takes the
-- planner four times as long.
SELECT id, count(*), bool_and(op = 'I'), bool_or(op = 'T'), bool_or(op = 'X') FROM ({each}) x (id, op) GROUP BY id

-- small_log --
(SELECT {table_id}, op FROM {log} LIMIT {limit})

-- forget_marks --
-- Exactly those that the snapshot sees, with the log rows that they stood for.
EXECUTE venus_forget_marks ('{numbers}')

-- prepare_forget_marks --
PREPARE venus_forget_marks (int[]) AS
DELETE FROM venus.dirty WHERE table_id = ANY ($1)

-- one_mark --
-- Of a table whose changes have to wait: one says as much as thousands.
INSERT INTO venus.dirty (table_id) VALUES ({table_id})

-- weigh --
SELECT count(*), bool_and(op = 'I'), bool_or(op = 'T'), bool_or(op = 'X'), bool_or(op = 'I'),
       (SELECT sum(pg_relation_size(x.oid) / 8192)::bigint
          FROM (SELECT {table}::oid UNION SELECT relid::oid FROM pg_partition_tree({table})) x (oid))
  FROM {log}

-- lock --
SET LOCAL lock_timeout = {give_way_ms};
LOCK TABLE {tables} IN ACCESS SHARE MODE;
SET LOCAL lock_timeout = {usual_ms};
{keyed_plan};
EXECUTE venus_rewritten ({oids})

-- open --
-- A small cut in one round trip. The tables are locked before the first query, which is when the snapshot is taken, so
-- nothing can be truncated or rewritten in between.
BEGIN ISOLATION LEVEL REPEATABLE READ;
SET LOCAL lock_timeout = {give_way_ms};
LOCK TABLE {tables} IN ACCESS SHARE MODE;
SET LOCAL lock_timeout = {usual_ms};
SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off; SET LOCAL enable_material = off;
{opened}

-- opened --
-- What `dirty`, `small` and `settled` say of these tables, together: 0 clock and epoch, 1 marks, 2 logs, 3 signatures.
SELECT 0, 0::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
       (SELECT epoch FROM venus.checkpoint WHERE id = 1), NULL::boolean, NULL::boolean, NULL::boolean, NULL::text
UNION ALL
SELECT 1, table_id, count(*), NULL, NULL, NULL, NULL, NULL FROM venus.dirty GROUP BY table_id
UNION ALL
SELECT 2, l.id, l.n, NULL, l.i, l.t, l.x, NULL FROM ({small}) l (id, n, i, t, x)
UNION ALL
SELECT 3, s.id::bigint, NULL, NULL, NULL, NULL, NULL, s.signature FROM ({signatures}) s (id, namespace, name, signature)

-- settled --
-- Behind the locks: what the tables look like now, and they cannot change any more.
EXECUTE venus_signatures ({oids})

-- rewritten --
-- TRUNCATE and rewriting ALTER TABLE are not MVCC-safe: a table rewritten between our snapshot and our lock looks
-- empty. The snapshot's row of pg_class then has another file than the table has now.
SELECT c.oid::regclass::text
  FROM unnest(%(tables)s::oid[]) t (oid)
  CROSS JOIN LATERAL (SELECT t.oid UNION SELECT p.relid::oid FROM pg_partition_tree(t.oid) p) x (oid)
  JOIN pg_class c ON c.oid = x.oid
 WHERE c.relkind = 'r' AND c.relfilenode <> coalesce(pg_relation_filenode(c.oid), 0)
 LIMIT 1

-- keyed_plan --
-- Few keys, large table: through its key's index, whatever the planner believes of either. One that was analysed while its
-- first rows were on their way has none for it: it would be read once, and gone through for each key. Set with the lock,
-- which saves nearly every cut a round trip.
SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off; SET LOCAL enable_nestloop = on;
SET LOCAL enable_material = off;
SET LOCAL enable_seqscan = on; SET LOCAL enable_sort = on; SET LOCAL work_mem TO DEFAULT

-- bulk_plan --
-- Many keys: one pass over the table instead of a descent for each.
SET LOCAL enable_hashjoin = on; SET LOCAL enable_mergejoin = on; SET LOCAL enable_nestloop = off;
SET LOCAL enable_material = on;
SET LOCAL enable_seqscan = on; SET LOCAL enable_sort = on; SET LOCAL work_mem = '32MB'

-- fill_plan --
-- The next rows in key order: through the index, never by sorting the table again for each chunk.
SET LOCAL enable_seqscan = off; SET LOCAL enable_sort = off; SET LOCAL enable_bitmapscan = off

-- log_taken --
-- Few rows: read and deleted at once.
DELETE FROM {log} RETURNING op, {keys}

-- log_read --
-- Many rows: read first, which lets the first of them leave three times sooner, and deleted behind the last one. The
-- snapshot is the same, so it is exactly these that go.
SELECT op, {keys} FROM {log}

-- forget_log --
DELETE FROM {log}

-- absent --
t.{key} IS NULL

-- noted --
CASE WHEN t.{key} IS NULL THEN 't' WHEN g.is_new THEN 'n' ELSE 'f' END

-- changes --
WITH d AS ({logged}),
     g AS ({groups})
SELECT {absent}, {key_values}{others} FROM g LEFT JOIN {table} t ON {joined}

-- copied --
COPY (
{query}
) TO STDOUT

-- changes_by_text --
-- Keys that may be equal without being the same text: tombstones for the texts that are gone, then the rows.
WITH d AS ({logged}),
     g AS MATERIALIZED ({groups})
SELECT true, {key_values}{nulls} FROM g
 WHERE NOT EXISTS (SELECT FROM {table} t WHERE {joined} AND {same_text})
UNION ALL
SELECT false, {table_keys}{others} FROM {table} t WHERE EXISTS (SELECT FROM g WHERE {joined})

-- fill --
COPY (SELECT {columns} FROM {table} t {after} ORDER BY {order} LIMIT {limit}) TO STDOUT

-- last_key --
-- Where a fill ends that begins in this snapshot.
SELECT {keys} FROM {table} t ORDER BY {order} LIMIT 1
