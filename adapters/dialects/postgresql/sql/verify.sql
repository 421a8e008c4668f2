-- Queries of verification, in one REPEATABLE READ transaction: checksums by bucket, the keys of a bucket, rows. verify.py
-- fills in the {braces}.

-- session --
-- A checksum over a million rows needs no JIT, but more memory than the default. A side that has finished waits in its
-- transaction for the other one, however long that takes.
SET jit = off; SET work_mem = '64MB'; SET statement_timeout = 0; SET idle_in_transaction_session_timeout = 0

-- begin --
-- LOCK precedes the first query and takes no snapshot. TRUNCATE and rewriting ALTER TABLE are not MVCC-safe: a table
-- truncated after the snapshot would look empty although its log is empty too.
BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;
LOCK TABLE {relation} IN ACCESS SHARE MODE

-- estimate --
SELECT coalesce(sum(CASE WHEN c.reltuples >= 0 THEN c.reltuples ELSE pg_relation_size(c.oid) / 100 END), 0)::bigint
  FROM pg_class c
 WHERE c.oid IN (SELECT {relation_name}::regclass UNION SELECT relid FROM pg_partition_tree({relation_name}::regclass))
   AND c.relkind = 'r'

-- cuts --
-- The leading key column is the first of its index, so this is one pass over the index.
SELECT k FROM (SELECT {key} AS k, row_number() OVER (ORDER BY {key}) AS n, count(*) OVER () AS last
                 FROM {relation} t WHERE {where}) x
 WHERE n = 1 OR n = last OR n % {rows} = 0 ORDER BY k

-- sampled_cuts --
-- For a large table: a sample of its pages is accurate enough.
SELECT k FROM (SELECT k, row_number() OVER (ORDER BY k) AS n
                 FROM (SELECT {key} AS k FROM {relation} t TABLESAMPLE SYSTEM ({percent}) WHERE {where}) y) x
 WHERE n % {rows} = 0
 UNION SELECT min({key}) FROM {relation} t WHERE {where}
 UNION SELECT max({key}) FROM {relation} t WHERE {where} ORDER BY 1

-- buckets --
SELECT b, count(*), sum(h)
  FROM (SELECT {bucket} AS b, {checksum} AS h FROM {relation} t WHERE {where}) x
 GROUP BY b

-- hashes --
SELECT {checksum}, {keys} FROM {relation} t WHERE {where}

-- forms --
SELECT {checksum}, {keys}, {forms} FROM {relation} t JOIN unnest({arrays}) AS v ({names}) ON {match}

-- rows --
COPY (SELECT {columns} FROM {relation} t WHERE {where}{limit}) TO STDOUT

-- blocks --
-- The number of blocks of the largest partition: every row is in some block of its partition.
SELECT coalesce(max(pg_relation_size(x.oid)), 0) / current_setting('block_size')::int
  FROM (SELECT {relation_name}::regclass::oid UNION
        SELECT relid::oid FROM pg_partition_tree({relation_name}::regclass)) x (oid)

-- found --
COPY (SELECT {columns} FROM {relation} t JOIN unnest({arrays}) AS v ({names}) ON {match}) TO STDOUT

-- next_sequence --
SELECT next_sequence FROM venus.checkpoint WHERE id = 1

-- whole_table_waits --
SELECT EXISTS (SELECT FROM {log} WHERE op IN ('T', 'X', 'F'))

-- waiting --
SELECT DISTINCT {names} FROM {log} l JOIN unnest({arrays}) AS v ({names}) ON {match}

-- touch --
-- Logs these rows as if the application had changed them. The next cut reads them as they are.
WITH marked AS (INSERT INTO venus.dirty (table_id) VALUES ({table_id}))
INSERT INTO {log} (op, {keys}) SELECT 'U', {values} FROM unnest({arrays}) AS v ({names})
