-- VENUS's own tables at a target: its position, the states of tables, refused changes. {own} is their schema.
-- Transactions and statements use applied, load_manifest, target_table in this order, in which an upgrade locks them.

-- try_lock --
SELECT pg_try_advisory_lock(hashtextextended(%(group)s, 7654))

-- clock --
-- Ages of times that the target's clock has set are measured by the same clock.
SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint

-- position --
-- A target that an older VENUS has loaded lacks the last two until a load or `venus sync` upgrades it.
SELECT "offset", epoch, last_sequence, control, paused, captured_at, committed_at, applied_at, heartbeat_at, note,
    to_jsonb(a) ->> 'compared', to_jsonb(a) ->> 'rows_identity',
    EXISTS (SELECT FROM {own}.load_job j WHERE j.group_name = a.group_name AND j.state = 'following')
FROM {own}.applied a WHERE group_name = %(group)s

-- hold_position --
-- First statement of every larger transaction: no other one moves the offset or changes a state until it ends.
SELECT "offset", control FROM {own}.applied WHERE group_name = %(group)s FOR UPDATE

-- set_position --
INSERT INTO {own}.applied (group_name, business, "offset", epoch, last_sequence, applied_at, counted_from,
    rows_identity)
VALUES (%(group)s, %(business)s, %(offset)s, %(epoch)s, %(sequence)s, clock_timestamp(), %(offset)s, %(rows)s)
ON CONFLICT (group_name) DO UPDATE SET "offset" = EXCLUDED."offset", epoch = EXCLUDED.epoch,
    last_sequence = EXCLUDED.last_sequence, applied_at = EXCLUDED.applied_at, control = {own}.applied.control + 1,
    counted_from = EXCLUDED.counted_from, rows_other = 0, rows_repaired = 0, rows_identity = EXCLUDED.rows_identity

-- set_rows --
-- Rows identity of the broker set that was read up to the applied offset.
UPDATE {own}.applied SET rows_identity = %(rows)s WHERE group_name = %(group)s

-- start_over --
-- Moves to the cut of a snapshot. The full data contains the changes in between, and every table becomes equal to it.
UPDATE {own}.applied SET rows_repaired = rows_repaired + %(offset)s - "offset", "offset" = %(offset)s, epoch = %(epoch)s,
    last_sequence = %(sequence)s, rows_identity = %(rows)s, control = control + 1 WHERE group_name = %(group)s

-- set_compared --
-- Increments control, so that the loop reads the new value.
UPDATE {own}.applied SET compared = %(compared)s, control = control + 1 WHERE group_name = %(group)s

-- row_counts --
-- Approximate row counts of the target's tables: the row density at the last ANALYZE times the current size, otherwise
-- the server's count of live rows.
SELECT t.table_id, greatest(0, sum(
    CASE WHEN c.relkind = 'p' THEN 0
         WHEN c.reltuples >= 0 AND c.relpages > 0
         THEN c.reltuples / c.relpages * (pg_relation_size(c.oid) / current_setting('block_size')::bigint)
         ELSE pg_stat_get_live_tuples(c.oid) END))::bigint
FROM (SELECT table_id, to_regclass(format('%%I.%%I', namespace, name)) AS oid FROM {own}.target_table
    WHERE group_name = %(group)s) t
CROSS JOIN LATERAL (SELECT t.oid UNION SELECT p.relid FROM pg_partition_tree(t.oid) p) r
JOIN pg_class c ON c.oid = r.oid
GROUP BY t.table_id

-- remove_position --
DELETE FROM {own}.applied WHERE group_name = %(group)s

-- advance --
SELECT {own}.advance(%(group)s, %(expected)s, %(control)s, %(offset)s, %(epoch)s, %(sequence)s,
    to_timestamp(%(captured_us)s / 1000000.0), to_timestamp(%(committed_us)s / 1000000.0),
    to_timestamp(%(heartbeat_us)s / 1000000.0), %(other)s)

