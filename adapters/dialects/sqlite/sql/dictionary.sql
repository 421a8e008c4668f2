-- Queries of SQLite's dictionary. All of them only read.

-- objects --
-- Tables, views, triggers and indexes of the file, without SQLite's own.
SELECT type, name, tbl_name, coalesce(sql, '') FROM main.sqlite_master WHERE name NOT LIKE 'sqlite\_%' ESCAPE '\';

-- tables --
-- type is table, view, virtual or shadow; wr = WITHOUT ROWID.
SELECT name, type, wr, strict FROM pragma_table_list WHERE schema = 'main' AND name NOT LIKE 'sqlite\_%' ESCAPE '\';

-- columns --
-- hidden: 0 ordinary, 1 of a virtual table, 2 and 3 generated.
SELECT cid, name, type, "notnull", dflt_value, pk, hidden FROM pragma_table_xinfo(?, 'main') ORDER BY cid;

-- width --
SELECT count(*) FROM pragma_table_xinfo(?, 'main');

-- table_sql --
SELECT sql FROM main.sqlite_master WHERE type = 'table' AND name = ?;

-- unique_indexes --
-- origin: pk, u (a UNIQUE constraint) or c (CREATE INDEX).
SELECT l.name, l.origin, l.partial, coalesce(m.sql, '')
FROM pragma_index_list(?, 'main') AS l LEFT JOIN main.sqlite_master AS m ON m.type = 'index' AND m.name = l.name
WHERE l."unique" ORDER BY l.origin <> 'pk', l.name;

-- index_columns --
-- cid -2 = an expression; the collation is the index's own.
SELECT cid, name, coll FROM pragma_index_xinfo(?, 'main') WHERE "key" ORDER BY seqno;

-- index_collations --
-- A connection can read a table only if it knows the collation of each of its indexes.
SELECT DISTINCT x.coll FROM pragma_index_list(?, 'main') AS l, pragma_index_xinfo(l.name, 'main') AS x WHERE x."key";

-- foreign_keys --
SELECT id, "table", "from", "to" FROM pragma_foreign_key_list(?, 'main') ORDER BY id, seq;

-- schema_version --
PRAGMA main.schema_version;
