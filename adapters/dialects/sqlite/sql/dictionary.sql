-- Queries of SQLite's dictionary. All of them only read. Those about tables and their indexes describe the whole file, and
-- the name of the table or index comes first. Virtual tables are left out: their pragmas fail without their module.

-- objects --
-- Tables, views, triggers and indexes of the file, without SQLite's own.
SELECT type, name, tbl_name, coalesce(sql, '') FROM main.sqlite_master WHERE name NOT LIKE 'sqlite\_%' ESCAPE '\';

-- tables --
-- type is table, view, virtual or shadow; wr = WITHOUT ROWID.
SELECT name, type, wr, strict FROM pragma_table_list WHERE schema = 'main' AND name NOT LIKE 'sqlite\_%' ESCAPE '\';

-- columns --
-- hidden: 0 ordinary, 1 of a virtual table, 2 and 3 generated.
SELECT t.name, x.cid, x.name, x.type, x."notnull", x.dflt_value, x.pk, x.hidden
FROM pragma_table_list AS t CROSS JOIN pragma_table_xinfo(t.name, 'main') AS x
WHERE t.schema = 'main' AND t.type = 'table' ORDER BY t.name, x.cid;

-- widths --
SELECT t.name, count(*) FROM pragma_table_list AS t CROSS JOIN pragma_table_xinfo(t.name, 'main') AS x
WHERE t.schema = 'main' AND t.type = 'table' GROUP BY t.name;

-- table_sql --
SELECT name, sql FROM main.sqlite_master WHERE type = 'table';

-- unique_indexes --
-- origin: pk, u (a UNIQUE constraint) or c (CREATE INDEX).
SELECT t.name, l.name, l.origin, l.partial
FROM pragma_table_list AS t CROSS JOIN pragma_index_list(t.name, 'main') AS l
WHERE t.schema = 'main' AND t.type = 'table' AND l."unique" ORDER BY t.name, l.origin <> 'pk', l.name;

-- index_columns --
-- cid -2 = an expression; the collation is the index's own.
SELECT l.name, x.cid, x.name, x.coll, x."desc"
FROM pragma_table_list AS t CROSS JOIN pragma_index_list(t.name, 'main') AS l
CROSS JOIN pragma_index_xinfo(l.name, 'main') AS x
WHERE t.schema = 'main' AND t.type = 'table' AND x."key" ORDER BY l.name, x.seqno;

-- index_collations --
-- A connection can read a table only if it knows the collation of each of its indexes.
SELECT DISTINCT t.name, x.coll
FROM pragma_table_list AS t CROSS JOIN pragma_index_list(t.name, 'main') AS l
CROSS JOIN pragma_index_xinfo(l.name, 'main') AS x
WHERE t.schema = 'main' AND t.type = 'table' AND x."key";

-- index_sql --
SELECT name, sql FROM main.sqlite_master WHERE type = 'index' AND sql IS NOT NULL;

-- foreign_keys --
SELECT t.name, f.id, f."table", f."from", f."to", f.on_update, f.on_delete
FROM pragma_table_list AS t CROSS JOIN pragma_foreign_key_list(t.name, 'main') AS f
WHERE t.schema = 'main' AND t.type = 'table' ORDER BY t.name, f.id, f.seq;

-- secondary_indexes --
SELECT t.name, l.name, l."unique", l.origin
FROM pragma_table_list AS t CROSS JOIN pragma_index_list(t.name, 'main') AS l
WHERE t.schema = 'main' AND t.type = 'table' AND l.origin <> 'pk' ORDER BY t.name, l.name;

-- probe_columns --
-- The columns of an index on a scratch copy of a table.
SELECT name, coll FROM pragma_index_xinfo('venus_probe', 'main') WHERE "key" ORDER BY seqno;

-- schema_version --
PRAGMA main.schema_version;