-- prepare_advance --
-- `advance` as a prepared statement, because every small cut executes it.
PREPARE venus_advance (bigint, bigint, bigint, bigint, bigint, bigint, bigint, bigint, bigint) AS
SELECT {own}.advance(%(group)s, $1, $2, $3, $4, $5,
    to_timestamp($6 / 1000000.0), to_timestamp($7 / 1000000.0), to_timestamp($8 / 1000000.0), $9)

-- unaccounted --
-- The transaction that moves the applied offset counts the fate of every change below it; a difference means lost
-- changes. A table that follows holds nothing back, so changes that it still counts as held were lost.
SELECT a."offset" - a.counted_from - a.rows_other - a.rows_repaired - coalesce((
    SELECT sum(t.rows_applied + t.rows_quarantined + t.rows_skipped
        + CASE WHEN t.state = 'ACTIVE' THEN 0 ELSE t.rows_held END)
    FROM {own}.target_table t WHERE t.group_name = a.group_name), 0)::bigint
FROM {own}.applied a WHERE a.group_name = %(group)s

-- set_paused --
UPDATE {own}.applied SET paused = %(paused)s WHERE group_name = %(group)s

-- raise_control --
UPDATE {own}.applied SET control = control + 1 WHERE group_name = %(group)s

-- set_note --
UPDATE {own}.applied SET note = %(note)s WHERE group_name = %(group)s

-- tables --
-- A target that an older VENUS has loaded lacks the last four until a load or `venus sync` upgrades it.
SELECT table_id, schema_version, namespace, name, source_name, state, held_from, reason,
    rows_applied, rows_quarantined, rows_skipped, rows_held, counted_from, created,
    coalesce(to_jsonb(t) ->> 'predicate', ''), to_jsonb(t) ->> 'predicate_before',
    coalesce((to_jsonb(t) ->> 'rows_brought')::bigint, 0), coalesce((to_jsonb(t) ->> 'rows_removed')::bigint, 0)
FROM {own}.target_table t WHERE group_name = %(group)s AND (%(table_id)s::int IS NULL OR table_id = %(table_id)s::int)
ORDER BY table_id

-- is_newest --
SELECT EXISTS (SELECT FROM pg_attribute
    WHERE attrelid = '{own}.applied'::regclass AND attname = 'compared' AND NOT attisdropped)

-- put_table --
INSERT INTO {own}.target_table (group_name, table_id, schema_version, namespace, name, source_name, state, counted_from,
    created, predicate)
VALUES (%(group)s, %(table_id)s, %(version)s, %(namespace)s, %(name)s, %(source_name)s, %(state)s, %(offset)s,
    %(created)s, %(predicate)s)
ON CONFLICT (group_name, table_id) DO UPDATE SET schema_version = EXCLUDED.schema_version,
    namespace = EXCLUDED.namespace, name = EXCLUDED.name, source_name = EXCLUDED.source_name, state = EXCLUDED.state,
    held_from = NULL, reason = '', rows_applied = 0, rows_quarantined = 0, rows_skipped = 0,
    rows_held = 0, counted_from = EXCLUDED.counted_from, created = EXCLUDED.created,
    predicate = EXCLUDED.predicate, predicate_before = NULL, rows_brought = 0, rows_removed = 0

-- set_predicate --
-- Keeps the first previous predicate until the rows agree with the new one, even if it changes again.
UPDATE {own}.target_table SET predicate = %(predicate)s, predicate_before = coalesce(predicate_before, %(before)s),
    rows_brought = 0, rows_removed = 0
WHERE group_name = %(group)s AND table_id = %(table_id)s

-- end_predicate --
UPDATE {own}.target_table SET predicate_before = NULL, rows_brought = %(brought)s, rows_removed = %(removed)s
WHERE group_name = %(group)s AND table_id = %(table_id)s AND predicate_before IS NOT NULL

