-- The record of a database that may become the application's and be taken back, and the triggers that reject writes.
-- {own} is the prefix of VENUS's own tables.

-- lock_switch --
SELECT coalesce(GET_LOCK(concat('venus switch ', md5(database())), 0), 0)

-- exists --
SELECT count(*) FROM information_schema.tables WHERE table_schema = database() AND table_name = '{own}side'

-- create --
CREATE TABLE IF NOT EXISTS {own}side (
    id int NOT NULL PRIMARY KEY, business varchar(255) NOT NULL, name varchar(255) NOT NULL, peer varchar(255) NOT NULL,
    state varchar(20) NOT NULL, switch bigint NOT NULL, `offset` bigint NOT NULL, changed_at datetime(6) NOT NULL
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin ROW_FORMAT = DYNAMIC

-- create_row --
-- The row is there before any trigger reads it: a missing one could not be locked.
INSERT IGNORE INTO {own}side (id, business, name, peer, state, switch, `offset`, changed_at)
VALUES (1, '', '', '', 'OPEN', 0, 0, utc_timestamp(6))

-- read --
SELECT business, name, peer, state, switch, `offset`, changed_at FROM {own}side WHERE id = 1 AND business <> ''

-- put --
-- Waits for every transaction that has written since the triggers were created: each holds a lock on this row.
UPDATE {own}side SET business = %(business)s, name = %(name)s, peer = %(peer)s, state = %(state)s, switch = %(switch)s,
    `offset` = %(offset)s, changed_at = utc_timestamp(6) WHERE id = 1

-- reject --
-- VENUS's own sessions may write. The locking read sees the newest state regardless of the transaction's snapshot, and
-- locks it until the transaction ends. The error is that of a read-only transaction, which applications know.
CREATE TRIGGER {trigger} BEFORE {event} ON {table} FOR EACH ROW
BEGIN
  DECLARE now_is varchar(20) CHARACTER SET utf8mb4 DEFAULT 'OPEN';
  IF @venus_apply IS NULL THEN
    SELECT state INTO now_is FROM {side} WHERE id = 1 LOCK IN SHARE MODE;
    IF now_is <> 'OPEN' THEN
      SIGNAL SQLSTATE '25006' SET MYSQL_ERRNO = 1792, MESSAGE_TEXT =
        'VENUS keeps this database equal to another one; `venus status` shows which one accepts writes';
    END IF;
  END IF;
END

-- rejecting --
SELECT trigger_name FROM information_schema.triggers
WHERE trigger_schema = database() AND trigger_name LIKE 'venus\_reject\_%'

-- remove_trigger --
DROP TRIGGER IF EXISTS {trigger}

-- lock_timeout --
SET SESSION lock_wait_timeout = {seconds}, innodb_lock_wait_timeout = {seconds}

-- unfit_triggers --
-- Triggers of the application that fire for changes of VENUS. One that reads the variable has been adapted.
SELECT event_object_table, trigger_name FROM information_schema.triggers
WHERE trigger_schema = database() AND event_object_table IN %(tables)s AND trigger_name NOT LIKE 'venus\_%%'
    AND action_statement NOT LIKE '%%@venus\_apply%%'
ORDER BY 1, 2

-- count_rows --
SELECT count(*) FROM (SELECT 1 FROM {table} WHERE {condition} LIMIT {most}) AS some

-- may_insert --
-- Needs the privileges of the statement without running it.
EXPLAIN INSERT INTO {table} ({columns}) SELECT {columns} FROM {table} WHERE FALSE

-- may_delete --
EXPLAIN DELETE FROM {table} WHERE FALSE

-- role --
SELECT current_user()
