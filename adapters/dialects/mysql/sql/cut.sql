-- Statements of a cut. One transaction with one snapshot covers all of them, so log and table show the same moment.

-- begin --
START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY

-- head --
-- The source's clock, the registry's mark, and which log tables have rows.
SELECT CAST(unix_timestamp(now(6)) * 1000000 AS SIGNED),
       (SELECT md5(coalesce(group_concat(concat_ws(' ', table_id, fingerprint, state) ORDER BY table_id), ''))
          FROM venus_captured_table){dirty}

-- dirty_table --
, EXISTS (SELECT 1 FROM {log})

-- pin --
-- Locks the table's definition until the transaction ends. Reads no rows.
SELECT 1 FROM {table} LIMIT 0

-- numbers --
SELECT seq FROM {log} ORDER BY seq

-- changes --
-- One row for each key in the log: the key, the row if it exists, whether it exists, whether only INSERTs were logged.
-- Text is grouped and compared byte by byte: under a collation the log's 'a' would match the table's 'A'.
SELECT {log_key}, {columns}{is_there}, g.fresh
  FROM (SELECT {keys}, MIN(op) = 'I' AND MAX(op) = 'I' AS fresh FROM {log} GROUP BY {group_by}) AS g
  LEFT JOIN {table} AS t ON {same}{order}

-- fill --
SELECT {columns}1, 0 FROM {table} AS t{after} ORDER BY {order} LIMIT {rows}
