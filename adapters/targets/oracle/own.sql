-- VENUS's own tables at an Oracle target: its position, the states of tables, refused changes. The blocks have the names
-- of those of the PostgreSQL target. `ELSE INSERT` runs if the UPDATE before it has found no row (session.py).

-- clock --
-- Ages of times that the target's clock has set are measured by the same clock.
SELECT {now} FROM DUAL

-- position --
SELECT applied_offset, epoch, last_sequence, control, paused, captured_at, committed_at, applied_at, heartbeat_at, note,
    compared, rows_identity,
    (SELECT COUNT(*) FROM VENUS_LOAD_JOB j WHERE j.group_name = a.group_name AND j.state = 'following')
FROM VENUS_APPLIED a WHERE group_name = :p_group

-- hold_position --
-- First statement of every larger transaction: no other one moves the offset or changes a state until it ends.
SELECT applied_offset, control FROM VENUS_APPLIED WHERE group_name = :p_group FOR UPDATE

-- set_position --
UPDATE VENUS_APPLIED SET applied_offset = :p_offset, epoch = :p_epoch, last_sequence = :p_sequence,
    applied_at = {now}, control = control + 1, counted_from = :p_offset, rows_other = 0, rows_repaired = 0,
    rows_identity = :p_rows WHERE group_name = :p_group;
ELSE INSERT INTO VENUS_APPLIED (group_name, business, applied_offset, epoch, last_sequence, applied_at, counted_from,
    rows_identity)
VALUES (:p_group, :p_business, :p_offset, :p_epoch, :p_sequence, {now}, :p_offset, :p_rows)

-- set_rows --
-- Rows identity of the broker set that was read up to the applied offset.
UPDATE VENUS_APPLIED SET rows_identity = :p_rows WHERE group_name = :p_group

-- start_over --
-- Moves to the cut of a snapshot. The full data contains the changes in between, and every table becomes equal to it.
UPDATE VENUS_APPLIED SET rows_repaired = rows_repaired + :p_offset - applied_offset, applied_offset = :p_offset,
    epoch = :p_epoch, last_sequence = :p_sequence, rows_identity = :p_rows, control = control + 1 WHERE group_name = :p_group

-- set_compared --
-- Increments control, so that the loop reads the new value.
UPDATE VENUS_APPLIED SET compared = :p_compared, control = control + 1 WHERE group_name = :p_group

-- row_counts --
-- Approximate row counts, from the last statistics.
SELECT t.table_id, coalesce(u.num_rows, 0) FROM VENUS_TARGET_TABLE t JOIN USER_TABLES u ON u.table_name = t.name
WHERE t.group_name = :p_group

-- remove_position --
DELETE FROM VENUS_APPLIED WHERE group_name = :p_group

-- execute_advance --
-- The transaction has already locked this row and found the expected values in it.
UPDATE VENUS_APPLIED SET applied_offset = :p_n3, epoch = :p_n4, last_sequence = :p_n5,
    captured_at = coalesce(:p_n6, captured_at),
    committed_at = coalesce(:p_n7, committed_at), applied_at = {now},
    heartbeat_at = coalesce(:p_n8, heartbeat_at),
    rows_other = rows_other + :p_n9
WHERE group_name = :p_group AND applied_offset = :p_n1 AND control = :p_n2

-- unaccounted --
-- The transaction that moves the applied offset counts the fate of every change below it; a difference means lost
-- changes. A table that follows holds nothing back, so changes that it still counts as held were lost.
SELECT a.applied_offset - a.counted_from - a.rows_other - a.rows_repaired - coalesce((
    SELECT sum(t.rows_applied + t.rows_quarantined + t.rows_skipped
        + CASE t.state WHEN 'ACTIVE' THEN 0 ELSE t.rows_held END)
    FROM VENUS_TARGET_TABLE t WHERE t.group_name = a.group_name), 0)
FROM VENUS_APPLIED a WHERE a.group_name = :p_group

-- set_paused --
UPDATE VENUS_APPLIED SET paused = :p_paused WHERE group_name = :p_group

