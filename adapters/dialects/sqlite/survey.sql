-- What `venus assess` asks of a SQLite file. Everything here only reads.

-- count --
SELECT count(*) FROM {table};

-- sample --
SELECT * FROM {table} LIMIT {rows};

-- pages --
-- Reads the whole file, and is not part of every SQLite.
SELECT s.name, m.tbl_name, m.type, sum(s.pgsize)
  FROM dbstat AS s JOIN main.sqlite_master AS m ON m.name = s.name
 GROUP BY s.name, m.tbl_name, m.type;
