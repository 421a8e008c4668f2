-- The registry of captured tables, the checkpoint row and the batch table.

-- tables --
SELECT TABLE_ID, SCHEMA_WIRE, STATE, REASON, FILL_CURSOR, FILL_ROWS, FILL_ESTIMATE, FILL_DONE, SWEEP_FROM, NUMBER_MAX
  FROM VENUS_CAPTURED_TABLE WHERE STATE {is} 'RELEASED' ORDER BY TABLE_ID

-- sign --
-- A digest of everything in the registry that may change for a table. The fingerprint stands for its columns.
SELECT COUNT(*), SUM(ORA_HASH(TABLE_ID || ' ' || FINGERPRINT || ' ' || STATE || ' ' || REASON || ' ' || FILL_ROWS || ' ' ||
                              FILL_ESTIMATE || ' ' || FILL_DONE || ' ' || SWEEP_FROM || ' ' ||
                              CASE WHEN FILL_CURSOR IS NULL THEN 0 ELSE 1 END))
  FROM VENUS_CAPTURED_TABLE

-- digest --
-- A digest as in `sign`, without the progress of fills; and the number of paused tables.
SELECT COUNT(*), SUM(ORA_HASH(TABLE_ID || ' ' || FINGERPRINT || ' ' || STATE || ' ' || REASON)),
       COUNT(CASE WHEN STATE = 'PAUSED' THEN 1 END)
  FROM VENUS_CAPTURED_TABLE

-- captured_names --
SELECT NAMESPACE, NAME FROM VENUS_CAPTURED_TABLE WHERE STATE <> 'RELEASED'

-- known_names --
-- Including tables that were taken out of capture.
SELECT NAMESPACE, NAME FROM VENUS_CAPTURED_TABLE

-- states --
SELECT TABLE_ID, STATE, FINGERPRINT FROM VENUS_CAPTURED_TABLE WHERE STATE <> 'RELEASED'

-- register --
-- A block, because a literal of SQL is too short for SCHEMA_WIRE, which describes the columns. A table that another
-- database has captured before is not read again, because the broker has its rows.
DECLARE
  V_WIRE BLOB;
BEGIN
  DBMS_LOB.CREATETEMPORARY(V_WIRE, TRUE);
{pieces}
  INSERT INTO VENUS_CAPTURED_TABLE (TABLE_ID, NAMESPACE, NAME, SCHEMA_WIRE, FINGERPRINT, STATE, REASON, FILL_ROWS,
                                    FILL_ESTIMATE, FILL_DONE, SWEEP_FROM, NUMBER_MAX)
  VALUES ({table_id}, {namespace}, {name}, V_WIRE, {fingerprint}, {state}, {reason}, 0,
          {estimate}, {fill_done}, 0, {number_max});
END;

-- register_piece --
  DBMS_LOB.WRITEAPPEND(V_WIRE, {nbytes}, {bytes});

-- installed --
UPDATE VENUS_CAPTURED_TABLE SET STATE = {state}, REASON = {reason} WHERE TABLE_ID = {table_id}

-- new_version --
UPDATE VENUS_CAPTURED_TABLE SET SCHEMA_WIRE = :schema_wire, FINGERPRINT = :fingerprint, NUMBER_MAX = :number_max
 WHERE TABLE_ID = :table_id

-- set_state --
UPDATE VENUS_CAPTURED_TABLE SET STATE = :state, REASON = :reason WHERE TABLE_ID = :table_id

-- resync --
-- Does nothing if an operator has removed the triggers since capture read the registry.
UPDATE VENUS_CAPTURED_TABLE SET STATE = 'RESYNC', REASON = :reason WHERE TABLE_ID = :table_id AND STATE = 'ACTIVE'

-- missed --
-- Does nothing during a sweep, which detects missing rows itself.
UPDATE VENUS_CAPTURED_TABLE SET STATE = 'RESYNC', REASON = :reason
 WHERE TABLE_ID = :table_id AND STATE = 'ACTIVE' AND (FILL_DONE = 1 OR SWEEP_FROM = 0)

-- restart_fill --
-- Rows shipped before have lower Sequences, so a sweep detects missing rows. Without shipped rows there is no sweep.
UPDATE VENUS_CAPTURED_TABLE
   SET SWEEP_FROM = (SELECT CASE WHEN NEXT_SEQUENCE > 1 THEN NEXT_SEQUENCE ELSE 0 END FROM VENUS_CHECKPOINT WHERE ID = 1),
       FILL_CURSOR = NULL, FILL_DONE = 0, FILL_ROWS = 0,
       REASON = CASE WHEN SUBSTR(REASON, 1, 13) = 'compared with' THEN NULL ELSE REASON END
 WHERE TABLE_ID = :table_id

-- begin_comparison --
-- Applies only before the fill has read a row.
UPDATE VENUS_CAPTURED_TABLE SET REASON = :reason
 WHERE TABLE_ID = :table_id AND STATE = 'ACTIVE' AND FILL_DONE = 0 AND FILL_CURSOR IS NULL

-- compare_again --
-- A running comparison may have passed the rows.
UPDATE VENUS_CAPTURED_TABLE SET REASON = :reason
 WHERE TABLE_ID = :table_id AND STATE = 'ACTIVE' AND FILL_DONE = 0 AND SUBSTR(REASON, 1, 13) = 'compared with'