-- raise_control --
UPDATE VENUS_APPLIED SET control = control + 1 WHERE group_name = :p_group

-- set_note --
UPDATE VENUS_APPLIED SET note = :p_note WHERE group_name = :p_group

-- tables --
SELECT table_id, schema_version, namespace, name, source_name, state, held_from, reason,
    rows_applied, rows_quarantined, rows_skipped, rows_held, counted_from, created,
    predicate, predicate_before, rows_brought, rows_removed
FROM VENUS_TARGET_TABLE t WHERE group_name = :p_group AND (:p_table_id IS NULL OR table_id = :p_table_id)
ORDER BY table_id

-- is_newest --
SELECT 1 FROM DUAL

-- put_table --
DELETE FROM VENUS_TARGET_TABLE WHERE group_name = :p_group AND table_id = :p_table_id;
INSERT INTO VENUS_TARGET_TABLE (group_name, table_id, schema_version, namespace, name, source_name, state,
    counted_from, created, predicate)
VALUES (:p_group, :p_table_id, :p_version, :p_namespace, :p_name, :p_source_name, :p_state, :p_offset, :p_created,
    :p_predicate);
DELETE FROM VENUS_INTENT WHERE group_name = :p_group AND table_id = :p_table_id

-- set_predicate --
-- Keeps the first previous predicate until the rows agree with the new one, even if it changes again.
UPDATE VENUS_TARGET_TABLE SET predicate = :p_predicate, rows_brought = 0, rows_removed = 0
WHERE group_name = :p_group AND table_id = :p_table_id;
UPDATE VENUS_TARGET_TABLE SET predicate_before = '=' || :p_before
WHERE group_name = :p_group AND table_id = :p_table_id AND predicate_before IS NULL

-- end_predicate --
UPDATE VENUS_TARGET_TABLE SET predicate_before = NULL, rows_brought = :p_brought, rows_removed = :p_removed
WHERE group_name = :p_group AND table_id = :p_table_id AND predicate_before IS NOT NULL

-- count --
UPDATE VENUS_TARGET_TABLE SET rows_applied = rows_applied + :p_applied,
    rows_quarantined = rows_quarantined + :p_quarantined, rows_skipped = rows_skipped + :p_skipped,
    rows_held = rows_held + :p_held
WHERE group_name = :p_group AND table_id = :p_table_id

-- execute_count --
UPDATE VENUS_TARGET_TABLE SET rows_applied = rows_applied + :p_n2, rows_quarantined = rows_quarantined + :p_n3,
    rows_skipped = rows_skipped + :p_n4, rows_held = rows_held + :p_n5
WHERE group_name = :p_group AND table_id = :p_n1

-- put_held --
UPDATE VENUS_HELD SET row_count = :p_rows
WHERE group_name = :p_group AND table_id = :p_table_id AND change_offset = :p_offset;
ELSE INSERT INTO VENUS_HELD (group_name, table_id, change_offset, row_count)
VALUES (:p_group, :p_table_id, :p_offset, :p_rows)

-- count_contained --
-- The full data contains the held changes before the cut of a resync; only those behind it still wait.
UPDATE VENUS_TARGET_TABLE SET rows_applied = rows_applied + rows_held - (SELECT coalesce(sum(h.row_count), 0) FROM VENUS_HELD h
    WHERE h.group_name = :p_group AND h.table_id = :p_table_id AND h.change_offset >= :p_offset)
WHERE group_name = :p_group AND table_id = :p_table_id;
UPDATE VENUS_TARGET_TABLE SET rows_held = (SELECT coalesce(sum(h.row_count), 0) FROM VENUS_HELD h
    WHERE h.group_name = :p_group AND h.table_id = :p_table_id AND h.change_offset >= :p_offset)
WHERE group_name = :p_group AND table_id = :p_table_id

