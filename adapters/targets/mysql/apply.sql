-- Statements that write rows to a table of a MariaDB or MySQL target. {table} {columns} {key} are the target's names,
-- quoted. REPLACE and ON DUPLICATE KEY UPDATE are not used on it: they would delete or update a row that is equal in
-- another unique key.

-- insert --
INSERT INTO {table} ({columns}) VALUES {values}

-- load --
-- LOCAL turns invalid values into warnings and skips existing rows. If VENUS finds either, it uses INSERT instead.
LOAD DATA LOCAL INFILE 'rows' INTO TABLE {table} CHARACTER SET utf8mb4 ({fields}){assignments}

-- delete_values --
DELETE FROM {table} WHERE {key_list} IN ({values})

-- delete_exact --
-- Keys that are equal in a collation are different rows elsewhere.
DELETE FROM {table} WHERE {key_list} IN ({values}) AND {exact_key} IN ({exact})

-- has_key --
{key_list} IN ({values})

-- delete_all --
DELETE FROM {table}

-- create_stage --
-- It has only the row's key, so REPLACE keeps the later of two rows with one key.
CREATE TEMPORARY TABLE IF NOT EXISTS {stage} ({key_definitions}PRIMARY KEY ({key})) ENGINE = InnoDB
AS SELECT {columns} FROM {table} LIMIT 0

-- put_staged --
REPLACE INTO {stage} ({columns}) VALUES {values}

-- delete_staged --
DELETE t FROM {table} t JOIN {stage} s ON {match}

-- insert_staged --
INSERT INTO {table} ({columns}) SELECT {columns} FROM {stage}

-- create_touched --
CREATE TABLE IF NOT EXISTS {touched} ({key_definitions}PRIMARY KEY ({key})) ENGINE = InnoDB ROW_FORMAT = DYNAMIC
AS SELECT {key}, CAST(0 AS SIGNED) AS {moved} FROM {table} LIMIT 0

-- find_touched --
SELECT 1 FROM information_schema.tables WHERE table_schema = {touched_database} AND table_name = {touched_name}

-- drop_touched --
DROP TABLE IF EXISTS {touched}

-- forget_touched --
DELETE FROM {touched}

-- touch_values --
-- This table of VENUS has only the row's key, so REPLACE deletes no other row.
REPLACE INTO {touched} ({key}, {moved}) VALUES {values}

-- sweep --
-- Rows that the re-read of the whole table did not find no longer exist at the source.
DELETE t FROM {table} t WHERE NOT EXISTS (
    SELECT 1 FROM {touched} s WHERE {match} AND s.{moved} >= {offset})

-- create_side_table --
CREATE TABLE {side} ({definitions}, PRIMARY KEY ({key})) ENGINE = InnoDB ROW_FORMAT = DYNAMIC {charset}

-- create_side_like --
-- Has the column types of a table of the application.
CREATE TABLE {side} ({key_definitions}PRIMARY KEY ({key})) ENGINE = InnoDB ROW_FORMAT = DYNAMIC
AS SELECT {columns} FROM {table} LIMIT 0

-- key_side --
ANALYZE TABLE {side}

-- drop_side_table --
DROP TABLE IF EXISTS {side}

-- resync_delete --
-- A key with a change behind the snapshot's cut is newer than the snapshot.
DELETE t FROM {table} t WHERE NOT EXISTS (SELECT 1 FROM {side} s WHERE {match})
    AND NOT EXISTS (SELECT 1 FROM {touched} s WHERE {match} AND s.{moved} >= {offset})

-- resync_replace --
DELETE t FROM {table} t JOIN {side} s ON {match} WHERE NOT ({same})
    AND NOT EXISTS (SELECT 1 FROM {touched} s WHERE {match} AND s.{moved} >= {offset})

-- resync_insert --
INSERT INTO {table} ({columns}) SELECT {columns} FROM {side} t
WHERE NOT EXISTS (SELECT 1 FROM {touched} s WHERE {match} AND s.{moved} >= {offset})
    AND NOT EXISTS (SELECT 1 FROM {table} s WHERE {match})