-- advance_comparison --
-- Applies only if no other fill or comparison was requested since, and no other change was missed.
UPDATE VENUS_CAPTURED_TABLE SET REASON = :new_reason, FILL_ROWS = :rows_done, FILL_DONE = :done
 WHERE TABLE_ID = :table_id AND STATE = 'ACTIVE' AND REASON = :known_reason AND FILL_DONE = 0 AND FILL_CURSOR IS NULL

-- sweep --
-- Forces a sweep even if the source has no record of shipped rows.
UPDATE VENUS_CAPTURED_TABLE SET SWEEP_FROM = GREATEST(SWEEP_FROM, 1) WHERE TABLE_ID = :table_id

-- forget_segments --
-- Changes to a table while it was not captured are no reason to read it again.
DELETE FROM VENUS_SEGMENT WHERE TABLE_ID = {table_id}

-- take_up --
-- A released table: rows that were shipped earlier may have been deleted since, so the fill ends in a sweep.
UPDATE VENUS_CAPTURED_TABLE
   SET STATE = 'PAUSED', REASON = {reason}, FILL_CURSOR = NULL, FILL_DONE = 0, FILL_ROWS = 0,
       SWEEP_FROM = (SELECT NEXT_SEQUENCE FROM VENUS_CHECKPOINT WHERE ID = 1)
 WHERE TABLE_ID = {table_id}

-- advance_fill --
-- Only if the fill is still where this chunk began: a restart by an operator in between must not be undone.
UPDATE VENUS_CAPTURED_TABLE
   SET FILL_CURSOR = :cursor, FILL_ROWS = :rows_done, FILL_DONE = :done, SWEEP_FROM = :sweep_from,
       REASON = CASE WHEN SUBSTR(REASON, 1, 13) = 'compared with' THEN NULL ELSE REASON END
 WHERE TABLE_ID = :table_id AND FILL_ROWS = :was_rows AND SWEEP_FROM = :was_sweep AND FILL_DONE = 0

-- identity --
SELECT FACTS FROM VENUS_IDENTITY WHERE ID = 1

-- forget_identity --
DELETE FROM VENUS_IDENTITY

-- store_identity --
INSERT INTO VENUS_IDENTITY (ID, FACTS) VALUES (1, :facts)

-- state --
SELECT EPOCH, NEXT_SEQUENCE, LAST_BATCH FROM VENUS_CHECKPOINT WHERE ID = 1

-- lock --
-- Waits for an instance that is committing.
SELECT EPOCH, NEXT_SEQUENCE, LAST_BATCH FROM VENUS_CHECKPOINT WHERE ID = 1 FOR UPDATE

-- raise_epoch --
UPDATE VENUS_CHECKPOINT SET EPOCH = :epoch WHERE ID = 1

-- seal --
-- A negative epoch stops every process from capturing here, until another database hands capture over to this one.
UPDATE VENUS_CHECKPOINT SET EPOCH = -EPOCH WHERE ID = 1 AND EPOCH = {epoch} AND EPOCH > 0

-- unseal --
UPDATE VENUS_CHECKPOINT SET EPOCH = ABS(EPOCH) WHERE ID = 1

-- empty_registry --
-- Runs before this database continues another database's registry.
DELETE FROM VENUS_CAPTURED_TABLE

-- empty_batches --
DELETE FROM VENUS_BATCH

-- empty_ddl --
-- Only VENUS has altered tables here while this database was a follower.
DELETE FROM VENUS_DDL

-- empty_segments --
DELETE FROM VENUS_SEGMENT

-- empty_log --
DELETE FROM {log}

-- is_waiting --
SELECT COUNT(*) FROM {log} WHERE ROWNUM <= 1

-- continue_at --
UPDATE VENUS_CHECKPOINT SET EPOCH = {epoch}, NEXT_SEQUENCE = {next_sequence}, LAST_BATCH = {last_batch} WHERE ID = 1

-- advance --
UPDATE VENUS_CHECKPOINT SET NEXT_SEQUENCE = :next_sequence, LAST_BATCH = :last_batch WHERE ID = 1

-- add_batch --
INSERT INTO VENUS_BATCH (BATCH_NO, EPOCH, FIRST_SEQUENCE, LAST_SEQUENCE, DIGEST) VALUES (:1, :2, :3, :4, :5)

-- batch --
SELECT BATCH_NO, EPOCH, FIRST_SEQUENCE, LAST_SEQUENCE, DIGEST FROM VENUS_BATCH WHERE BATCH_NO = :batch_no

-- forget_batches --
DELETE FROM VENUS_BATCH WHERE BATCH_NO < :below

-- beat --
UPDATE VENUS_HEARTBEAT SET BEAT_AT = :beat_at WHERE ID = 1

-- beat_again --
-- The row was deleted.
INSERT INTO VENUS_HEARTBEAT (ID, BEAT_AT) VALUES (1, :beat_at)

-- clock --
SELECT TO_CHAR(SYS_EXTRACT_UTC(SYSTIMESTAMP), 'YYYY-MM-DD HH24:MI:SS.FF6') FROM DUAL

-- ddl_rows --
SELECT SEQ, EVENT, OBJ_OWNER, OBJ_NAME, SQL_TEXT FROM VENUS_DDL ORDER BY SEQ

-- ddl_done --
DELETE FROM VENUS_DDL WHERE SEQ = :1

-- log_count --
SELECT {table_id}, COUNT(*) FROM (SELECT 1 AS N FROM {log}{bound}) L