-- settle_account --
-- After the last table of a resync of all tables, the changes that were missing at its request are no longer missing.
UPDATE VENUS_APPLIED SET rows_repaired = rows_repaired + (SELECT coalesce(sum(s.from_offset), 0) FROM VENUS_SWEEP s
    WHERE s.group_name = :p_group AND s.purpose = 'account')
WHERE group_name = :p_group
    AND NOT EXISTS (SELECT 1 FROM VENUS_SWEEP r WHERE r.group_name = :p_group AND r.purpose = 'resync');
DELETE FROM VENUS_SWEEP WHERE group_name = :p_group AND purpose = 'account'
    AND NOT EXISTS (SELECT 1 FROM VENUS_SWEEP r WHERE r.group_name = :p_group AND r.purpose = 'resync')

-- end_held --
DELETE FROM VENUS_HELD WHERE group_name = :p_group AND table_id = :p_table_id

-- set_state --
UPDATE VENUS_TARGET_TABLE SET state = :p_state, held_from = :p_held_from, reason = :p_reason
WHERE group_name = :p_group AND table_id = :p_table_id

-- set_held --
UPDATE VENUS_TARGET_TABLE SET held_from = :p_held_from WHERE group_name = :p_group AND table_id = :p_table_id

-- set_version --
UPDATE VENUS_TARGET_TABLE SET schema_version = :p_version, reason = :p_reason
WHERE group_name = :p_group AND table_id = :p_table_id;
DELETE FROM VENUS_INTENT WHERE group_name = :p_group AND table_id = :p_table_id

-- set_loaded --
UPDATE VENUS_TARGET_TABLE SET state = 'ACTIVE', held_from = NULL, counted_from = :p_offset
WHERE group_name = :p_group AND state = 'LOADING'

-- end_first_load --
UPDATE VENUS_TARGET_TABLE SET state = 'ACTIVE' WHERE group_name = :p_group AND state = 'LOADING'

-- schemas --
SELECT schema_wire FROM VENUS_TARGET_SCHEMA WHERE group_name = :p_group

-- changed_schemas --
-- Every version of the tables that have more than one.
SELECT schema_wire FROM VENUS_TARGET_SCHEMA s WHERE group_name = :p_group
    AND (SELECT count(*) FROM VENUS_TARGET_SCHEMA o WHERE o.group_name = s.group_name AND o.table_id = s.table_id) > 1
ORDER BY table_id, version

-- put_schema --
UPDATE VENUS_TARGET_SCHEMA SET schema_wire = :p_wire
WHERE group_name = :p_group AND table_id = :p_table_id AND version = :p_version;
ELSE INSERT INTO VENUS_TARGET_SCHEMA (group_name, table_id, version, schema_wire)
VALUES (:p_group, :p_table_id, :p_version, :p_wire)

-- forget_tables --
DELETE FROM VENUS_TARGET_TABLE WHERE group_name = :p_group

-- forget_schemas --
DELETE FROM VENUS_TARGET_SCHEMA WHERE group_name = :p_group

-- forget_quarantine --
DELETE FROM VENUS_QUARANTINE WHERE group_name = :p_group

-- forget_sweeps --
DELETE FROM VENUS_SWEEP WHERE group_name = :p_group

-- forget_held --
DELETE FROM VENUS_HELD WHERE group_name = :p_group

-- sweeps --
SELECT table_id, purpose, from_offset FROM VENUS_SWEEP WHERE group_name = :p_group

-- put_sweep --
UPDATE VENUS_SWEEP SET from_offset = :p_offset
WHERE group_name = :p_group AND table_id = :p_table_id AND purpose = :p_purpose;
ELSE INSERT INTO VENUS_SWEEP (group_name, table_id, purpose, from_offset)
VALUES (:p_group, :p_table_id, :p_purpose, :p_offset)

-- end_sweep --
DELETE FROM VENUS_SWEEP WHERE group_name = :p_group AND table_id = :p_table_id AND purpose = :p_purpose

