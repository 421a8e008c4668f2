-- VENUS's own tables at a SQLite target: its position, the states of tables, refused changes. {own} is their
-- prefix. The blocks have the names of those of the PostgreSQL target.

-- clock --
-- Ages of times that the target's clock has set are measured by the same clock.
SELECT venus_now_us()

-- position --
SELECT "offset", epoch, last_sequence, control, paused, captured_at, committed_at, applied_at, heartbeat_at, note,
    compared, rows_identity,
    EXISTS (SELECT 1 FROM {own}load_job j WHERE j.group_name = a.group_name AND j.state = 'following')
FROM {own}applied a WHERE group_name = :group

-- hold_position --
-- First statement of every larger transaction, which holds the write lock already.
SELECT "offset", control FROM {own}applied WHERE group_name = :group

-- set_position --
INSERT INTO {own}applied (group_name, business, "offset", epoch, last_sequence, applied_at, note, counted_from,
    rows_identity)
VALUES (:group, :business, :offset, :epoch, :sequence, venus_now_us(), '', :offset, :rows)
ON CONFLICT (group_name) DO UPDATE SET "offset" = :offset, epoch = :epoch, last_sequence = :sequence,
    applied_at = venus_now_us(), control = control + 1, counted_from = :offset, rows_other = 0,
    rows_repaired = 0, rows_identity = :rows

-- set_rows --
-- Rows identity of the broker set that was read up to the applied offset.
UPDATE {own}applied SET rows_identity = :rows WHERE group_name = :group

-- start_over --
-- Moves to the cut of a snapshot. The full data contains the changes in between, and every table becomes equal to it.
UPDATE {own}applied SET rows_repaired = rows_repaired + :offset - "offset", "offset" = :offset, epoch = :epoch,
    last_sequence = :sequence, rows_identity = :rows, control = control + 1 WHERE group_name = :group

-- set_compared --
-- Increments control, so that the loop reads the new value.
UPDATE {own}applied SET compared = :compared, control = control + 1 WHERE group_name = :group

-- row_counts --
-- SQLite has no approximate row counts.
SELECT 0, 0 LIMIT 0

-- remove_position --
DELETE FROM {own}applied WHERE group_name = :group

-- execute_advance --
-- The transaction has already locked this row and found the expected values in it.
UPDATE {own}applied SET "offset" = :n3, epoch = :n4, last_sequence = :n5,
    captured_at = coalesce(:n6, captured_at),
    committed_at = coalesce(:n7, committed_at), applied_at = venus_now_us(),
    heartbeat_at = coalesce(:n8, heartbeat_at),
    rows_other = rows_other + :n9
WHERE group_name = :group AND "offset" = :n1 AND control = :n2

-- unaccounted --
-- The transaction that moves the applied offset counts the fate of every change below it; a difference means lost
-- changes. A table that follows holds nothing back, so changes that it still counts as held were lost.
SELECT a."offset" - a.counted_from - a.rows_other - a.rows_repaired - coalesce((
    SELECT sum(t.rows_applied + t.rows_quarantined + t.rows_skipped
        + CASE t.state WHEN 'ACTIVE' THEN 0 ELSE t.rows_held END)
    FROM {own}target_table t WHERE t.group_name = a.group_name), 0)
FROM {own}applied a WHERE a.group_name = :group

-- set_paused --
UPDATE {own}applied SET paused = :paused WHERE group_name = :group

-- raise_control --
UPDATE {own}applied SET control = control + 1 WHERE group_name = :group

-- set_note --
UPDATE {own}applied SET note = :note WHERE group_name = :group

-- tables --
SELECT table_id, schema_version, namespace, name, source_name, state, held_from, reason,
    rows_applied, rows_quarantined, rows_skipped, rows_held, counted_from, created,
    predicate, predicate_before, rows_brought, rows_removed
FROM {own}target_table t WHERE group_name = :group AND (:table_id IS NULL OR table_id = :table_id)
ORDER BY table_id

