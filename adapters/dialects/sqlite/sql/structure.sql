-- Structure of a SQLite table and the other objects of the file. All queries only read.

-- secondary_indexes --
-- origin: pk, u (a UNIQUE constraint) or c (CREATE INDEX).
SELECT l.name, l."unique", l.origin, coalesce(m.sql, '')
FROM pragma_index_list(?, 'main') AS l LEFT JOIN main.sqlite_master AS m ON m.type = 'index' AND m.name = l.name
WHERE l.origin <> 'pk' ORDER BY l.name;

-- index_terms --
-- name is NULL for an expression.
SELECT name, "desc", coll FROM pragma_index_xinfo(?, 'main') WHERE "key" ORDER BY seqno;

-- column_names --
SELECT name FROM pragma_table_xinfo(?, 'main') ORDER BY cid;

-- foreign_key_actions --
SELECT DISTINCT id, on_update, on_delete FROM pragma_foreign_key_list(?, 'main') ORDER BY id;

-- numberings --
-- Only AUTOINCREMENT keeps a counter. Every other rowid follows the largest existing one.
SELECT name, seq FROM main.sqlite_sequence ORDER BY name;

-- has_numberings --
SELECT count(*) FROM main.sqlite_master WHERE name = 'sqlite_sequence';

-- others --
SELECT type, name, coalesce(sql, '') FROM main.sqlite_master WHERE type IN ('view', 'trigger') ORDER BY type, name;

-- other_spellings --
-- The number of rows whose parent is spelled differently, and an example.
SELECT count(*), min(c.{column}), min(p.{referred})
  FROM (SELECT * FROM {child} LIMIT {rows}) AS c JOIN {parent} AS p ON {match} WHERE {differ}

-- same_spelling --
UPDATE {child} AS c SET ({columns}) = (SELECT {values} FROM {parent} AS p WHERE {match})
 WHERE EXISTS (SELECT 1 FROM {parent} AS p WHERE {match} AND ({differ}));
