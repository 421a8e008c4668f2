-- VENUS's own tables at a MariaDB or MySQL target: its position, the states of tables, refused changes. {own} is their
-- prefix. The blocks have the names of those of the PostgreSQL target.

-- try_lock --
SELECT coalesce(GET_LOCK(concat('venus ', md5(concat(database(), '/', %(group)s))), 0), 0)

-- clock --
-- Ages of times that the target's clock has set are measured by the same clock.
SELECT CAST(timestampdiff(MICROSECOND, '1970-01-01', utc_timestamp(6)) AS SIGNED)

-- position --
SELECT `offset`, epoch, last_sequence, control, paused, captured_at, committed_at, applied_at, heartbeat_at, note,
    compared, rows_identity,
    EXISTS (SELECT 1 FROM {own}load_job j WHERE j.group_name = a.group_name AND j.state = 'following')
FROM {own}applied a WHERE group_name = %(group)s

-- hold_position --
-- First statement of every larger transaction: no other one moves the offset or changes a state until it ends.
SELECT `offset`, control FROM {own}applied WHERE group_name = %(group)s FOR UPDATE

-- set_position --
INSERT INTO {own}applied (group_name, business, `offset`, epoch, last_sequence, applied_at, note, counted_from,
    rows_identity)
VALUES (%(group)s, %(business)s, %(offset)s, %(epoch)s, %(sequence)s, utc_timestamp(6), '', %(offset)s, %(rows)s)
ON DUPLICATE KEY UPDATE `offset` = %(offset)s, epoch = %(epoch)s, last_sequence = %(sequence)s,
    applied_at = utc_timestamp(6), control = control + 1, counted_from = %(offset)s, rows_other = 0,
    rows_repaired = 0, rows_identity = %(rows)s

-- set_rows --
-- Rows identity of the broker set that was read up to the applied offset.
UPDATE {own}applied SET rows_identity = %(rows)s WHERE group_name = %(group)s

-- start_over --
-- Moves to the cut of a snapshot. The full data contains the changes in between, and every table becomes equal to it.
UPDATE {own}applied SET rows_repaired = rows_repaired + %(offset)s - `offset`, `offset` = %(offset)s, epoch = %(epoch)s,
    last_sequence = %(sequence)s, rows_identity = %(rows)s, control = control + 1 WHERE group_name = %(group)s

-- set_compared --
-- Increments control, so that the loop reads the new value.
UPDATE {own}applied SET compared = %(compared)s, control = control + 1 WHERE group_name = %(group)s

-- row_counts --
-- Approximate row counts, from the server's statistics.
SELECT t.table_id, CAST(coalesce(i.table_rows, 0) AS SIGNED)
FROM {own}target_table t JOIN information_schema.tables i
    ON i.table_schema = CONVERT(t.namespace USING utf8mb3) AND i.table_name = CONVERT(t.name USING utf8mb3)
WHERE t.group_name = %(group)s

-- remove_position --
DELETE FROM {own}applied WHERE group_name = %(group)s

-- execute_advance --
-- The transaction has already locked this row and found the expected values in it.
UPDATE {own}applied SET `offset` = %(n3)s, epoch = %(n4)s, last_sequence = %(n5)s,
    captured_at = coalesce('1970-01-01' + INTERVAL %(n6)s MICROSECOND, captured_at),
    committed_at = coalesce('1970-01-01' + INTERVAL %(n7)s MICROSECOND, committed_at), applied_at = utc_timestamp(6),
    heartbeat_at = coalesce('1970-01-01' + INTERVAL %(n8)s MICROSECOND, heartbeat_at),
    rows_other = rows_other + %(n9)s
WHERE group_name = %(group)s AND `offset` = %(n1)s AND control = %(n2)s

-- unaccounted --
-- The transaction that moves the applied offset counts the fate of every change below it; a difference means lost
-- changes. A table that follows holds nothing back, so changes that it still counts as held were lost.
SELECT CAST(a.`offset` - a.counted_from - a.rows_other - a.rows_repaired - coalesce((
    SELECT sum(t.rows_applied + t.rows_quarantined + t.rows_skipped + IF(t.state = 'ACTIVE', 0, t.rows_held))
    FROM {own}target_table t WHERE t.group_name = a.group_name), 0) AS SIGNED)
FROM {own}applied a WHERE a.group_name = %(group)s

-- set_paused --
UPDATE {own}applied SET paused = %(paused)s WHERE group_name = %(group)s

-- raise_control --
UPDATE {own}applied SET control = control + 1 WHERE group_name = %(group)s

-- set_note --
UPDATE {own}applied SET note = %(note)s WHERE group_name = %(group)s

