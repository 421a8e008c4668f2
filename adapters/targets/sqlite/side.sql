-- The record of a SQLite file that may become the application's and be taken back, and the triggers that reject writes.
-- {own} is the prefix of VENUS's own tables.

-- exists --
SELECT count(*) FROM main.sqlite_schema WHERE type = 'table' AND name = '{own}side'

-- create --
-- `applying` is 1 within a transaction of VENUS, and never in a committed state.
CREATE TABLE IF NOT EXISTS {own}side (
    id INTEGER PRIMARY KEY CHECK (id = 1), business TEXT NOT NULL, name TEXT NOT NULL, peer TEXT NOT NULL,
    state TEXT NOT NULL, switch INTEGER NOT NULL, "offset" INTEGER NOT NULL, changed_at INTEGER NOT NULL,
    applying INTEGER NOT NULL DEFAULT 0
)

-- create_mark --
CREATE TABLE IF NOT EXISTS {own}cutover (
    group_name TEXT NOT NULL PRIMARY KEY, state TEXT NOT NULL, sequence INTEGER NOT NULL, "offset" INTEGER NOT NULL,
    certificate TEXT NOT NULL, marked_at INTEGER NOT NULL, done_at INTEGER
)

-- read --
SELECT business, name, peer, state, switch, "offset", changed_at FROM {own}side WHERE id = 1

-- put --
INSERT INTO {own}side (id, business, name, peer, state, switch, "offset", changed_at)
VALUES (1, :business, :name, :peer, :state, :switch, :offset, venus_now_us())
ON CONFLICT (id) DO UPDATE SET business = :business, name = :name, peer = :peer, state = :state, switch = :switch,
    "offset" = :offset, changed_at = venus_now_us()

-- reject --
-- SQLite has no users whose privileges could be revoked. RAISE(ABORT) ends any statement, even OR IGNORE or OR REPLACE.
CREATE TRIGGER IF NOT EXISTS {trigger} BEFORE {event} ON {table}
WHEN (SELECT state <> 'OPEN' AND NOT applying FROM {own}side WHERE id = 1) BEGIN
  SELECT RAISE(ABORT, 'VENUS keeps this database equal to another one; `venus status` shows which one accepts writes');
END

-- rejecting --
SELECT name FROM main.sqlite_schema WHERE type = 'trigger' AND name GLOB '{own}reject_[iud]_*'

-- remove_trigger --
DROP TRIGGER IF EXISTS {trigger}

-- unfit_triggers --
-- Triggers of the application, which would fire for changes of VENUS.
SELECT name FROM main.sqlite_schema WHERE type = 'trigger' AND lower(tbl_name) = lower(:table)

-- count_rows --
SELECT count(*) FROM (SELECT 1 FROM {table} WHERE {condition} LIMIT {most})

-- may_insert --
-- Compiles the statement without running it: an index may call a function that only the application has.
EXPLAIN INSERT INTO {table} ({columns}) SELECT {columns} FROM {table} WHERE 0

-- may_delete --
EXPLAIN DELETE FROM {table} WHERE 0
