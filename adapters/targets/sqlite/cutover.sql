-- Queries and statements of a cut-over to a SQLite file that follows. {own} is the prefix of VENUS's own tables.

-- installed --
SELECT count(*) FROM main.sqlite_schema WHERE type = 'table' AND name = '{own}cutover'

-- mark --
SELECT state, sequence, "offset", certificate, marked_at, done_at FROM {own}cutover WHERE group_name = :group

-- put_mark --
INSERT INTO {own}cutover (group_name, state, sequence, "offset", certificate, marked_at)
VALUES (:group, 'CUT', :sequence, :offset, :certificate, venus_now_us())

-- finish_mark --
UPDATE {own}cutover SET state = 'DONE', certificate = :certificate, done_at = coalesce(done_at, venus_now_us())
WHERE group_name = :group

-- remove_mark --
DELETE FROM {own}cutover WHERE group_name = :group

-- rows --
SELECT {columns}, 1, 0 FROM {table} AS t

-- create_converted --
-- With the types of the application's table, and without its constraints.
CREATE TEMP TABLE {converted} ({definitions})

-- empty_converted --
DELETE FROM {converted}

-- drop_converted --
DROP TABLE IF EXISTS {converted}

-- orphans --
-- Rows whose parent does not exist, by the number of the foreign key in its table.
SELECT fkid, count(*), coalesce('row ' || min(rowid), 'a row') FROM pragma_foreign_key_check(:table) GROUP BY fkid

-- extremes --
SELECT max({column}) FROM {table}

-- counter --
SELECT seq FROM main.sqlite_sequence WHERE name = :table

-- set_counter --
UPDATE main.sqlite_sequence SET seq = :last WHERE name = :table AND seq < :last

-- add_counter --
INSERT INTO main.sqlite_sequence (name, seq)
SELECT :table, :last WHERE NOT EXISTS (SELECT 1 FROM main.sqlite_sequence WHERE name = :table)
