-- VENUS's own tables at a SQLite source; migrations/versions creates them.

-- tables --
SELECT table_id, schema_wire, state, coalesce(reason, ''), coalesce(fill_cursor, x''), fill_rows, fill_estimate,
       fill_done, sweep_from, log_through, number_max
FROM venus_captured_table WHERE (state = 'RELEASED') = ? ORDER BY table_id;

-- names --
SELECT name FROM venus_captured_table;

-- sign --
-- All that may change of a registered table; its columns do so with the fingerprint.
SELECT table_id, substr(fingerprint, 1, instr(fingerprint || ' ', ' ') - 1), state, reason, fill_cursor, fill_rows,
       fill_estimate, fill_done, sweep_from
  FROM venus_captured_table ORDER BY table_id;

-- look --
-- What capture has seen of the dictionary, behind the fingerprint of VENUS's own table (seen.py).
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
-- What was shipped before has lower Sequences: a sweep finds the rows that are gone. Nothing shipped, nothing to sweep.
UPDATE venus_captured_table
SET fill_cursor = NULL, fill_rows = 0, fill_done = 0,
    sweep_from = (SELECT CASE WHEN next_sequence > 1 THEN next_sequence ELSE 0 END FROM venus_checkpoint)
WHERE table_id = ?;

-- sweep --
-- Although nothing that is known here was shipped of it.
UPDATE venus_captured_table SET sweep_from = max(sweep_from, 1) WHERE table_id = ?;

-- take_up --
-- A table that was released: whatever was shipped of it before, its rows may have gone since, so it is swept.
UPDATE venus_captured_table
SET state = 'ACTIVE', reason = NULL, fill_cursor = NULL, fill_rows = 0, fill_done = 0, log_through = 0,
    fill_estimate = {estimate}, sweep_from = (SELECT next_sequence FROM venus_checkpoint)
WHERE table_id = {table_id};

-- advance_fill --
-- Only from where this chunk began: a restart that an operator ordered in between stands.
UPDATE venus_captured_table
SET fill_cursor = :cursor, fill_rows = :rows_done, fill_done = :done, sweep_from = :sweep_from
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

-- add_batch --
INSERT INTO venus_batch (batch_no, epoch, first_sequence, last_sequence, digest) VALUES (?, ?, ?, ?, ?);

-- forget_batches --
DELETE FROM venus_batch WHERE batch_no < ?;

-- batch --
SELECT batch_no, epoch, first_sequence, last_sequence, digest FROM venus_batch WHERE batch_no = ?;

-- beat --
UPDATE venus_heartbeat SET beat_at = ? WHERE id = 1;

-- beat_again --
-- Somebody has deleted the row.
INSERT INTO venus_heartbeat (id, beat_at) VALUES (1, ?);

-- log_end --
SELECT coalesce(max(seq), 0) FROM {log};

-- purge --
-- A bounded piece; the newest consumed row stays, so that its number is not given again.
DELETE FROM {log} WHERE seq < min({through}, (SELECT min(seq) FROM {log}) + {rows});

-- log_start --
SELECT coalesce(min(seq), 0) FROM {log};

-- tables_there --
SELECT name FROM sqlite_master WHERE type = 'table';

-- analyzed --
SELECT count(*) FROM sqlite_master WHERE name = 'sqlite_stat1';

-- row_counts --
-- The first figure of each line is the number of rows.
SELECT tbl, max(CAST(stat AS INTEGER)) FROM sqlite_stat1 GROUP BY tbl;
