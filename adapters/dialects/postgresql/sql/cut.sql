-- Statements of a cut. One REPEATABLE READ transaction reads everything and deletes what it has read.

-- begin --
BEGIN ISOLATION LEVEL REPEATABLE READ

-- dirty --
-- Prepared once. Returns the marks of the log tables that have rows, and one row (number -1) with the clock and the
-- epoch. It costs the same for one table and for thousands.
PREPARE venus_dirty AS
SELECT -1, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, (SELECT epoch FROM venus.checkpoint WHERE id = 1)
UNION ALL
SELECT table_id, count(*), 0 FROM venus.dirty GROUP BY table_id

-- looker --
-- Looks for marks at intervals, at most `looks` times, in one round trip; a poll for each look would cost both ends
-- about forty times as much. Marks of waiting tables are ignored. The marks are read only if any transaction has ended
-- since the last look, which the snapshot shows at a third of the cost. The pause is part of a condition, because a query
-- of its own would cost as much as the pause. A function of the session keeps its plans; a DO block is planned each time.
CREATE OR REPLACE FUNCTION pg_temp.venus_wait(waiting int[], pause_s float8, looks int) RETURNS void
LANGUAGE plpgsql AS $venus${body}$venus$

-- reader --
-- Reads a few rows from each of many tables in one round trip. Runs the statements until their results exceed `bytes_max`,
-- and returns each row with the number of its statement. The last row returned has no line, and the number of the last
-- statement that ran. A row's text is in the format of COPY.
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
-- `wait` for sessions that may not create temporary functions.
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
-- The duration in seconds from which the server logs a statement; a very large number if it logs none.
SELECT coalesce(min(nullif(setting::float8, -1)), 86400000) / 1000 FROM pg_settings
 WHERE name IN ('log_min_duration_statement', 'log_min_duration_sample', 'auto_explain.log_min_duration')

-- tidy --
-- Removes the dead rows that cuts left and that every look reads. It works in place without blocking the application,
-- and skips tables that another session has locked.
VACUUM (TRUNCATE false, SKIP_LOCKED) {tables}

-- with_pages --
-- The logs that may have rows: a log that was never written to has no pages. Logs that may not be read are found by
-- their marks.
SELECT table_id FROM (
    SELECT table_id, to_regclass('venus.l_' || lpad(table_id::text, greatest(5, length(table_id::text)), '0')) AS log
      FROM venus.captured_table) x
 WHERE pg_relation_size(log) > 0 AND has_table_privilege(log, 'SELECT')

-- has_row --
(SELECT {table_id} FROM {log} LIMIT 1)

-- types --
-- All types that a column may have: small reads take every value as text, like COPY.
SELECT oid FROM pg_type

-- small --
-- The content of the logs in `each`, in the same snapshot. They are counted together, because planning one query for
-- every log takes four times as long.
SELECT id, count(*), bool_and(op = 'I'), bool_or(op = 'T'), coalesce(min(op) FILTER (WHERE op IN ('X', 'F')), '')
  FROM ({each}) x (id, op) GROUP BY id

-- small_log --
(SELECT {table_id}, op FROM {log} LIMIT {limit})

-- forget_marks --
-- Deletes exactly the marks in the snapshot, together with their log rows.
EXECUTE venus_forget_marks ('{numbers}')

-- prepare_forget_marks --
PREPARE venus_forget_marks (int[]) AS
DELETE FROM venus.dirty WHERE table_id = ANY ($1)

-- one_mark --
-- For a waiting table, whose marks one mark replaces.
INSERT INTO venus.dirty (table_id) VALUES ({table_id})

-- weigh --
SELECT count(*), bool_and(op = 'I'), bool_or(op = 'T'), coalesce(min(op) FILTER (WHERE op IN ('X', 'F')), ''),
       bool_or(op = 'I'),
       (SELECT coalesce(sum(pg_relation_size(x.oid) / 8192), 0)::bigint
          FROM (SELECT {table}::oid UNION SELECT relid::oid FROM pg_partition_tree({table})) x (oid))
  FROM {log}

-- lock --
SET LOCAL lock_timeout = {give_way_ms};
LOCK TABLE {tables} IN ACCESS SHARE MODE;
SET LOCAL lock_timeout = {usual_ms};
{keyed_plan};
EXECUTE venus_rewritten ({oids})

-- open --
-- Opens a small cut in one round trip. The tables are locked before the first query, which takes the snapshot, so they
-- cannot be truncated or rewritten in between.
BEGIN ISOLATION LEVEL REPEATABLE READ;
SET LOCAL lock_timeout = {give_way_ms};
LOCK TABLE {tables} IN ACCESS SHARE MODE;
SET LOCAL lock_timeout = {usual_ms};
SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off; SET LOCAL enable_material = off;
{opened}