-- parked_keys --
-- The first change of each key that waits in quarantine: later changes of the key are parked behind it. GROUP BY takes
-- no LOB.
SELECT q.table_id, q.record_id, q.change_offset FROM VENUS_QUARANTINE q
WHERE q.group_name = :p_group AND q.state = 'PARKED' AND q.change_offset = (
    SELECT min(f.change_offset) FROM VENUS_QUARANTINE f WHERE f.group_name = q.group_name
        AND f.table_id = q.table_id AND f.record_hash = q.record_hash AND f.state = 'PARKED')

-- skipped_changes --
-- Changes that an operator skipped while their table was halted; the catch-up of the table reads them again.
SELECT q.table_id, q.record_id, q.change_offset FROM VENUS_QUARANTINE q
JOIN VENUS_TARGET_TABLE t ON t.group_name = q.group_name AND t.table_id = q.table_id
WHERE q.group_name = :p_group AND q.state = 'SKIPPED' AND q.change_offset >= t.held_from

-- quarantine --
UPDATE VENUS_QUARANTINE SET sql_state = :p_sqlstate, message = :p_message, state = :p_state, decided_at = NULL
WHERE group_name = :p_group AND table_id = :p_table_id AND change_offset = :p_offset
    AND record_hash = :p_record_hash;
ELSE INSERT INTO VENUS_QUARANTINE (id, group_name, business, table_id, schema_version, change_offset, change_sequence,
    sql_state, is_deleted, state, created_at, record_hash, record_id, record_key, message, row_message)
VALUES (VENUS_QUARANTINE_SEQ.NEXTVAL, :p_group, :p_business, :p_table_id, :p_version, :p_offset, :p_sequence,
    :p_sqlstate, :p_is_deleted, :p_state, {now}, :p_record_hash, :p_record_id, :p_key, :p_message, :p_row_message)

-- count_superseded --
-- Waiting changes that the full data contains count as applied.
UPDATE VENUS_TARGET_TABLE SET rows_applied = rows_applied + (SELECT count(*) FROM VENUS_QUARANTINE q
    WHERE q.group_name = :p_group AND q.table_id = :p_table_id AND q.state = 'PARKED'
        AND q.change_offset >= 0 AND q.change_offset < :p_offset),
    rows_quarantined = rows_quarantined - (SELECT count(*) FROM VENUS_QUARANTINE q
    WHERE q.group_name = :p_group AND q.table_id = :p_table_id AND q.state = 'PARKED'
        AND q.change_offset >= 0 AND q.change_offset < :p_offset)
WHERE group_name = :p_group AND table_id = :p_table_id

-- list_quarantine --
SELECT q.id, q.table_id, t.source_name, q.schema_version, q.record_id, q.record_key, q.change_offset,
    q.change_sequence, q.sql_state, q.message, q.row_message, q.is_deleted, q.state, q.reason, q.created_at, q.decided_at
FROM VENUS_QUARANTINE q JOIN VENUS_TARGET_TABLE t ON t.group_name = q.group_name AND t.table_id = q.table_id
WHERE q.group_name = :p_group AND (:p_everything = 1 OR q.state IN ('HALTED', 'PARKED'))
ORDER BY q.change_offset, q.id

-- open_by_table --
SELECT table_id, count(*) FROM VENUS_QUARANTINE WHERE group_name = :p_group AND state IN ('HALTED', 'PARKED')
GROUP BY table_id

-- decide_quarantine --
UPDATE VENUS_QUARANTINE SET state = :p_state, reason = :p_reason, decided_at = {now}
WHERE group_name = :p_group AND id = :p_id

-- clear_halted --
UPDATE VENUS_QUARANTINE SET state = 'APPLIED', decided_at = {now}
WHERE group_name = :p_group AND table_id = :p_table_id AND state = 'HALTED'

-- supersede_quarantine --
UPDATE VENUS_QUARANTINE SET state = 'SUPERSEDED', reason = :p_reason, decided_at = {now}
WHERE group_name = :p_group AND table_id = :p_table_id AND state IN ('HALTED', 'PARKED') AND change_offset < :p_offset