-- tables --
SELECT table_id, schema_version, namespace, name, source_name, state, held_from, reason,
    rows_applied, rows_quarantined, rows_skipped, rows_held, counted_from, created,
    predicate, predicate_before, rows_brought, rows_removed
FROM {own}target_table t WHERE group_name = %(group)s AND (%(table_id)s IS NULL OR table_id = %(table_id)s)
ORDER BY table_id

-- is_newest --
SELECT 1

-- put_table --
INSERT INTO {own}target_table (group_name, table_id, schema_version, namespace, name, source_name, state, reason,
    counted_from, created, predicate)
VALUES (%(group)s, %(table_id)s, %(version)s, %(namespace)s, %(name)s, %(source_name)s, %(state)s, '', %(offset)s,
    %(created)s, %(predicate)s)
ON DUPLICATE KEY UPDATE schema_version = %(version)s, namespace = %(namespace)s, name = %(name)s,
    source_name = %(source_name)s, state = %(state)s, held_from = NULL, reason = '', rows_applied = 0,
    rows_quarantined = 0, rows_skipped = 0, rows_held = 0, counted_from = %(offset)s, created = %(created)s,
    predicate = %(predicate)s, predicate_before = NULL, rows_brought = 0, rows_removed = 0;
DELETE FROM {own}intent WHERE group_name = %(group)s AND table_id = %(table_id)s

-- set_predicate --
-- Keeps the first previous predicate until the rows agree with the new one, even if it changes again.
UPDATE {own}target_table SET predicate = %(predicate)s, predicate_before = coalesce(predicate_before, %(before)s),
    rows_brought = 0, rows_removed = 0
WHERE group_name = %(group)s AND table_id = %(table_id)s

-- end_predicate --
UPDATE {own}target_table SET predicate_before = NULL, rows_brought = %(brought)s, rows_removed = %(removed)s
WHERE group_name = %(group)s AND table_id = %(table_id)s AND predicate_before IS NOT NULL

-- count --
UPDATE {own}target_table SET rows_applied = rows_applied + %(applied)s,
    rows_quarantined = rows_quarantined + %(quarantined)s, rows_skipped = rows_skipped + %(skipped)s,
    rows_held = rows_held + %(held)s
WHERE group_name = %(group)s AND table_id = %(table_id)s

-- execute_count --
UPDATE {own}target_table SET rows_applied = rows_applied + %(n2)s, rows_quarantined = rows_quarantined + %(n3)s,
    rows_skipped = rows_skipped + %(n4)s, rows_held = rows_held + %(n5)s
WHERE group_name = %(group)s AND table_id = %(n1)s

-- put_held --
INSERT INTO {own}held (group_name, table_id, `offset`, `rows`)
VALUES (%(group)s, %(table_id)s, %(offset)s, %(rows)s) ON DUPLICATE KEY UPDATE `rows` = %(rows)s

-- count_contained --
-- The full data contains the held changes before the cut of a resync; only those behind it still wait.
UPDATE {own}target_table t JOIN (SELECT coalesce(sum(h.`rows`), 0) AS n FROM {own}held h
    WHERE h.group_name = %(group)s AND h.table_id = %(table_id)s AND h.`offset` >= %(offset)s) behind
SET t.rows_applied = t.rows_applied + t.rows_held - behind.n, t.rows_held = behind.n
WHERE t.group_name = %(group)s AND t.table_id = %(table_id)s

-- settle_account --
-- After the last table of a resync of all tables, the changes that were missing at its request are no longer missing.
UPDATE {own}applied a JOIN {own}sweep s ON s.group_name = a.group_name AND s.purpose = 'account'
    LEFT JOIN {own}sweep r ON r.group_name = a.group_name AND r.purpose = 'resync'
SET a.rows_repaired = a.rows_repaired + s.from_offset WHERE a.group_name = %(group)s AND r.group_name IS NULL;
DELETE s FROM {own}sweep s LEFT JOIN {own}sweep r ON r.group_name = s.group_name AND r.purpose = 'resync'
WHERE s.group_name = %(group)s AND s.purpose = 'account' AND r.group_name IS NULL

-- end_held --
DELETE FROM {own}held WHERE group_name = %(group)s AND table_id = %(table_id)s

-- set_state --
UPDATE {own}target_table SET state = %(state)s, held_from = %(held_from)s, reason = %(reason)s
WHERE group_name = %(group)s AND table_id = %(table_id)s

-- set_held --
UPDATE {own}target_table SET held_from = %(held_from)s WHERE group_name = %(group)s AND table_id = %(table_id)s

-- set_version --
UPDATE {own}target_table SET schema_version = %(version)s, reason = %(reason)s
WHERE group_name = %(group)s AND table_id = %(table_id)s;
DELETE FROM {own}intent WHERE group_name = %(group)s AND table_id = %(table_id)s