-- is_newest --
SELECT 1

-- put_table --
INSERT INTO {own}target_table (group_name, table_id, schema_version, namespace, name, source_name, state, reason,
    counted_from, created, predicate)
VALUES (:group, :table_id, :version, :namespace, :name, :source_name, :state, '', :offset,
    :created, :predicate)
ON CONFLICT (group_name, table_id) DO UPDATE SET schema_version = :version, namespace = :namespace, name = :name,
    source_name = :source_name, state = :state, held_from = NULL, reason = '', rows_applied = 0,
    rows_quarantined = 0, rows_skipped = 0, rows_held = 0, counted_from = :offset, created = :created,
    predicate = :predicate, predicate_before = NULL, rows_brought = 0, rows_removed = 0

-- set_predicate --
-- Keeps the first previous predicate until the rows agree with the new one, even if it changes again.
UPDATE {own}target_table SET predicate = :predicate, predicate_before = coalesce(predicate_before, :before),
    rows_brought = 0, rows_removed = 0
WHERE group_name = :group AND table_id = :table_id

-- end_predicate --
UPDATE {own}target_table SET predicate_before = NULL, rows_brought = :brought, rows_removed = :removed
WHERE group_name = :group AND table_id = :table_id AND predicate_before IS NOT NULL

-- count --
UPDATE {own}target_table SET rows_applied = rows_applied + :applied,
    rows_quarantined = rows_quarantined + :quarantined, rows_skipped = rows_skipped + :skipped,
    rows_held = rows_held + :held
WHERE group_name = :group AND table_id = :table_id

-- execute_count --
UPDATE {own}target_table SET rows_applied = rows_applied + :n2, rows_quarantined = rows_quarantined + :n3,
    rows_skipped = rows_skipped + :n4, rows_held = rows_held + :n5
WHERE group_name = :group AND table_id = :n1

-- put_held --
INSERT INTO {own}held (group_name, table_id, "offset", "rows")
VALUES (:group, :table_id, :offset, :rows) ON CONFLICT DO UPDATE SET "rows" = :rows

-- count_contained --
-- The full data contains the held changes before the cut of a resync; only those behind it still wait.
UPDATE {own}target_table SET rows_applied = rows_applied + rows_held - behind.n, rows_held = behind.n
FROM (SELECT coalesce(sum("rows"), 0) AS n FROM {own}held
    WHERE group_name = :group AND table_id = :table_id AND "offset" >= :offset) AS behind
WHERE group_name = :group AND table_id = :table_id

-- settle_account --
-- After the last table of a resync of all tables, the changes that were missing at its request are no longer missing.
UPDATE {own}applied SET rows_repaired = rows_repaired + s.from_offset FROM {own}sweep AS s
WHERE {own}applied.group_name = :group AND s.group_name = :group AND s.purpose = 'account'
    AND NOT EXISTS (SELECT 1 FROM {own}sweep r WHERE r.group_name = :group AND r.purpose = 'resync');
DELETE FROM {own}sweep WHERE group_name = :group AND purpose = 'account'
    AND NOT EXISTS (SELECT 1 FROM {own}sweep r WHERE r.group_name = :group AND r.purpose = 'resync')

-- end_held --
DELETE FROM {own}held WHERE group_name = :group AND table_id = :table_id

-- set_state --
UPDATE {own}target_table SET state = :state, held_from = :held_from, reason = :reason
WHERE group_name = :group AND table_id = :table_id

-- set_held --
UPDATE {own}target_table SET held_from = :held_from WHERE group_name = :group AND table_id = :table_id

-- set_version --
UPDATE {own}target_table SET schema_version = :version, reason = :reason
WHERE group_name = :group AND table_id = :table_id

-- set_loaded --
UPDATE {own}target_table SET state = 'ACTIVE', held_from = NULL, counted_from = :offset
WHERE group_name = :group AND state = 'LOADING'