-- count --
UPDATE {own}.target_table SET rows_applied = rows_applied + %(applied)s,
    rows_quarantined = rows_quarantined + %(quarantined)s, rows_skipped = rows_skipped + %(skipped)s,
    rows_held = rows_held + %(held)s
WHERE group_name = %(group)s AND table_id = %(table_id)s

-- prepare_count --
-- `count` as a prepared statement.
PREPARE venus_count (bigint, bigint, bigint, bigint, bigint) AS
UPDATE {own}.target_table SET rows_applied = rows_applied + $2, rows_quarantined = rows_quarantined + $3,
    rows_skipped = rows_skipped + $4, rows_held = rows_held + $5
WHERE group_name = %(group)s AND table_id = $1

-- prepare_count_all --
-- `count` for several tables at once: a statement for each table would cost more than applying the rows of many.
PREPARE venus_count_all (bigint[], bigint[], bigint[], bigint[], bigint[]) AS
UPDATE {own}.target_table t SET rows_applied = rows_applied + n.applied,
    rows_quarantined = rows_quarantined + n.quarantined, rows_skipped = rows_skipped + n.skipped,
    rows_held = rows_held + n.held
FROM unnest($1, $2, $3, $4, $5) n (table_id, applied, quarantined, skipped, held)
WHERE t.group_name = %(group)s AND t.table_id = n.table_id

-- put_held --
INSERT INTO {own}.held (group_name, table_id, "offset", rows)
VALUES (%(group)s, %(table_id)s, %(offset)s, %(rows)s)
ON CONFLICT (group_name, table_id, "offset") DO UPDATE SET rows = EXCLUDED.rows

-- count_contained --
-- The full data contains the held changes before the cut of a resync; only those behind it still wait.
UPDATE {own}.target_table t SET rows_applied = rows_applied + rows_held - n, rows_held = n
FROM (SELECT coalesce(sum(h.rows), 0) AS n FROM {own}.held h
      WHERE h.group_name = %(group)s AND h.table_id = %(table_id)s AND h."offset" >= %(offset)s) behind
WHERE t.group_name = %(group)s AND t.table_id = %(table_id)s

-- settle_account --
-- After the last table of a resync of all tables, the changes that were missing at its request are no longer missing.
WITH settled AS (
    DELETE FROM {own}.sweep s WHERE s.group_name = %(group)s AND s.purpose = 'account' AND NOT EXISTS (
        SELECT FROM {own}.sweep r WHERE r.group_name = s.group_name AND r.purpose = 'resync')
    RETURNING s.from_offset AS rows)
UPDATE {own}.applied a SET rows_repaired = rows_repaired + settled.rows FROM settled WHERE a.group_name = %(group)s

-- end_held --
DELETE FROM {own}.held WHERE group_name = %(group)s AND table_id = %(table_id)s

-- set_state --
UPDATE {own}.target_table SET state = %(state)s, held_from = %(held_from)s, reason = %(reason)s
WHERE group_name = %(group)s AND table_id = %(table_id)s

-- set_held --
UPDATE {own}.target_table SET held_from = %(held_from)s WHERE group_name = %(group)s AND table_id = %(table_id)s

-- set_version --
UPDATE {own}.target_table SET schema_version = %(version)s, reason = %(reason)s
WHERE group_name = %(group)s AND table_id = %(table_id)s

-- set_loaded --
UPDATE {own}.target_table SET state = 'ACTIVE', held_from = NULL, counted_from = %(offset)s
WHERE group_name = %(group)s AND state = 'LOADING'

-- end_first_load --
UPDATE {own}.target_table SET state = 'ACTIVE' WHERE group_name = %(group)s AND state = 'LOADING'

-- schemas --
SELECT schema_wire FROM {own}.target_schema WHERE group_name = %(group)s

-- changed_schemas --
-- Every version of the tables that have more than one.
SELECT schema_wire FROM {own}.target_schema s WHERE group_name = %(group)s
    AND (SELECT count(*) FROM {own}.target_schema o WHERE o.group_name = s.group_name AND o.table_id = s.table_id) > 1
