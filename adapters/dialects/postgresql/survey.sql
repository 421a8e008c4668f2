-- What `venus assess` asks of a PostgreSQL database. Everything here only reads; any role may run it.

-- server --
-- Since when changes are counted. A server that never reset them does not say: since its start at the latest.
SELECT current_setting('server_version'),
       extract(epoch FROM clock_timestamp() - coalesce(d.stats_reset, pg_postmaster_start_time()))::float8,
       d.stats_reset IS NOT NULL, current_setting('track_counts')::boolean
  FROM pg_stat_database d WHERE d.datname = current_database()

-- sizes --
-- A partitioned table has what its partitions have. Rows as the planner estimates them: those of the last ANALYZE, times
-- what the table has grown by since. Where nobody has analysed it (-1), those that the server has counted.
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
