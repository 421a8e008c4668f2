-- Queries of `venus assess` at a PostgreSQL database. They only read, and any role may run them.

-- server --
-- The time since which changes are counted. If the counters were never reset it is unknown; the server's start is used.
SELECT current_setting('server_version'),
       extract(epoch FROM clock_timestamp() - coalesce(d.stats_reset, pg_postmaster_start_time()))::float8,
       d.stats_reset IS NOT NULL, current_setting('track_counts')::boolean
  FROM pg_stat_database d WHERE d.datname = current_database()

-- sizes --
-- The size of a partitioned table is that of its partitions. Rows are the planner's estimate: those of the last ANALYZE
-- times the table's growth since. If the table was never analysed (-1), the server's own count is used.
SELECT t.root,
       sum(CASE WHEN c.relkind = 'p' THEN 0
                WHEN c.reltuples >= 0 AND c.relpages > 0
                THEN c.reltuples / c.relpages
                     * (coalesce(pg_relation_size(c.oid), 0) / current_setting('block_size')::bigint)
                ELSE coalesce(s.n_live_tup, 0) END)::float8,
       bool_and(c.relkind = 'p' OR c.reltuples >= 0 OR s.n_live_tup > 0 OR coalesce(pg_relation_size(c.oid), 0) = 0),
       coalesce(sum(pg_table_size(c.oid)), 0)::bigint, coalesce(sum(pg_indexes_size(c.oid)), 0)::bigint,
       sum(coalesce(s.n_tup_ins + s.n_tup_upd + s.n_tup_del, 0))::bigint
  FROM unnest(%(tables)s::oid[]) t (root)
  CROSS JOIN LATERAL (SELECT t.root AS oid UNION SELECT p.relid::oid FROM pg_partition_tree(t.root) p) r
  JOIN pg_class c ON c.oid = r.oid
  LEFT JOIN pg_stat_all_tables s ON s.relid = c.oid
 GROUP BY t.root

-- count --
SELECT count(*) FROM {table}

-- sample --
COPY (SELECT * FROM {table}{sample} LIMIT {rows}) TO STDOUT

-- largest --
-- Rows contain the lengths, so large values are read only if they have to be converted into text.
SELECT greatest({lengths}) FROM {rows} t

-- some_rows --
(SELECT {columns} FROM {table}{sample} LIMIT {rows})

-- database --
SELECT CASE WHEN pg_is_in_recovery() THEN 'standby' ELSE 'primary' END,
       pg_encoding_to_char(d.encoding) || ', collation ' || d.datcollate
  FROM pg_database d WHERE d.datname = current_database()

-- wal --
SELECT (w.wal_bytes / greatest(extract(epoch FROM clock_timestamp() - w.stats_reset), 1))::float8 FROM pg_stat_wal w

-- table_triggers --
SELECT g.tgrelid, 'trigger ' || g.tgname || CASE g.tgenabled WHEN 'D' THEN ': disabled' ELSE ': enabled' END
  FROM pg_trigger g
 WHERE NOT g.tgisinternal AND g.tgname !~ '^venus_' AND g.tgrelid = ANY (%(tables)s::oid[])
 ORDER BY g.tgrelid, g.tgname

-- code --
SELECT l.lanname, sum(length(p.prosrc) - length(replace(p.prosrc, chr(10), '')) + 1)::bigint
  FROM pg_proc p JOIN pg_language l ON l.oid = p.prolang JOIN pg_namespace n ON n.oid = p.pronamespace
 WHERE n.nspname = ANY (%(namespaces)s) AND l.lanname NOT IN ('c', 'internal')
   AND NOT EXISTS (SELECT FROM pg_depend e WHERE e.classid = 'pg_proc'::regclass AND e.objid = p.oid AND e.deptype = 'e')
 GROUP BY l.lanname ORDER BY l.lanname

-- invalid --
SELECT 'index', count(*)
  FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE NOT i.indisvalid AND n.nspname = ANY (%(namespaces)s)
UNION ALL
SELECT 'constraint', count(*) FROM pg_constraint k JOIN pg_namespace n ON n.oid = k.connamespace
 WHERE NOT k.convalidated AND n.nspname = ANY (%(namespaces)s)