ORDER BY table_id, version

-- put_schema --
INSERT INTO {own}.target_schema (group_name, table_id, version, schema_wire)
VALUES (%(group)s, %(table_id)s, %(version)s, %(wire)s)
ON CONFLICT (group_name, table_id, version) DO UPDATE SET schema_wire = EXCLUDED.schema_wire

-- forget_tables --
DELETE FROM {own}.target_table WHERE group_name = %(group)s

-- forget_schemas --
DELETE FROM {own}.target_schema WHERE group_name = %(group)s

-- forget_quarantine --
DELETE FROM {own}.quarantine WHERE group_name = %(group)s

-- forget_sweeps --
DELETE FROM {own}.sweep WHERE group_name = %(group)s

-- forget_held --
DELETE FROM {own}.held WHERE group_name = %(group)s

-- sweeps --
SELECT table_id, purpose, from_offset FROM {own}.sweep WHERE group_name = %(group)s

-- put_sweep --
INSERT INTO {own}.sweep (group_name, table_id, purpose, from_offset)
VALUES (%(group)s, %(table_id)s, %(purpose)s, %(offset)s)
ON CONFLICT (group_name, table_id, purpose) DO UPDATE SET from_offset = EXCLUDED.from_offset

-- end_sweep --
DELETE FROM {own}.sweep WHERE group_name = %(group)s AND table_id = %(table_id)s AND purpose = %(purpose)s

-- parked_keys --
-- The first change of each key that waits in quarantine: later changes of the key are parked behind it.
SELECT table_id, record_id, min("offset") FROM {own}.quarantine
WHERE group_name = %(group)s AND state = 'PARKED' GROUP BY table_id, record_id

-- skipped_changes --
-- Changes that an operator skipped while their table was halted; the catch-up of the table reads them again.
SELECT q.table_id, q.record_id, q."offset" FROM {own}.quarantine q
JOIN {own}.target_table t ON t.group_name = q.group_name AND t.table_id = q.table_id
WHERE q.group_name = %(group)s AND q.state = 'SKIPPED' AND q."offset" >= t.held_from

-- quarantine --
INSERT INTO {own}.quarantine (group_name, business, table_id, schema_version, record_id, key, "offset", sequence,
    sqlstate, message, row_message, is_deleted, state)
VALUES (%(group)s, %(business)s, %(table_id)s, %(version)s, %(record_id)s, %(key)s, %(offset)s, %(sequence)s,
    %(sqlstate)s, %(message)s, %(row_message)s, %(is_deleted)s, %(state)s)
ON CONFLICT (group_name, table_id, "offset", record_id) DO UPDATE SET sqlstate = EXCLUDED.sqlstate,
    message = EXCLUDED.message, state = EXCLUDED.state, decided_at = NULL

-- count_superseded --
-- Waiting changes that the full data contains count as applied.
UPDATE {own}.target_table t SET rows_applied = rows_applied + n, rows_quarantined = rows_quarantined - n
FROM (SELECT count(*) AS n FROM {own}.quarantine q WHERE q.group_name = %(group)s AND q.table_id = %(table_id)s
      AND q.state = 'PARKED' AND q."offset" >= 0 AND q."offset" < %(offset)s) waiting
WHERE t.group_name = %(group)s AND t.table_id = %(table_id)s

-- list_quarantine --
SELECT q.id, q.table_id, t.source_name, q.schema_version, q.record_id, q.key, q."offset", q.sequence, q.sqlstate,
    q.message, q.row_message, q.is_deleted, q.state, q.reason, q.created_at, q.decided_at
FROM {own}.quarantine q JOIN {own}.target_table t ON t.group_name = q.group_name AND t.table_id = q.table_id
WHERE q.group_name = %(group)s AND (%(everything)s OR q.state IN ('HALTED', 'PARKED')) ORDER BY q."offset", q.id

-- open_by_table --
SELECT table_id, count(*) FROM {own}.quarantine WHERE group_name = %(group)s AND state IN ('HALTED', 'PARKED')
GROUP BY table_id

