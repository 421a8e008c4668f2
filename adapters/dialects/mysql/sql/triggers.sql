-- What VENUS adds for one captured table. The application's tables are not altered. A trigger logs the key of each
-- changed row in the application's own transaction, and does nothing else.

-- log_table --
-- The comment describes the key. A log whose key differs from the table's is created again.
CREATE TABLE {log} (
  seq BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY, op CHAR(1) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  {columns}) ENGINE=InnoDB COMMENT={comment}

-- wider_log --
ALTER TABLE {log} {columns}, COMMENT={comment}

-- marks_table --
CREATE TABLE {marks} (table_id INT NOT NULL PRIMARY KEY, mark VARCHAR(64) CHARACTER SET ascii NOT NULL) ENGINE=InnoDB

-- create --
CREATE TRIGGER {trigger} {timing} {event} ON {table} FOR EACH ROW {body}

-- unless_applied --
-- The body in a database that may follow: a session of VENUS that applies the other one's changes sets the variable.
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
