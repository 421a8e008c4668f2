-- Queries of the dictionary of a SQLite target.

-- installed --
SELECT count(*) FROM main.sqlite_schema WHERE type = 'table' AND name = '{own}applied'

-- foreign --
-- The signs of a file of another kind: the registry of a VENUS source, and the application_id of an application.
SELECT (SELECT count(*) FROM main.sqlite_schema WHERE name = '{own}captured_table'), application_id
FROM pragma_application_id

-- table --
SELECT type, wr FROM pragma_table_list WHERE schema = 'main' AND lower(name) = lower(:name)

-- columns --
SELECT name, type, "notnull" OR pk > 0, dflt_value IS NOT NULL, hidden IN (2, 3)
FROM pragma_table_xinfo(:name, 'main') WHERE hidden <> 1 ORDER BY cid

-- unique_keys --
-- A primary key without an index is SQLite's rowid.
SELECT l.name, x.name, x.coll FROM pragma_index_list(:name, 'main') AS l, pragma_index_xinfo(l.name, 'main') AS x
WHERE l."unique" AND NOT l.partial AND x.key AND x.name IS NOT NULL
UNION ALL
SELECT '', name, 'BINARY' FROM pragma_table_xinfo(:name, 'main') WHERE pk > 0 AND NOT EXISTS (
    SELECT 1 FROM pragma_index_list(:name, 'main') WHERE origin = 'pk')

-- triggers --
SELECT name FROM main.sqlite_schema WHERE type = 'trigger' AND lower(tbl_name) = lower(:name)

-- has_rows --
SELECT EXISTS (SELECT 1 FROM {table})