-- set_loaded --
UPDATE {own}target_table SET state = 'ACTIVE', held_from = NULL, counted_from = %(offset)s
WHERE group_name = %(group)s AND state = 'LOADING'

-- end_first_load --
UPDATE {own}target_table SET state = 'ACTIVE' WHERE group_name = %(group)s AND state = 'LOADING'

-- schemas --
SELECT schema_wire FROM {own}target_schema WHERE group_name = %(group)s

-- changed_schemas --
-- Every version of the tables that have more than one.
SELECT schema_wire FROM {own}target_schema s WHERE group_name = %(group)s
    AND (SELECT count(*) FROM {own}target_schema o WHERE o.group_name = s.group_name AND o.table_id = s.table_id) > 1
ORDER BY table_id, version

-- put_schema --
INSERT INTO {own}target_schema (group_name, table_id, version, schema_wire)
VALUES (%(group)s, %(table_id)s, %(version)s, %(wire)s) ON DUPLICATE KEY UPDATE schema_wire = %(wire)s

-- forget_tables --
DELETE FROM {own}target_table WHERE group_name = %(group)s

-- forget_schemas --
DELETE FROM {own}target_schema WHERE group_name = %(group)s

-- forget_quarantine --
DELETE FROM {own}quarantine WHERE group_name = %(group)s

-- forget_sweeps --
DELETE FROM {own}sweep WHERE group_name = %(group)s

-- forget_held --
DELETE FROM {own}held WHERE group_name = %(group)s

-- sweeps --
SELECT table_id, purpose, from_offset FROM {own}sweep WHERE group_name = %(group)s

-- put_sweep --
INSERT INTO {own}sweep (group_name, table_id, purpose, from_offset)
VALUES (%(group)s, %(table_id)s, %(purpose)s, %(offset)s) ON DUPLICATE KEY UPDATE from_offset = %(offset)s

-- end_sweep --
DELETE FROM {own}sweep WHERE group_name = %(group)s AND table_id = %(table_id)s AND purpose = %(purpose)s

-- parked_keys --
-- The first change of each key that waits in quarantine: later changes of the key are parked behind it.
SELECT table_id, record_id, min(`offset`) FROM {own}quarantine
WHERE group_name = %(group)s AND state = 'PARKED' GROUP BY table_id, record_id

-- skipped_changes --
-- Changes that an operator skipped while their table was halted; the catch-up of the table reads them again.
SELECT q.table_id, q.record_id, q.`offset` FROM {own}quarantine q
JOIN {own}target_table t ON t.group_name = q.group_name AND t.table_id = q.table_id
WHERE q.group_name = %(group)s AND q.state = 'SKIPPED' AND q.`offset` >= t.held_from

-- quarantine --
INSERT INTO {own}quarantine (group_name, business, table_id, schema_version, record_id, record_hash, `key`, `offset`,
    sequence, `sqlstate`, message, row_message, is_deleted, state, reason)
VALUES (%(group)s, %(business)s, %(table_id)s, %(version)s, %(record_id)s, unhex(sha2(%(record_id)s, 256)), %(key)s,
    %(offset)s, %(sequence)s, %(sqlstate)s, %(message)s, %(row_message)s, %(is_deleted)s, %(state)s, '')
ON DUPLICATE KEY UPDATE `sqlstate` = %(sqlstate)s, message = %(message)s, state = %(state)s, decided_at = NULL

-- count_superseded --
-- Waiting changes that the full data contains count as applied.
UPDATE {own}target_table t JOIN (SELECT count(*) AS n FROM {own}quarantine q WHERE q.group_name = %(group)s
    AND q.table_id = %(table_id)s AND q.state = 'PARKED' AND q.`offset` >= 0 AND q.`offset` < %(offset)s) waiting
SET t.rows_applied = t.rows_applied + waiting.n, t.rows_quarantined = t.rows_quarantined - waiting.n
WHERE t.group_name = %(group)s AND t.table_id = %(table_id)s

-- list_quarantine --
SELECT q.id, q.table_id, t.source_name, q.schema_version, q.record_id, q.`key`, q.`offset`, q.sequence, q.`sqlstate`,
    q.message, q.row_message, q.is_deleted, q.state, q.reason, q.created_at, q.decided_at
FROM {own}quarantine q JOIN {own}target_table t ON t.group_name = q.group_name AND t.table_id = q.table_id
WHERE q.group_name = %(group)s AND (%(everything)s OR q.state IN ('HALTED', 'PARKED')) ORDER BY q.`offset`, q.id

