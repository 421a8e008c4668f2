-- What a cut reads of one table; everything in one read transaction, so that log and table show the same moment.

-- changes --
-- One row for each key that the log names: the key, the row if it is there, whether it is, whether only INSERTs were
-- noted. {same} is identity: under NOCASE the log's 'a' is not the table's 'A'.
SELECT {log_key}, {columns}{is_there}, g.fresh
FROM (SELECT {grouped}, min(op) = 'I' AND max(op) = 'I' AS fresh
      FROM {log} WHERE seq > ? AND seq <= ? GROUP BY {group_by}) AS g
LEFT JOIN {table} AS t ON {same};

-- fill --
SELECT {table_key}, {columns}1, 0 FROM {table} AS t {after} ORDER BY {order} LIMIT {rows};

-- null_key --
-- SQLite allows NULL in most primary keys.
SELECT 1 FROM {table} AS t WHERE {null} LIMIT 1;