-- opened --
-- The results of `dirty`, `small` and `settled` for these tables: 0 clock and epoch, 1 marks, 2 logs, 3 signatures; and
-- 4 the changed rows of `with_rows` where they are few.
{with_rows}SELECT 0, 0::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
       (SELECT epoch FROM venus.checkpoint WHERE id = 1), NULL::boolean, NULL::boolean, NULL::text, NULL::text
UNION ALL
SELECT 1, table_id, count(*), NULL, NULL, NULL, NULL, NULL FROM venus.dirty GROUP BY table_id
UNION ALL
SELECT 2, l.id, l.n, NULL, l.i, l.t, l.x, NULL FROM ({small}) l (id, n, i, t, x)
UNION ALL
SELECT 3, s.id::bigint, NULL, NULL, NULL, NULL, NULL, s.signature FROM ({signatures}) s (id, namespace, name, signature)
{rows}

-- few_taken --
-- Part of `opened`: deletes the rows of a log only if they are few. The other parts still see them in the snapshot.
d_{number} AS (DELETE FROM {log} WHERE (SELECT count(*) < {limit} FROM (SELECT FROM {log} LIMIT {limit}) x)
               RETURNING op, {keys}),
g_{number} AS (SELECT DISTINCT {keys} FROM d_{number} WHERE op NOT IN ('T', 'X', 'F'))

-- few_rows --
-- The rows for these keys, each as text in the format of COPY.
UNION ALL
SELECT 4, {number}, NULL, NULL, NULL, NULL, NULL, ROW({absent}, {key_values}{others})::text
  FROM g_{number} g LEFT JOIN {table} t ON {joined}

-- settled --
-- Runs after the locks, when the tables can no longer change.
EXECUTE venus_signatures ({oids})

-- rewritten --
-- TRUNCATE and rewriting ALTER TABLE are not MVCC-safe: a table rewritten between the snapshot and the lock looks empty.
-- In that case the snapshot's row of pg_class has another file than the table.
SELECT c.oid::regclass::text
  FROM unnest(%(tables)s::oid[]) t (oid)
  CROSS JOIN LATERAL (SELECT t.oid UNION SELECT p.relid::oid FROM pg_partition_tree(t.oid) p) x (oid)
  JOIN pg_class c ON c.oid = x.oid
 WHERE c.relkind = 'r' AND c.relfilenode <> coalesce(pg_relation_filenode(c.oid), 0)
 LIMIT 1

-- keyed_plan --
-- For few keys in a large table: forces the use of the key's index. A table that was analysed before its first rows were
-- committed seems empty to the planner, which would scan it and then search the result for each key. These settings
-- travel with the lock, which saves nearly every cut a round trip.
SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off; SET LOCAL enable_nestloop = on;
SET LOCAL enable_material = off;
SET LOCAL enable_seqscan = on; SET LOCAL enable_sort = on; SET LOCAL work_mem TO DEFAULT

-- bulk_plan --
-- For many keys: one scan of the table instead of an index lookup for each.
SET LOCAL enable_hashjoin = on; SET LOCAL enable_mergejoin = on; SET LOCAL enable_nestloop = off;
SET LOCAL enable_material = on;
SET LOCAL enable_seqscan = on; SET LOCAL enable_sort = on; SET LOCAL work_mem = '32MB'

-- fill_plan --
-- For the next rows in key order: uses the index and never sorts the table for each chunk.
SET LOCAL enable_seqscan = off; SET LOCAL enable_sort = off; SET LOCAL enable_bitmapscan = off

-- log_taken --
-- For few rows: reads and deletes them at once.
DELETE FROM {log} RETURNING op, {keys}

-- log_read --
-- For many rows: reads them first, so that the first ones leave three times sooner; `forget_log` deletes them after the
-- last one. The snapshot is the same, so exactly these rows are deleted.
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
-- For keys that may be equal with different texts: tombstones for the texts that no longer exist, then the rows.
WITH d AS ({logged}),
     g AS MATERIALIZED ({groups})
SELECT true, {key_values}{nulls} FROM g
 WHERE NOT EXISTS (SELECT FROM {table} t WHERE {joined} AND {same_text})
UNION ALL
SELECT false, {table_keys}{others} FROM {table} t WHERE EXISTS (SELECT FROM g WHERE {joined})

-- fill --
COPY (SELECT {columns} FROM {table} t {after} ORDER BY {order} LIMIT {limit}) TO STDOUT

-- last_key --
-- The end of a fill that begins in this snapshot.
SELECT {keys} FROM {table} t ORDER BY {order} LIMIT 1
