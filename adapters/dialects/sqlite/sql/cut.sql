-- Statements of a cut of one table. One read transaction covers all of them, so log and table show the same moment.

-- changes --
-- One row for each key in the log: the key, the row if it exists, whether it exists, whether only INSERTs were logged.
-- {same} compares identity: under NOCASE the log's 'a' is not the table's 'A'.
SELECT {log_key}, {columns}{is_there}, g.fresh
FROM (SELECT {grouped}, min(op) = 'I' AND max(op) = 'I' AS fresh
      FROM {log} WHERE seq > ? AND seq <= ? GROUP BY {group_by}) AS g
LEFT JOIN {table} AS t ON {same};

-- fill --
SELECT {table_key}, {columns}1, 0 FROM {table} AS t {after} ORDER BY {order} LIMIT {rows};

-- null_key --
-- SQLite allows NULL in most primary keys.
SELECT 1 FROM {table} AS t WHERE {null} LIMIT 1;