-- open_by_table --
SELECT table_id, count(*) FROM {own}quarantine WHERE group_name = %(group)s AND state IN ('HALTED', 'PARKED')
GROUP BY table_id

-- decide_quarantine --
UPDATE {own}quarantine SET state = %(state)s, reason = %(reason)s, decided_at = utc_timestamp(6)
WHERE group_name = %(group)s AND id IN %(ids)s

-- clear_halted --
UPDATE {own}quarantine SET state = 'APPLIED', decided_at = utc_timestamp(6)
WHERE group_name = %(group)s AND table_id = %(table_id)s AND state = 'HALTED'

-- supersede_quarantine --
UPDATE {own}quarantine SET state = 'SUPERSEDED', reason = %(reason)s, decided_at = utc_timestamp(6)
WHERE group_name = %(group)s AND table_id = %(table_id)s AND state IN ('HALTED', 'PARKED') AND `offset` < %(offset)s

-- clear_quarantine --
-- Examines the next changes in the order of their arrival and deletes those that were decided long ago, which are kept
-- for operators only. Keeps a skipped change that the catch-up of its table will read again. Returns the last examined
-- id (NULL at the end) and the number of deleted changes.
SET @venus_last = (SELECT max(id) FROM (
    SELECT id FROM {own}quarantine WHERE id > %(after)s ORDER BY id LIMIT %(rows_max)s) piece);
DELETE FROM {own}quarantine WHERE id > %(after)s AND id <= @venus_last AND group_name = %(group)s
    AND state IN ('APPLIED', 'SKIPPED', 'SUPERSEDED')
    AND timestampdiff(SECOND, decided_at, utc_timestamp(6)) > %(keep_s)s
    AND NOT EXISTS (SELECT 1 FROM {own}target_table t WHERE t.group_name = %(group)s
        AND t.table_id = {own}quarantine.table_id AND t.held_from <= {own}quarantine.`offset`);
SELECT @venus_last, row_count()

-- job --
SELECT load_id, state, snapshot FROM {own}load_job WHERE group_name = %(group)s

-- loading_rows --
-- The rows of a load that has not ended: those of its splits, and the changes that followed them.
SELECT CAST(coalesce((SELECT sum(m.`rows`) FROM {own}load_manifest m WHERE m.load_id = j.load_id), 0)
    + coalesce((SELECT sum(t.rows_applied) FROM {own}target_table t WHERE t.group_name = j.group_name), 0) AS SIGNED)
FROM {own}load_job j WHERE j.group_name = %(group)s AND j.state <> 'done'

-- put_job --
INSERT INTO {own}load_job (group_name, load_id, state, snapshot)
VALUES (%(group)s, %(load_id)s, %(state)s, %(snapshot)s)
ON DUPLICATE KEY UPDATE load_id = %(load_id)s, state = %(state)s, snapshot = %(snapshot)s,
    started_at = utc_timestamp(6), ended_at = NULL

-- set_job --
UPDATE {own}load_job SET state = %(state)s, ended_at = IF(%(state)s = 'done', utc_timestamp(6), NULL)
WHERE group_name = %(group)s

-- claim_split --
-- A concurrent attempt waits here until this one has ended, and then has nothing to do.
INSERT IGNORE INTO {own}load_manifest (load_id, split, table_id, attempt)
VALUES (%(load_id)s, %(split)s, %(table_id)s, %(attempt)s)

-- loaded_split --
SELECT `rows`, parked, outside, digest FROM {own}load_manifest WHERE load_id = %(load_id)s AND split = %(split)s

-- record_split --
UPDATE {own}load_manifest SET `rows` = %(rows)s, parked = %(parked)s, outside = %(outside)s, digest = %(digest)s,
    done_at = utc_timestamp(6) WHERE load_id = %(load_id)s AND split = %(split)s

-- manifest --
SELECT split, table_id, `rows`, parked, outside, digest FROM {own}load_manifest WHERE load_id = %(load_id)s

-- load_progress --
SELECT CAST(coalesce(sum(m.`rows` + m.parked), 0) AS SIGNED), count(*), 0
FROM {own}load_manifest m WHERE m.load_id = %(load_id)s

-- forget_manifest --
DELETE m FROM {own}load_manifest m JOIN {own}load_job j ON m.load_id = j.load_id WHERE j.group_name = %(group)s

-- put_intent --
INSERT INTO {own}intent (group_name, table_id, name) VALUES (%(group)s, %(table_id)s, %(name)s)
ON DUPLICATE KEY UPDATE name = %(name)s

-- intents --
SELECT table_id, name FROM {own}intent WHERE group_name = %(group)s

-- end_intent --
DELETE FROM {own}intent WHERE group_name = %(group)s AND table_id = %(table_id)s
