-- Queries and statements of a cut-over to a MariaDB or MySQL database. {own} is the prefix of VENUS's own tables.

-- installed --
SELECT count(*) FROM information_schema.tables WHERE table_schema = database() AND table_name = '{own}cutover'

-- mark --
SELECT state, sequence, `offset`, certificate, marked_at, done_at FROM {own}cutover WHERE group_name = %(group)s

-- put_mark --
INSERT INTO {own}cutover (group_name, state, sequence, `offset`, certificate)
VALUES (%(group)s, 'CUT', %(sequence)s, %(offset)s, %(certificate)s)

-- finish_mark --
UPDATE {own}cutover SET state = 'DONE', certificate = %(certificate)s, done_at = coalesce(done_at, utc_timestamp(6))
WHERE group_name = %(group)s

-- remove_mark --
DELETE FROM {own}cutover WHERE group_name = %(group)s

-- begin_reading --
SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY

-- rows --
SELECT {columns}1, 0 FROM {table} AS t

-- extremes --
SELECT min({column}), max({column}) FROM {table}

-- set_counter --
ALTER TABLE {table} AUTO_INCREMENT = {value}

-- set_sequence --
ALTER SEQUENCE {sequence} RESTART {value}
