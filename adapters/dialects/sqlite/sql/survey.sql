-- Queries of `venus assess` at a SQLite file. All of them only read.

-- count --
SELECT count(*) FROM {table};

-- sample --
SELECT * FROM {table} LIMIT {rows};

-- pages --
-- Reads the whole file. Not every build of SQLite has dbstat.
SELECT s.name, m.tbl_name, m.type, sum(s.pgsize)
  FROM dbstat AS s JOIN main.sqlite_master AS m ON m.name = s.name
 GROUP BY s.name, m.tbl_name, m.type;

-- largest --
SELECT {lengths} FROM (SELECT {columns} FROM {table} LIMIT {rows}) AS t;

-- encoding --
PRAGMA main.encoding;

-- journal --
PRAGMA main.journal_mode;

-- table_triggers --
SELECT tbl_name, name FROM main.sqlite_master WHERE type = 'trigger' ORDER BY tbl_name, name;