-- decide_quarantine --
UPDATE {own}.quarantine SET state = %(state)s, reason = %(reason)s, decided_at = now()
WHERE group_name = %(group)s AND id = ANY(%(ids)s)

-- clear_halted --
UPDATE {own}.quarantine SET state = 'APPLIED', decided_at = now()
WHERE group_name = %(group)s AND table_id = %(table_id)s AND state = 'HALTED'

-- supersede_quarantine --
UPDATE {own}.quarantine SET state = 'SUPERSEDED', reason = %(reason)s, decided_at = now()
WHERE group_name = %(group)s AND table_id = %(table_id)s AND state IN ('HALTED', 'PARKED')
    AND "offset" < %(offset)s

-- clear_quarantine --
-- Examines the next changes in the order of their arrival and deletes those that were decided long ago, which are kept
-- for operators only. Keeps a skipped change that the catch-up of its table will read again. Returns the last examined
-- id (NULL at the end) and the number of deleted changes.
WITH piece AS (
    SELECT id FROM {own}.quarantine WHERE id > %(after)s ORDER BY id LIMIT %(rows_max)s
), gone AS (
    DELETE FROM {own}.quarantine q USING piece
    WHERE q.id = piece.id AND q.group_name = %(group)s AND q.state IN ('APPLIED', 'SKIPPED', 'SUPERSEDED')
        AND extract(epoch FROM now() - q.decided_at) > %(keep_s)s
        AND NOT EXISTS (SELECT FROM {own}.target_table t WHERE t.group_name = q.group_name
            AND t.table_id = q.table_id AND t.held_from <= q."offset")
    RETURNING q.id)
SELECT (SELECT max(id) FROM piece), (SELECT count(*) FROM gone)

-- job --
SELECT load_id, state, snapshot FROM {own}.load_job WHERE group_name = %(group)s

-- loading_rows --
-- The rows of a load that has not ended: those of its splits, and the changes that followed them.
SELECT (coalesce((SELECT sum(m.rows) FROM {own}.load_manifest m WHERE m.load_id = j.load_id), 0)
    + coalesce((SELECT sum(t.rows_applied) FROM {own}.target_table t WHERE t.group_name = j.group_name), 0))::bigint
FROM {own}.load_job j WHERE j.group_name = %(group)s AND j.state <> 'done'

-- put_job --
INSERT INTO {own}.load_job (group_name, load_id, state, snapshot) VALUES (%(group)s, %(load_id)s, %(state)s, %(snapshot)s)
ON CONFLICT (group_name) DO UPDATE SET load_id = EXCLUDED.load_id, state = EXCLUDED.state,
    snapshot = EXCLUDED.snapshot, started_at = now(), ended_at = NULL

-- set_job --
UPDATE {own}.load_job SET state = %(state)s, ended_at = CASE WHEN %(state)s = 'done' THEN now() END
WHERE group_name = %(group)s

-- claim_split --
-- A concurrent attempt waits here until this one has ended, and then has nothing to do.
INSERT INTO {own}.load_manifest (load_id, split, table_id, attempt)
VALUES (%(load_id)s, %(split)s, %(table_id)s, %(attempt)s) ON CONFLICT DO NOTHING

-- loaded_split --
SELECT rows, parked, outside, digest FROM {own}.load_manifest WHERE load_id = %(load_id)s AND split = %(split)s

-- record_split --
UPDATE {own}.load_manifest SET rows = %(rows)s, parked = %(parked)s, outside = %(outside)s, digest = %(digest)s, done_at = now()
WHERE load_id = %(load_id)s AND split = %(split)s

-- manifest --
SELECT split, table_id, rows, parked, outside, digest FROM {own}.load_manifest WHERE load_id = %(load_id)s

-- forget_manifest --
DELETE FROM {own}.load_manifest m USING {own}.load_job j
WHERE j.group_name = %(group)s AND m.load_id = j.load_id
