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
                THEN c.reltuples / c.relpages * (pg_relation_size(c.oid) / current_setting('block_size')::bigint)
                ELSE coalesce(s.n_live_tup, 0) END)::float8,
       bool_and(c.relkind = 'p' OR c.reltuples >= 0 OR s.n_live_tup > 0 OR pg_relation_size(c.oid) = 0),
       sum(pg_table_size(c.oid))::bigint, sum(pg_indexes_size(c.oid))::bigint,
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