-- last_of_piece --
-- The last of the next changes in the order of their arrival, which clear_quarantine then examines.
SELECT max(id) FROM (SELECT id FROM VENUS_QUARANTINE WHERE id > :p_after ORDER BY id) piece
WHERE ROWNUM <= :p_rows_max

-- clear_quarantine --
-- Deletes changes that were decided long ago, which are kept for operators only. Keeps a skipped change that the
-- catch-up of its table will read again.
DELETE FROM VENUS_QUARANTINE q WHERE q.id > :p_after AND q.id <= :p_last AND q.group_name = :p_group
    AND q.state IN ('APPLIED', 'SKIPPED', 'SUPERSEDED') AND {now} - q.decided_at > :p_keep_s * 1000000
    AND NOT EXISTS (SELECT 1 FROM VENUS_TARGET_TABLE t WHERE t.group_name = :p_group
        AND t.table_id = q.table_id AND t.held_from <= q.change_offset)

-- job --
SELECT load_id, state, snapshot FROM VENUS_LOAD_JOB WHERE group_name = :p_group

-- loading_rows --
-- The rows of a load that has not ended: those of its splits, and the changes that followed them.
SELECT coalesce((SELECT sum(m.row_count) FROM VENUS_LOAD_MANIFEST m WHERE m.load_id = j.load_id), 0)
    + coalesce((SELECT sum(t.rows_applied) FROM VENUS_TARGET_TABLE t WHERE t.group_name = j.group_name), 0)
FROM VENUS_LOAD_JOB j WHERE j.group_name = :p_group AND j.state <> 'done'

-- put_job --
DELETE FROM VENUS_LOAD_JOB WHERE group_name = :p_group;
INSERT INTO VENUS_LOAD_JOB (group_name, load_id, state, started_at, snapshot)
VALUES (:p_group, :p_load_id, :p_state, {now}, :p_snapshot)

-- set_job --
UPDATE VENUS_LOAD_JOB SET state = :p_state, ended_at = CASE WHEN :p_state = 'done' THEN {now} END
WHERE group_name = :p_group

-- claim_split --
-- A concurrent attempt waits at the key until this one has ended, and then has nothing to do.
INSERT /*+ IGNORE_ROW_ON_DUPKEY_INDEX(VENUS_LOAD_MANIFEST, VENUS_LOAD_MANIFEST_PK) */
INTO VENUS_LOAD_MANIFEST (load_id, split, table_id, attempt) VALUES (:p_load_id, :p_split, :p_table_id, :p_attempt)

-- loaded_split --
SELECT row_count, parked, outside, digest FROM VENUS_LOAD_MANIFEST WHERE load_id = :p_load_id AND split = :p_split

-- record_split --
UPDATE VENUS_LOAD_MANIFEST SET row_count = :p_rows, parked = :p_parked, outside = :p_outside, digest = :p_digest,
    done_at = {now} WHERE load_id = :p_load_id AND split = :p_split

-- manifest --
SELECT split, table_id, row_count, parked, outside, digest FROM VENUS_LOAD_MANIFEST WHERE load_id = :p_load_id

-- load_progress --
SELECT coalesce(sum(m.row_count + m.parked), 0), count(*), 0 FROM VENUS_LOAD_MANIFEST m WHERE m.load_id = :p_load_id

-- forget_manifest --
DELETE FROM VENUS_LOAD_MANIFEST WHERE load_id IN (SELECT load_id FROM VENUS_LOAD_JOB WHERE group_name = :p_group)

-- put_intent --
DELETE FROM VENUS_INTENT WHERE group_name = :p_group AND table_id = :p_table_id AND name = :p_name;
INSERT INTO VENUS_INTENT (group_name, table_id, name) VALUES (:p_group, :p_table_id, :p_name)

-- intents --
SELECT table_id, name FROM VENUS_INTENT WHERE group_name = :p_group

-- make_lock --
INSERT INTO VENUS_TARGET_LOCK (group_name) VALUES (:p_group)

-- try_lock --
SELECT 1 FROM VENUS_TARGET_LOCK WHERE group_name = :p_group FOR UPDATE NOWAIT
