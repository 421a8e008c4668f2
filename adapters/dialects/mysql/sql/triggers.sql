-- The objects that VENUS adds for one captured table. The application's tables are not altered. A trigger logs the key
-- of each changed row in the application's own transaction, and does nothing else.

-- log_table --
-- The comment describes the key. A log whose key differs from the table's is created again.
CREATE TABLE {log} (
  seq BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY, op CHAR(1) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  {columns}) ENGINE=InnoDB COMMENT={comment}

-- wider_log --
ALTER TABLE {log} {columns}, COMMENT={comment}

-- marks_table --
CREATE TABLE {table} (table_id INT NOT NULL PRIMARY KEY, mark VARCHAR(64) CHARACTER SET ascii NOT NULL) ENGINE=InnoDB

-- identity_table --
-- The identity of the captured database, as JSON. A copy of the database must not be captured in its place.
CREATE TABLE {table} (id INT NOT NULL PRIMARY KEY, facts TEXT CHARACTER SET utf8mb4 NOT NULL) ENGINE=InnoDB

-- create --
CREATE TRIGGER {trigger} {timing} {event} ON {table} FOR EACH ROW {body}

-- unless_applied --
-- The trigger's body in a database that may become a follower. VENUS sets the variable in sessions that apply changes.
IF @venus_apply IS NULL THEN {body}; END IF

-- drop_trigger --
DROP TRIGGER {trigger}

-- drop_table --
DROP TABLE {table}

-- insert --
INSERT INTO {log} (op, {keys}) VALUES ('I', {new})

-- update --
BEGIN
  IF NOT ({same}) THEN
    INSERT INTO {log} (op, {keys}) VALUES ('D', {old});
  END IF;
  INSERT INTO {log} (op, {keys}) VALUES ('U', {new});
END

-- delete --
INSERT INTO {log} (op, {keys}) VALUES ('D', {old})

-- valve --
-- Limits the size of the logs, also while VENUS is not running. It changes the registry before it drops triggers: if it
-- stops in between, the table is only read again without need. A statement that fails, for example because a table is in
-- use, is tried again a minute later.
CREATE EVENT {event} ON SCHEDULE EVERY 1 MINUTE COMMENT {comment} DO BEGIN
  DECLARE CONTINUE HANDLER FOR SQLEXCEPTION BEGIN END;
  SET SESSION lock_wait_timeout = {wait_s}, SESSION innodb_lock_wait_timeout = {wait_s};
  {logs};
END

-- valve_log --
-- The range of its numbers is a quick upper bound of a log's rows: only a log above the limit is counted.
IF (SELECT coalesce(max(seq) - min(seq), 0) FROM {log}) >= {rows} - 1
   AND EXISTS (SELECT 1 FROM {log} LIMIT {rows_before}, 1) THEN
    UPDATE venus_captured_table SET state = 'RESYNC', reason = {reason}
     WHERE table_id = {table_id} AND state NOT IN ('PAUSED', 'RELEASING', 'RELEASED');
    {drops}
  END IF;

-- drop_valve --
DROP EVENT IF EXISTS {event}

-- installed_valve --
-- A replica disables the event, and its promotion does not enable it.
SELECT event_comment, status FROM information_schema.events WHERE event_schema = {database} AND event_name = {name}

-- scheduler --
SELECT @@global.event_scheduler

-- cascade --
-- A locking read sees the newest rows at every isolation level, as the cascade does. FOR UPDATE would fail a statement of
-- the application that uses the child itself (error 1442). It inserts row by row, because INSERT ... SELECT locks the
-- log table's counter until the statement ends, and two such statements would fail each other (error 1467).
BEGIN
  DECLARE ended BOOLEAN DEFAULT FALSE;
  {variables}
  DECLARE children CURSOR FOR SELECT {child_key} FROM {path} WHERE {begins} LOCK IN SHARE MODE;
  DECLARE CONTINUE HANDLER FOR NOT FOUND SET ended = TRUE;
  IF {happens} THEN
    OPEN children;
    noting: LOOP
      FETCH children INTO {values};
      IF ended THEN
        LEAVE noting;
      END IF;
      INSERT INTO {log} (op, {keys}) VALUES ('D', {values});
    END LOOP;
    CLOSE children;
  END IF;
END
