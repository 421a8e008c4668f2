-- Structure of a SQLite table and the other objects of the file. All queries only read.

-- numberings --
-- Only AUTOINCREMENT keeps a counter. Every other rowid follows the largest existing one.
SELECT name, seq FROM main.sqlite_sequence ORDER BY name;

-- has_numberings --
SELECT count(*) FROM main.sqlite_master WHERE name = 'sqlite_sequence';

-- others --
SELECT type, name, coalesce(sql, '') FROM main.sqlite_master WHERE type IN ('view', 'trigger') ORDER BY type, name;

-- file_bytes --
SELECT p.page_count * s.page_size FROM pragma_page_count('main') p, pragma_page_size('main') s

-- large_rows --
SELECT count(*), coalesce(sum({lengths} > {bytes}), 0) FROM {table}

-- length --
coalesce(length(CAST({column} AS BLOB)), 0)

-- other_spellings --
-- The number of rows whose parent is spelled differently, and an example.
SELECT count(*), min(c.{column}), min(p.{referred})
  FROM (SELECT * FROM {child} LIMIT {rows}) AS c JOIN {parent} AS p ON {match} WHERE {differ}

-- same_spelling --
UPDATE {child} AS c SET ({columns}) = (SELECT {values} FROM {parent} AS p WHERE {match})
 WHERE EXISTS (SELECT 1 FROM {parent} AS p WHERE {match} AND ({differ}));
