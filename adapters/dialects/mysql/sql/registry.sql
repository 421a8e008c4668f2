-- The registry of captured tables, the checkpoint row and the batch table. migrations/versions creates them.

-- exists --
SELECT count(*) FROM information_schema.tables WHERE table_schema = {database} AND table_name = {name}

-- tables --
SELECT table_id, schema_wire, fingerprint, state, coalesce(reason, ''), coalesce(fill_cursor, ''), fill_rows,
       fill_estimate, fill_done, sweep_from, number_max
  FROM venus_captured_table WHERE (state = 'RELEASED') = {released} ORDER BY table_id

-- names --
SELECT name FROM venus_captured_table

-- identity --
SELECT facts FROM venus_identity WHERE id = 1

-- store_identity --
INSERT INTO venus_identity (id, facts) VALUES (1, {facts}) ON DUPLICATE KEY UPDATE facts = VALUES(facts)

-- server --
-- MariaDB has no server_uuid. The servers of a replication have different numbers.
SHOW GLOBAL VARIABLES WHERE Variable_name IN ('server_id', 'server_uuid')

-- sign --
-- A digest of everything in the registry that may change for a table. The fingerprint stands for its columns.
SELECT md5(coalesce(group_concat(concat_ws(' ', table_id, fingerprint, state, reason, md5(fill_cursor), fill_rows,
                                           fill_estimate, fill_done, sweep_from) ORDER BY table_id), ''))
  FROM venus_captured_table

-- mark --
-- Changes with every change of the registry that affects capture.
SELECT md5(coalesce(group_concat(concat_ws(' ', table_id, fingerprint, state) ORDER BY table_id), ''))
  FROM venus_captured_table

-- register --
INSERT IGNORE INTO venus_captured_table (table_id, namespace, name, schema_wire, fingerprint, state, fill_rows,
  fill_estimate, fill_done, sweep_from, log_through, number_max)
SELECT {table_id}, {namespace}, {name}, {schema_wire}, {fingerprint}, 'ACTIVE', 0, coalesce(max(table_rows), 0), 0, 0, 0,
       {number_max}
  FROM information_schema.tables WHERE table_schema = {namespace} AND table_name = {name}

-- new_version --
UPDATE venus_captured_table SET schema_wire = {schema_wire}, fingerprint = {fingerprint}, number_max = {number_max}
 WHERE table_id = {table_id}

-- set_state --
UPDATE venus_captured_table SET state = {state}, reason = {reason} WHERE table_id = {table_id}

-- missed --
-- Does nothing if an operator has removed the triggers since capture read the registry.
UPDATE venus_captured_table SET state = 'RESYNC', reason = {reason}
 WHERE table_id = {table_id} AND state NOT IN ('RELEASING', 'RELEASED')

-- restart_fill --
-- If rows of the table may have been shipped, the fill ends in a sweep, which removes the rows that it did not read.
UPDATE venus_captured_table
   SET sweep_from = (SELECT CASE WHEN next_sequence > 1 THEN next_sequence ELSE 0 END FROM venus_checkpoint WHERE id = 1),
       fill_cursor = NULL, fill_done = 0, fill_rows = 0,
       reason = CASE WHEN substr(reason, 1, 13) = 'compared with' THEN NULL ELSE reason END
 WHERE table_id = {table_id}

-- begin_comparison --
-- Applies only before the fill has read a row.
UPDATE venus_captured_table SET reason = {reason}
 WHERE table_id = {table_id} AND state = 'ACTIVE' AND fill_done = 0 AND fill_cursor IS NULL

-- advance_comparison --
-- Applies only if no other fill or comparison was requested since, and no other change was missed.
UPDATE venus_captured_table SET reason = {new_reason}, fill_rows = {rows_done}, fill_done = {done}
 WHERE table_id = {table_id} AND state = 'ACTIVE' AND reason = {known_reason} AND fill_done = 0 AND fill_cursor IS NULL

-- sweep --
-- Forces a sweep even if the source has no record of shipped rows.
UPDATE venus_captured_table SET sweep_from = greatest(sweep_from, 1) WHERE table_id = {table_id}

