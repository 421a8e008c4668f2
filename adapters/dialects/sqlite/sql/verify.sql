-- Queries of verification at a SQLite file, in one read transaction. VENUS computes the checksums, because SQLite has no
-- digest function.

-- rows --
SELECT {columns}, 1, 0 FROM {table} AS t WHERE {where}{limit}

-- values --
SELECT {column} FROM {table} AS t WHERE {column} IS NOT NULL

-- estimate --
SELECT count(*) FROM {table} AS t

-- cuts --
SELECT k FROM (SELECT {key} AS k, row_number() OVER (ORDER BY {key}) AS n, count(*) OVER () AS last
                 FROM {table} AS t WHERE {where}) AS x
 WHERE n = 1 OR n = last OR n % {rows} = 0 ORDER BY k

-- waiting --
SELECT DISTINCT {keys} FROM {log} WHERE seq > (SELECT log_through FROM venus_captured_table WHERE table_id = ?)

-- stored_keys --
SELECT {keys} FROM {table} AS t WHERE {where}

-- touch --
-- Logs these rows as if the application had changed them. The next cut reads them as they are.
INSERT INTO {log} (op, {keys}) VALUES ('U', {marks})
