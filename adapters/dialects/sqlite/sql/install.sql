-- The objects that VENUS adds for one captured table. The application's tables are not altered. A trigger logs the key
-- of each changed row in the application's own transaction, and does nothing else.

-- log_table --
-- AUTOINCREMENT would leave sqlite_sequence behind. Numbers are not reused without it, because the newest consumed row
-- is never purged. The key columns have no type, so that they keep the storage class.
CREATE TABLE {log} (seq INTEGER PRIMARY KEY, op TEXT NOT NULL, {log_columns});

-- insert --
CREATE TRIGGER {trigger} AFTER INSERT ON {table} BEGIN
  INSERT INTO {log} (op, {log_columns}) VALUES ('I', {new_key});
END;

-- key_change --
CREATE TRIGGER {trigger} AFTER UPDATE ON {table} WHEN NOT ({same_key}) BEGIN
  INSERT INTO {log} (op, {log_columns}) VALUES ('D', {old_key});
END;

-- update --
CREATE TRIGGER {trigger} AFTER UPDATE ON {table} BEGIN
  INSERT INTO {log} (op, {log_columns}) VALUES ('U', {new_key});
END;

-- delete --
CREATE TRIGGER {trigger} AFTER DELETE ON {table} BEGIN
  INSERT INTO {log} (op, {log_columns}) VALUES ('D', {old_key});
END;

-- insert_victims --
-- INSERT OR REPLACE removes every row that collides through a unique index, and fires no delete trigger for it unless
-- the connection has recursive_triggers on.
CREATE TRIGGER {trigger} BEFORE INSERT ON {table} BEGIN
  INSERT INTO {log} (op, {log_columns}) SELECT 'D', {victim_key} FROM {table} AS x WHERE {collision};
END;

-- update_victims --
-- UPDATE OR REPLACE does the same.
CREATE TRIGGER {trigger} BEFORE UPDATE ON {table} WHEN {moved} BEGIN
  INSERT INTO {log} (op, {log_columns}) SELECT 'D', {victim_key} FROM {table} AS x WHERE {collision};
END;

-- valve --
-- A log at its limit takes no more rows, also while VENUS is not running. The application's statement succeeds, and the
-- table has to be read again. The number of a row that is removed here was never read, so it may be used again.
CREATE TRIGGER {trigger} AFTER INSERT ON {log}
WHEN NEW.seq - (SELECT log_through FROM venus_captured_table WHERE table_id = {table_id}) > {rows} BEGIN
  UPDATE venus_captured_table SET state = 'RESYNC', reason = {reason} WHERE table_id = {table_id} AND state = 'ACTIVE';
  DELETE FROM {log} WHERE seq = NEW.seq;
END;

-- drop_table --
DROP TABLE {log};

-- drop_trigger --
DROP TRIGGER {trigger};
