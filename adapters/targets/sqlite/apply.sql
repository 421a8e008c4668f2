-- Statements that write rows to a table of a SQLite target. {table} {columns} {key} are the target's names, quoted.
-- REPLACE is not used on it: it would delete a row that is equal in another unique key.

-- insert --
INSERT INTO {table} ({columns}) VALUES {rows}

-- delete_keys --
DELETE FROM {table} WHERE {keys_equal}

-- definitions --
{definitions}

-- has_key --
{keys_equal}

-- delete_all --
DELETE FROM {table}

-- create_stage --
-- It has only the row's key, so REPLACE keeps the later of two rows with one key. Without column types it stores values
-- unchanged.
CREATE TEMP TABLE IF NOT EXISTS {stage} ({columns}, PRIMARY KEY ({key}))

-- put_staged --
REPLACE INTO {stage} ({columns}) VALUES {rows}

-- delete_staged --
DELETE FROM {table} WHERE {key_list} IN (SELECT {key} FROM {stage})

-- delete_staged_exact --
-- Keys that are equal in a collation are different rows elsewhere.
DELETE FROM {table} AS t WHERE {key_list} IN (SELECT {key} FROM {stage})
    AND EXISTS (SELECT 1 FROM {stage} s WHERE {match})

-- insert_staged --
INSERT INTO {table} ({columns}) SELECT {columns} FROM {stage}

-- create_touched --
CREATE TABLE IF NOT EXISTS {touched} ({key_definitions}, {moved} INTEGER NOT NULL, PRIMARY KEY ({key})) {strict}

-- drop_touched --
DROP TABLE IF EXISTS {touched}

-- touch_keys --
-- This table of VENUS has only the row's key, so REPLACE deletes no other row.
REPLACE INTO {touched} ({key}, {moved}) VALUES {rows}

-- sweep --
-- Rows that the re-read of the whole table did not find no longer exist at the source.
DELETE FROM {table} AS t WHERE NOT EXISTS (
    SELECT 1 FROM {touched} s WHERE {match} AND s.{moved} >= {offset})

-- create_side_table --
CREATE TABLE {side} ({definitions}, PRIMARY KEY ({key})) {strict}

-- key_side --
SELECT 1

-- drop_side_table --
DROP TABLE IF EXISTS {side}

-- resync_delete --
-- A key with a change behind the snapshot's cut is newer than the snapshot.
DELETE FROM {table} AS t WHERE NOT EXISTS (SELECT 1 FROM {side} s WHERE {match})
    AND NOT EXISTS (SELECT 1 FROM {touched} s WHERE {match} AND s.{moved} >= {offset})

-- resync_replace --
DELETE FROM {table} AS t WHERE EXISTS (SELECT 1 FROM {side} s WHERE {match} AND NOT ({same}))
    AND NOT EXISTS (SELECT 1 FROM {touched} s WHERE {match} AND s.{moved} >= {offset})

-- resync_insert --
INSERT INTO {table} ({columns}) SELECT {columns} FROM {side} t
WHERE NOT EXISTS (SELECT 1 FROM {touched} s WHERE {match} AND s.{moved} >= {offset})
    AND NOT EXISTS (SELECT 1 FROM {table} s WHERE {match})