-- end_first_load --
UPDATE {own}target_table SET state = 'ACTIVE' WHERE group_name = :group AND state = 'LOADING'

-- schemas --
SELECT schema_wire FROM {own}target_schema WHERE group_name = :group

-- changed_schemas --
-- Every version of the tables that have more than one.
SELECT schema_wire FROM {own}target_schema s WHERE group_name = :group
    AND (SELECT count(*) FROM {own}target_schema o WHERE o.group_name = s.group_name AND o.table_id = s.table_id) > 1
ORDER BY table_id, version

-- put_schema --
INSERT INTO {own}target_schema (group_name, table_id, version, schema_wire)
VALUES (:group, :table_id, :version, :wire) ON CONFLICT DO UPDATE SET schema_wire = :wire

-- forget_tables --
DELETE FROM {own}target_table WHERE group_name = :group

-- forget_schemas --
DELETE FROM {own}target_schema WHERE group_name = :group

-- forget_quarantine --
DELETE FROM {own}quarantine WHERE group_name = :group

-- forget_sweeps --
DELETE FROM {own}sweep WHERE group_name = :group

-- forget_held --
DELETE FROM {own}held WHERE group_name = :group

-- sweeps --
SELECT table_id, purpose, from_offset FROM {own}sweep WHERE group_name = :group

-- put_sweep --
INSERT INTO {own}sweep (group_name, table_id, purpose, from_offset)
VALUES (:group, :table_id, :purpose, :offset) ON CONFLICT DO UPDATE SET from_offset = :offset

-- end_sweep --
DELETE FROM {own}sweep WHERE group_name = :group AND table_id = :table_id AND purpose = :purpose

-- parked_keys --
-- The first change of each key that waits in quarantine: later changes of the key are parked behind it.
SELECT table_id, record_id, min("offset") FROM {own}quarantine
WHERE group_name = :group AND state = 'PARKED' GROUP BY table_id, record_id

-- skipped_changes --
-- Changes that an operator skipped while their table was halted; the catch-up of the table reads them again.
SELECT q.table_id, q.record_id, q."offset" FROM {own}quarantine q
JOIN {own}target_table t ON t.group_name = q.group_name AND t.table_id = q.table_id
WHERE q.group_name = :group AND q.state = 'SKIPPED' AND q."offset" >= t.held_from

-- quarantine --
INSERT INTO {own}quarantine (group_name, business, table_id, schema_version, record_id, "key", "offset", sequence,
    sqlstate, message, row_message, is_deleted, state, reason, created_at)
VALUES (:group, :business, :table_id, :version, :record_id, :key, :offset, :sequence, :sqlstate, :message,
    :row_message, :is_deleted, :state, '', venus_now_us())
ON CONFLICT (group_name, table_id, "offset", record_id) DO UPDATE SET sqlstate = :sqlstate, message = :message,
    state = :state, decided_at = NULL

-- count_superseded --
-- Waiting changes that the full data contains count as applied.
UPDATE {own}target_table SET rows_applied = rows_applied + waiting.n, rows_quarantined = rows_quarantined - waiting.n
FROM (SELECT count(*) AS n FROM {own}quarantine WHERE group_name = :group AND table_id = :table_id
    AND state = 'PARKED' AND "offset" >= 0 AND "offset" < :offset) AS waiting
WHERE group_name = :group AND table_id = :table_id

-- list_quarantine --
SELECT q.id, q.table_id, t.source_name, q.schema_version, q.record_id, q."key", q."offset", q.sequence, q.sqlstate,
    q.message, q.row_message, q.is_deleted, q.state, q.reason, q.created_at, q.decided_at
FROM {own}quarantine q JOIN {own}target_table t ON t.group_name = q.group_name AND t.table_id = q.table_id
WHERE q.group_name = :group AND (:everything OR q.state IN ('HALTED', 'PARKED')) ORDER BY q."offset", q.id

