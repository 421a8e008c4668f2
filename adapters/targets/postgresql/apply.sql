-- Statements that write rows to a target table. {table} {columns} {key} are the target's names, already quoted;
-- {rows} is the table without its child tables (ONLY).

-- copy_in --
COPY {table} ({columns}) FROM STDIN

-- copy_out --
COPY (SELECT {columns} FROM {table} WHERE ctid >= '({low},0)' AND ctid < '({high},0)') TO STDOUT

-- create_stage --
-- Once per session and schema version. No constraint: the target table decides what it refuses.
CREATE TEMPORARY TABLE IF NOT EXISTS {stage} ON COMMIT DELETE ROWS AS SELECT {columns} FROM {table} WITH NO DATA

-- stage_blocks --
SELECT pg_relation_size('{stage}'::regclass) / current_setting('block_size')::int

-- delete_staged --
-- Finds each staged key through the table's index, in an order that the planner chooses. For a table that it believes to
-- be small, the planner may read the stage once for each row, which takes hours if the statistics are outdated: a table
-- that was analysed before its first rows seems to be empty. So a table that seems small is joined by a hash, which is
-- right if it is small and linear if it is not. The same holds for a table with only a few rows for each staged key: one
-- pass costs less than that many index descents.
WITH parts (oid) AS (SELECT {table_name}::regclass UNION SELECT relid FROM pg_partition_tree({table_name}::regclass)),
     size (small) AS (
       SELECT sum(pg_relation_size(c.oid) / current_setting('block_size')::int
                  * CASE WHEN c.reltuples >= 0 AND c.relpages > 0 THEN c.reltuples / c.relpages ELSE 10 END)
              < greatest(10000, {rows_a_descent} * {staged})
         FROM parts JOIN pg_class c USING (oid))
SELECT set_config('enable_hashjoin', CASE WHEN small THEN 'on' ELSE 'off' END, true),
       set_config('enable_nestloop', CASE WHEN small THEN 'off' ELSE 'on' END, true) FROM size;
DELETE FROM {rows} t USING {stage} s WHERE {match};
SET LOCAL enable_nestloop = on; SET LOCAL enable_hashjoin = off

-- upsert_staged --
INSERT INTO {table} ({columns}) OVERRIDING SYSTEM VALUE SELECT {columns} FROM {stage} ON CONFLICT ({key}) DO {action}

-- insert_staged --
INSERT INTO {table} ({columns}) OVERRIDING SYSTEM VALUE SELECT {columns} FROM {stage}

-- drop_repeated --
-- Keeps the later of two rows with one key in one cut (a row that was filled and changed in one snapshot). The stage has
-- no index, so a nested loop would read it once for each of its rows.
SET LOCAL enable_hashjoin = on; SET LOCAL enable_nestloop = off;
DELETE FROM {stage} a USING {stage} b WHERE {match_ab} AND a.ctid < b.ctid;
SET LOCAL enable_nestloop = on; SET LOCAL enable_hashjoin = off

-- drop_unchanged --
-- Drops staged rows that the table has unchanged: a check that is NOT VALID might refuse them if they were written again.
SET LOCAL enable_hashjoin = on;
DELETE FROM {stage} s USING {rows} t WHERE {match} AND {same};
SET LOCAL enable_hashjoin = off

-- upsert_values --
INSERT INTO {table} ({columns}) OVERRIDING SYSTEM VALUE VALUES {values} ON CONFLICT ({key}) DO {action}

-- delete_values --
DELETE FROM {rows} WHERE ({key}) IN ({values})

-- truncate --
TRUNCATE {rows}

-- delete_all --
DELETE FROM {rows}

-- create_touched --
CREATE TABLE IF NOT EXISTS {touched} AS SELECT {key}, 0::bigint AS {moved} FROM {table} WITH NO DATA

-- has_key --
SELECT 1 FROM pg_constraint WHERE conrelid = '{touched}'::regclass AND contype = 'p'

-- key_touched --
ALTER TABLE {touched} ADD PRIMARY KEY ({key})

-- drop_touched --
DROP TABLE IF EXISTS {touched}

-- touch_staged --
INSERT INTO {touched} ({key}, {moved}) SELECT {key}, {offset} FROM {stage}
ON CONFLICT ({key}) DO UPDATE SET {moved} = EXCLUDED.{moved}

-- touch_values --
INSERT INTO {touched} ({key}, {moved}) VALUES {values}
ON CONFLICT ({key}) DO UPDATE SET {moved} = EXCLUDED.{moved}

-- sweep --
-- Rows that the re-read of the whole table did not find no longer exist at the source.
SET LOCAL enable_hashjoin = on;
DELETE FROM {rows} t WHERE NOT EXISTS (
    SELECT FROM {touched} s WHERE {match} AND s.{moved} >= {offset});
SET LOCAL enable_hashjoin = off

-- create_side_table --
CREATE UNLOGGED TABLE {side} ({definitions})

-- key_side --
ALTER TABLE {side} ADD PRIMARY KEY ({key}); ANALYZE {side}

-- drop_side_table --
DROP TABLE IF EXISTS {side}

-- resync_delete --
-- A key with a change behind the snapshot's cut is newer than the snapshot.
DELETE FROM {rows} t WHERE NOT EXISTS (SELECT FROM {side} s WHERE {match})
    AND NOT EXISTS (SELECT FROM {touched} s WHERE {match} AND s.{moved} >= {offset})

-- resync_replace --
DELETE FROM {rows} t USING {side} s WHERE {match} AND NOT ({same})
    AND NOT EXISTS (SELECT FROM {touched} s WHERE {match} AND s.{moved} >= {offset})

-- resync_insert --
INSERT INTO {table} ({columns}) OVERRIDING SYSTEM VALUE SELECT {columns} FROM {side} t
WHERE NOT EXISTS (SELECT FROM {touched} s WHERE {match} AND s.{moved} >= {offset})
    AND NOT EXISTS (SELECT FROM {rows} s WHERE {match})

-- insert_side --
-- For a table without rows.
INSERT INTO {table} ({columns}) OVERRIDING SYSTEM VALUE SELECT {columns} FROM {side}
