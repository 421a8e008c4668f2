-- Statements that write rows to a table of an Oracle target. {table} {columns} {key} are the target's names, quoted.
-- MERGE is not used: rows are found by their key alone, so a row that is equal in another unique key is never changed.

-- insert --
INSERT INTO {table} ({columns}) VALUES ({values})

-- delete_keys --
DELETE FROM {table} WHERE {keys_equal}

-- delete_all --
DELETE FROM {table}

-- find_stage --
SELECT 1 FROM USER_TABLES T WHERE T.TABLE_NAME = '{name}'

-- create_stage --
-- Its rows exist for one transaction.
CREATE GLOBAL TEMPORARY TABLE IF NOT EXISTS {stage} ({definitions}, PRIMARY KEY ({key})) ON COMMIT DELETE ROWS

-- delete_staged --
DELETE FROM {table} t WHERE EXISTS (SELECT 1 FROM {stage} s WHERE {match})

-- insert_staged --
INSERT INTO {table} ({columns}) SELECT {columns} FROM {stage}

-- find_touched --
SELECT 1 FROM USER_TABLES T WHERE T.TABLE_NAME = '{touched_name}'

-- create_touched --
CREATE TABLE IF NOT EXISTS {touched} ({key_definitions}, {moved} NUMBER(19) NOT NULL, PRIMARY KEY ({key}))

-- drop_touched --
DROP TABLE IF EXISTS {touched} PURGE

-- forget_touched --
DELETE FROM {touched}

-- sweep --
-- Rows that the re-read of the whole table did not find no longer exist at the source.
DELETE FROM {table} t WHERE NOT EXISTS (
    SELECT 1 FROM {touched} s WHERE {match} AND s.{moved} >= {offset})

-- create_side_table --
CREATE TABLE {side} ({definitions}, PRIMARY KEY ({key}))

-- key_side --
SELECT 1 FROM DUAL

-- drop_side_table --
DROP TABLE IF EXISTS {side} PURGE

-- resync_delete --
-- A key with a change behind the snapshot's cut is newer than the snapshot.
DELETE FROM {table} t WHERE NOT EXISTS (SELECT 1 FROM {side} s WHERE {match})
    AND NOT EXISTS (SELECT 1 FROM {touched} s WHERE {match} AND s.{moved} >= {offset})

-- resync_replace --
DELETE FROM {table} t WHERE EXISTS (SELECT 1 FROM {side} s WHERE {match} AND NOT ({same}))
    AND NOT EXISTS (SELECT 1 FROM {touched} s WHERE {match} AND s.{moved} >= {offset})

-- resync_insert --
INSERT INTO {table} ({columns}) SELECT {columns} FROM {side} t
WHERE NOT EXISTS (SELECT 1 FROM {touched} s WHERE {match} AND s.{moved} >= {offset})
    AND NOT EXISTS (SELECT 1 FROM {table} s WHERE {match})
