-- VENUS's own tables at a SQLite source. migrations/versions creates them.

-- tables --
SELECT table_id, schema_wire, state, coalesce(reason, ''), coalesce(fill_cursor, x''), fill_rows, fill_estimate,
       fill_done, sweep_from, log_through, number_max
FROM venus_captured_table WHERE (state = 'RELEASED') = ? ORDER BY table_id;

-- names --
SELECT name FROM venus_captured_table;

-- sign --
-- Everything in the registry that may change for a table. The fingerprint stands for its columns.
SELECT table_id, substr(fingerprint, 1, instr(fingerprint || ' ', ' ') - 1), state, reason, fill_cursor, fill_rows,
       fill_estimate, fill_done, sweep_from
  FROM venus_captured_table ORDER BY table_id;

-- look --
-- The summary of the dictionary that capture read last. It is stored behind the fingerprint of the heartbeat table
-- (schema_changes.py).
SELECT substr(fingerprint, instr(fingerprint || ' ', ' ') + 1) FROM venus_captured_table WHERE name = 'venus_heartbeat';

-- note_look --
UPDATE venus_captured_table SET fingerprint = substr(fingerprint, 1, instr(fingerprint || ' ', ' ') - 1) || ' ' || ?
WHERE name = 'venus_heartbeat';

-- states --
SELECT table_id, state, log_through FROM venus_captured_table WHERE state <> 'RELEASED';

-- add_table --
INSERT INTO venus_captured_table (table_id, namespace, name, schema_wire, fingerprint, state, reason, fill_cursor,
  fill_rows, fill_estimate, fill_done, sweep_from, log_through, number_max)
VALUES ({table_id}, {namespace}, {name}, {schema_wire}, {fingerprint}, 'ACTIVE', NULL, NULL, 0, {estimate}, 0, 0, 0,
  {number_max});

-- new_version --
UPDATE venus_captured_table SET schema_wire = {schema_wire}, fingerprint = {fingerprint}, number_max = {number_max}
WHERE table_id = {table_id};

-- set_state --
UPDATE venus_captured_table SET state = {state}, reason = {reason} WHERE table_id = {table_id};

-- log_is_new --
UPDATE venus_captured_table SET log_through = 0 WHERE table_id = {table_id};

-- restart_fill --
-- Rows shipped earlier have lower Sequences, so a sweep finds those that were deleted. A table without shipped rows
-- needs no sweep.
UPDATE venus_captured_table
SET fill_cursor = NULL, fill_rows = 0, fill_done = 0,
    sweep_from = (SELECT CASE WHEN next_sequence > 1 THEN next_sequence ELSE 0 END FROM venus_checkpoint),
    reason = CASE WHEN substr(reason, 1, 13) = 'compared with' THEN NULL ELSE reason END
WHERE table_id = ?;

-- begin_comparison --
-- Applies only before the fill has read a row.
UPDATE venus_captured_table SET reason = :reason
WHERE table_id = :table_id AND state = 'ACTIVE' AND NOT fill_done AND fill_cursor IS NULL;

-- advance_comparison --
-- Applies only if no other fill or comparison was requested since, and no other change was missed.
UPDATE venus_captured_table SET reason = :new_reason, fill_rows = :rows_done, fill_done = :done
WHERE table_id = :table_id AND state = 'ACTIVE' AND reason = :known_reason AND NOT fill_done AND fill_cursor IS NULL;

-- sweep --
-- Forces a sweep even if the source has no record of shipped rows.
UPDATE venus_captured_table SET sweep_from = max(sweep_from, 1) WHERE table_id = ?;

-- take_up --
-- Rows of a released table that were shipped earlier may have been deleted since, so the table is swept.
UPDATE venus_captured_table
SET state = 'ACTIVE', reason = NULL, fill_cursor = NULL, fill_rows = 0, fill_done = 0, log_through = 0,
    fill_estimate = {estimate}, sweep_from = (SELECT next_sequence FROM venus_checkpoint)
WHERE table_id = {table_id};

-- advance_fill --
-- Applies only if the fill is still where this chunk began, so that an operator's restart is kept.
UPDATE venus_captured_table
SET fill_cursor = :cursor, fill_rows = :rows_done, fill_done = :done, sweep_from = :sweep_from,
    reason = CASE WHEN substr(reason, 1, 13) = 'compared with' THEN NULL ELSE reason END
WHERE table_id = :table_id AND coalesce(fill_cursor, x'') = :was_cursor AND fill_rows = :was_rows
  AND sweep_from = :was_sweep AND NOT fill_done;

-- consumed --
UPDATE venus_captured_table SET log_through = ? WHERE table_id = ?;

-- checkpoint --
SELECT epoch, next_sequence, last_batch FROM venus_checkpoint WHERE id = 1;

-- advance --
UPDATE venus_checkpoint SET next_sequence = ?, last_batch = ? WHERE id = 1;

-- raise_epoch --
UPDATE venus_checkpoint SET epoch = ? WHERE id = 1;

-- seal --
-- A negative epoch stops every process from capturing here, until another database hands capture over to this one.
UPDATE venus_checkpoint SET epoch = -epoch WHERE id = 1 AND epoch = {epoch} AND epoch > 0;

-- unseal --
UPDATE venus_checkpoint SET epoch = abs(epoch) WHERE id = 1;

-- empty_registry --
-- Runs before this database continues another database's registry.
DELETE FROM venus_captured_table;

-- empty_batches --
DELETE FROM venus_batch;

-- continue_table --
-- A table that another database has captured before. It is not read again, because the broker has its rows.
INSERT INTO venus_captured_table (table_id, namespace, name, schema_wire, fingerprint, state, reason, fill_cursor,
  fill_rows, fill_estimate, fill_done, sweep_from, log_through, number_max)
VALUES ({table_id}, {namespace}, {name}, {schema_wire}, {fingerprint}, {state}, {reason}, NULL, 0, 0, 1, 0, 0,
  {number_max});

-- continue_at --
UPDATE venus_checkpoint SET epoch = {epoch}, next_sequence = {next_sequence}, last_batch = {last_batch} WHERE id = 1;

-- add_batch --
INSERT INTO venus_batch (batch_no, epoch, first_sequence, last_sequence, digest) VALUES (?, ?, ?, ?, ?);

-- forget_batches --
DELETE FROM venus_batch WHERE batch_no < ?;

-- batch --
SELECT batch_no, epoch, first_sequence, last_sequence, digest FROM venus_batch WHERE batch_no = ?;

-- beat --
UPDATE venus_heartbeat SET beat_at = ? WHERE id = 1;

-- beat_again --
-- The heartbeat row was deleted.
INSERT INTO venus_heartbeat (id, beat_at) VALUES (1, ?);

-- log_end --
SELECT {table_id}, coalesce(max(seq), 0) FROM {log}

-- purge --
-- Removes a bounded piece. The newest consumed row stays, so that its number is not reused.
DELETE FROM {log} WHERE seq < min({through}, (SELECT min(seq) FROM {log}) + {rows});

-- log_start --
SELECT coalesce(min(seq), 0) FROM {log};

-- tables_there --
SELECT name FROM sqlite_master WHERE type = 'table';

-- analyzed --
SELECT count(*) FROM sqlite_master WHERE name = 'sqlite_stat1';

-- row_counts --
-- The first number in `stat` is the number of rows.
SELECT tbl, max(CAST(stat AS INTEGER)) FROM sqlite_stat1 GROUP BY tbl;