-- open_by_table --
SELECT table_id, count(*) FROM {own}quarantine WHERE group_name = :group AND state IN ('HALTED', 'PARKED')
GROUP BY table_id

-- decide_quarantine --
UPDATE {own}quarantine SET state = :state, reason = :reason, decided_at = venus_now_us()
WHERE group_name = :group AND id IN (SELECT value FROM json_each(:ids))

-- clear_halted --
UPDATE {own}quarantine SET state = 'APPLIED', decided_at = venus_now_us()
WHERE group_name = :group AND table_id = :table_id AND state = 'HALTED'

-- supersede_quarantine --
UPDATE {own}quarantine SET state = 'SUPERSEDED', reason = :reason, decided_at = venus_now_us()
WHERE group_name = :group AND table_id = :table_id AND state IN ('HALTED', 'PARKED') AND "offset" < :offset

-- last_of_piece --
-- The last of the next changes in the order of their arrival, which clear_quarantine then examines.
SELECT max(id) FROM (SELECT id FROM {own}quarantine WHERE id > :after ORDER BY id LIMIT :rows_max) AS piece

-- clear_quarantine --
-- Deletes changes that were decided long ago, which are kept for operators only. Keeps a skipped change that the
-- catch-up of its table will read again.
DELETE FROM {own}quarantine WHERE id > :after AND id <= :last AND group_name = :group
    AND state IN ('APPLIED', 'SKIPPED', 'SUPERSEDED') AND venus_now_us() - decided_at > :keep_s * 1000000
    AND NOT EXISTS (SELECT 1 FROM {own}target_table t WHERE t.group_name = :group
        AND t.table_id = {own}quarantine.table_id AND t.held_from <= {own}quarantine."offset")

-- job --
SELECT load_id, state, snapshot FROM {own}load_job WHERE group_name = :group

-- loading_rows --
-- The rows of a load that has not ended: those of its splits, and the changes that followed them.
SELECT coalesce((SELECT sum(m."rows") FROM {own}load_manifest m WHERE m.load_id = j.load_id), 0)
    + coalesce((SELECT sum(t.rows_applied) FROM {own}target_table t WHERE t.group_name = j.group_name), 0)
FROM {own}load_job j WHERE j.group_name = :group AND j.state <> 'done'

-- put_job --
INSERT INTO {own}load_job (group_name, load_id, state, snapshot, started_at)
VALUES (:group, :load_id, :state, :snapshot, venus_now_us())
ON CONFLICT (group_name) DO UPDATE SET load_id = :load_id, state = :state, snapshot = :snapshot,
    started_at = venus_now_us(), ended_at = NULL

-- set_job --
UPDATE {own}load_job SET state = :state, ended_at = CASE :state WHEN 'done' THEN venus_now_us() END
WHERE group_name = :group

-- claim_split --
-- A concurrent attempt waits for the write lock until this one has ended, and then has nothing to do.
INSERT OR IGNORE INTO {own}load_manifest (load_id, split, table_id, attempt)
VALUES (:load_id, :split, :table_id, :attempt)

-- loaded_split --
SELECT "rows", parked, outside, digest FROM {own}load_manifest WHERE load_id = :load_id AND split = :split

-- record_split --
UPDATE {own}load_manifest SET "rows" = :rows, parked = :parked, outside = :outside, digest = :digest,
    done_at = venus_now_us() WHERE load_id = :load_id AND split = :split

-- manifest --
SELECT split, table_id, "rows", parked, outside, digest FROM {own}load_manifest WHERE load_id = :load_id

-- load_progress --
SELECT coalesce(sum(m."rows" + m.parked), 0), count(*), 0 FROM {own}load_manifest m WHERE m.load_id = :load_id

-- forget_manifest --
DELETE FROM {own}load_manifest WHERE load_id IN (SELECT load_id FROM {own}load_job WHERE group_name = :group)