-- take_up --
-- Rows of a released table that were shipped earlier may have been deleted since, so the table is swept.
UPDATE venus_captured_table
   SET state = 'ACTIVE', reason = NULL, fill_cursor = NULL, fill_done = 0, fill_rows = 0,
       sweep_from = (SELECT next_sequence FROM venus_checkpoint WHERE id = 1)
 WHERE table_id = {table_id}

-- forget_marks --
DELETE FROM venus_innodb_table WHERE table_id IN ({numbers})

-- store_fill --
-- Applies only if the fill is still where this chunk began, so that an operator's restart is kept.
UPDATE venus_captured_table
   SET fill_cursor = {cursor}, fill_rows = {rows_done}, fill_done = {done}, sweep_from = {sweep_from},
       reason = CASE WHEN substr(reason, 1, 13) = 'compared with' THEN NULL ELSE reason END
 WHERE table_id = {table_id} AND coalesce(fill_cursor, '') = {was_cursor} AND fill_rows = {was_rows}
   AND sweep_from = {was_sweep} AND fill_done = 0

-- state --
SELECT epoch, next_sequence, last_batch FROM venus_checkpoint WHERE id = 1

-- settle --
-- The fence: waits for an instance that is committing, and excludes others until the transaction ends.
SELECT epoch, next_sequence, last_batch FROM venus_checkpoint WHERE id = 1 FOR UPDATE

-- raise_epoch --
UPDATE venus_checkpoint SET epoch = {epoch} WHERE id = 1

-- advance --
UPDATE venus_checkpoint SET next_sequence = {next_sequence}, last_batch = {last_batch} WHERE id = 1

-- seal --
-- A negative epoch stops every process from capturing here, until another database hands capture over to this one.
UPDATE venus_checkpoint SET epoch = -epoch WHERE id = 1 AND epoch = {epoch} AND epoch > 0

-- unseal --
UPDATE venus_checkpoint SET epoch = abs(epoch) WHERE id = 1

-- empty_registry --
-- Runs before this database continues another database's registry.
DELETE FROM venus_captured_table

-- empty_batches --
DELETE FROM venus_batch

-- empty_marks --
-- Changes to the tables while this database was a follower require no new fill.
DELETE FROM venus_innodb_table

-- empty_log --
-- Only VENUS has written here while this database was a follower.
DELETE FROM {log}

-- continue_table --
-- A table that another database has captured before. It is not read again, because the broker has its rows.
INSERT INTO venus_captured_table (table_id, namespace, name, schema_wire, fingerprint, state, reason, fill_rows,
                                  fill_estimate, fill_done, sweep_from, log_through, number_max)
VALUES ({table_id}, {namespace}, {name}, {schema_wire}, {fingerprint}, {state}, {reason}, 0, 0, 1, 0, 0, {number_max})

-- continue_at --
UPDATE venus_checkpoint SET epoch = {epoch}, next_sequence = {next_sequence}, last_batch = {last_batch} WHERE id = 1

-- add_batch --
INSERT INTO venus_batch (batch_no, epoch, first_sequence, last_sequence, digest) VALUES {rows}

-- forget_batches --
DELETE FROM venus_batch WHERE batch_no < {below}

-- batches --
SELECT batch_no, epoch, first_sequence, last_sequence, digest FROM venus_batch WHERE batch_no IN ({numbers})

-- beat --
UPDATE venus_heartbeat SET beat_at = CAST(unix_timestamp(now(6)) * 1000000 AS SIGNED) WHERE id = 1

-- beat_again --
-- The heartbeat row was deleted.
INSERT INTO venus_heartbeat (id, beat_at)
SELECT 1, CAST(unix_timestamp(now(6)) * 1000000 AS SIGNED) FROM DUAL
WHERE NOT EXISTS (SELECT * FROM venus_heartbeat)

-- waiting --
SELECT {table_id}, count(*) FROM (SELECT 1 FROM {log}{bound}) AS l

-- may_read --
-- The server denies access to an existing column, and reports a missing one as unknown.
SELECT 1 FROM (SELECT {columns} FROM {table} LIMIT 0) AS nothing

-- may_empty --
-- EXPLAIN needs the privileges of the statement without running it.
EXPLAIN DELETE FROM {log} WHERE seq = 0

-- may_note --
-- The statement of the triggers, which run with the privileges of their definer.
EXPLAIN INSERT INTO {log} (op) VALUES ('I')

