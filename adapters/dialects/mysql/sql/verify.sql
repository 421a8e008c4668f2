-- Queries of verification, in one transaction with one snapshot: checksums by bucket, the keys of a bucket, rows.

-- estimate --
SELECT coalesce(max(table_rows), 0) FROM information_schema.tables
 WHERE table_schema = {database} AND table_name = {name}

-- cuts --
-- The leading key column is the first of its index, so this is one pass over the index.
SELECT k FROM (SELECT {key} AS k, row_number() OVER (ORDER BY {key}) AS n, count(*) OVER () AS last
                 FROM {table} AS t WHERE {where}) AS x
 WHERE n = 1 OR n = last OR n % {rows} = 0 ORDER BY k

-- buckets --
SELECT b, count(*), sum(h)
  FROM (SELECT {bucket} AS b, {checksum} AS h FROM {table} AS t WHERE {where}) AS x
 GROUP BY b

-- hashes --
SELECT {checksum}, {keys} FROM {table} AS t WHERE {where}

-- forms --
SELECT {checksum}, {keys}, {forms} FROM {table} AS t WHERE {where}

-- rows --
SELECT {columns}1, 0 FROM {table} AS t WHERE {where}{limit}

-- waiting --
SELECT DISTINCT {keys} FROM {log} AS g WHERE {where}

-- touch --
-- Logs these rows as if the application had changed them. The next cut reads them as they are.
INSERT INTO {log} (op, {keys}) VALUES {rows}