-- unwritten --
-- Logs that this user sees but may not insert into.
SELECT DISTINCT table_name FROM information_schema.columns
 WHERE table_schema = {database} AND table_name LIKE 'venus\_l\_%' AND privileges NOT LIKE '%insert%'

-- trigger_shown --
-- The server denies access to an existing trigger. information_schema omits it like a missing one.
SHOW CREATE TRIGGER {trigger}

-- own_checkpoint --
-- The statements that capture runs on VENUS's own tables. EXPLAIN needs the same privileges and does not run them.
UPDATE venus_checkpoint SET epoch = epoch + 1 WHERE id = 0

-- own_batch --
DELETE FROM venus_batch WHERE batch_no < 0

-- own_batch_add --
INSERT INTO venus_batch (batch_no, epoch, first_sequence, last_sequence, digest) SELECT * FROM (
SELECT batch_no, epoch, first_sequence, last_sequence, digest FROM venus_batch LIMIT 0) AS nothing

-- own_registry --
UPDATE venus_captured_table SET state = concat(state, '') WHERE table_id = 0

-- own_heartbeat --
UPDATE venus_heartbeat SET beat_at = beat_at + 1 WHERE id = 0

-- own_heartbeat_add --
INSERT INTO venus_heartbeat (id, beat_at) VALUES (0, 0)

-- own_marks --
DELETE FROM venus_innodb_table WHERE table_id = 0 AND mark = ''

-- own_identity --
INSERT INTO venus_identity (id, facts) SELECT id, facts FROM venus_identity ON DUPLICATE KEY UPDATE facts = VALUES(facts)

-- own_marks_store --
REPLACE INTO venus_innodb_table (table_id, mark) VALUES (0, '')

-- blockers --
-- InnoDB does not show which tables an open transaction has written, so the oldest writer counts for every table. Its
-- times are in the time zone of the system, not of the session.
SELECT coalesce(max(timestampdiff(SECOND, trx_started, convert_tz(utc_timestamp(), '+00:00', 'SYSTEM'))), 0)
  FROM information_schema.innodb_trx WHERE trx_rows_modified > 0

-- holders --
SELECT t.trx_mysql_thread_id, coalesce(p.user, ''), coalesce(p.host, ''), coalesce(p.command, ''), coalesce(p.info, ''),
       t.trx_started
  FROM information_schema.innodb_trx t LEFT JOIN information_schema.processlist p ON p.id = t.trx_mysql_thread_id
 WHERE t.trx_rows_modified > 0 ORDER BY t.trx_started LIMIT 1

-- locking --
-- Sessions with an open transaction, or active in this database: InnoDB does not show who locks a table's definition.
SELECT p.id, coalesce(p.user, ''), coalesce(p.host, ''), coalesce(p.command, ''), coalesce(p.info, ''),
       coalesce(t.trx_started, '')
  FROM information_schema.processlist p LEFT JOIN information_schema.innodb_trx t ON t.trx_mysql_thread_id = p.id
 WHERE p.db = {database} AND p.id <> connection_id()
   AND (t.trx_id IS NOT NULL OR p.command <> 'Sleep' AND coalesce(p.state, '') NOT LIKE 'Waiting%')
 ORDER BY t.trx_started IS NULL, t.trx_started LIMIT 3

-- known_marks --
SELECT table_id, mark FROM venus_innodb_table

-- store_mark --
REPLACE INTO venus_innodb_table (table_id, mark) VALUES ({table_id}, {mark})

-- claimed_numbers --
CREATE TEMPORARY TABLE IF NOT EXISTS venus_claimed (seq BIGINT NOT NULL PRIMARY KEY) ENGINE=InnoDB

-- claim --
INSERT INTO venus_claimed (seq) VALUES {rows}

-- delete_claimed --
-- One index lookup for each number: a range or a list may become a scan, which would wait for every uncommitted row.
DELETE l FROM venus_claimed STRAIGHT_JOIN {log} AS l ON l.seq = venus_claimed.seq

-- forget_claimed --
DELETE FROM venus_claimed

-- row_counts --
-- InnoDB's estimates from a few pages. MySQL caches these figures for up to a day.
SELECT c.table_id, coalesce(t.table_rows, 0)
  FROM venus_captured_table c
  JOIN information_schema.tables t ON t.table_schema = c.namespace AND t.table_name = c.name
 WHERE c.state <> 'RELEASED'
