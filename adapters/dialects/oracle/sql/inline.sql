-- The design of VENUS 3.1 as printed, on request (`install-triggers --mode inline`): recordID, isDeleted and Sequence are
-- columns of the application's tables, and one row for each table has its current Sequence. For its costs see
-- docs/explanation/departures.md.

-- log --
-- The paper's table 1. A transaction that writes a table locks its row until commit, so numbers are in commit order.
CREATE TABLE VENUS_TABLE_LOG (
  TABLENAME  VARCHAR2(261)  NOT NULL,
  SEQUENCE   NUMBER(19)     NOT NULL,
  CONSTRAINT VENUS_TABLE_LOG_PK PRIMARY KEY (TABLENAME)
);

-- polled --
-- The Sequence up to which each table was read. It is not in the log: adapter and application would wait for each other.
CREATE TABLE VENUS_POLLED (
  TABLENAME      VARCHAR2(261)  NOT NULL,
  LAST_SEQUENCE  NUMBER(19)     NOT NULL,
  CONSTRAINT VENUS_POLLED_PK PRIMARY KEY (TABLENAME)
);

-- log_row --
INSERT INTO VENUS_TABLE_LOG (TABLENAME, SEQUENCE)
SELECT {name}, 0 FROM DUAL WHERE NOT EXISTS (SELECT 1 FROM VENUS_TABLE_LOG WHERE TABLENAME = {name});

-- polled_row --
INSERT INTO VENUS_POLLED (TABLENAME, LAST_SEQUENCE)
SELECT {name}, 0 FROM DUAL WHERE NOT EXISTS (SELECT 1 FROM VENUS_POLLED WHERE TABLENAME = {name});

-- no_polled_row --
-- The remains of an interrupted installation.
DELETE FROM VENUS_POLLED WHERE TABLENAME = {name};

-- columns --
ALTER TABLE {table} ADD (
  RECORDID NUMBER(19){hidden},
  ISDELETED NUMBER(1){hidden} DEFAULT 0 NOT NULL,
  SEQUENCE NUMBER(19){hidden}
);

-- index --
CREATE INDEX {index} ON {table} (SEQUENCE);

-- identify --
ALTER TABLE {table} ADD CONSTRAINT {constraint} UNIQUE (RECORDID);

-- insert --
CREATE OR REPLACE NONEDITIONABLE TRIGGER {trigger}
BEFORE INSERT ON {table}
FOR EACH ROW
DISABLE
DECLARE
  V_SEQ NUMBER(19);
BEGIN
  SELECT SEQUENCE + 1 INTO V_SEQ FROM VENUS_TABLE_LOG WHERE TABLENAME = {name} FOR UPDATE;
  UPDATE VENUS_TABLE_LOG SET SEQUENCE = V_SEQ WHERE TABLENAME = {name};
  :NEW.RECORDID := V_SEQ;
  :NEW.SEQUENCE := V_SEQ;
END;

-- update --
CREATE OR REPLACE NONEDITIONABLE TRIGGER {trigger}
BEFORE UPDATE ON {table}
FOR EACH ROW
DISABLE
DECLARE
  V_SEQ NUMBER(19);
BEGIN
  SELECT SEQUENCE + 1 INTO V_SEQ FROM VENUS_TABLE_LOG WHERE TABLENAME = {name} FOR UPDATE;
  UPDATE VENUS_TABLE_LOG SET SEQUENCE = V_SEQ WHERE TABLENAME = {name};
  :NEW.RECORDID := COALESCE(:OLD.RECORDID, V_SEQ);
  :NEW.SEQUENCE := V_SEQ;
END;

-- delete --
-- A row trigger cannot turn a DELETE into an UPDATE of its own table (ORA-04091). So it refuses the DELETE.
CREATE OR REPLACE NONEDITIONABLE TRIGGER {trigger}
BEFORE DELETE ON {table}
FOR EACH ROW
DISABLE
BEGIN
  RAISE_APPLICATION_ERROR(-20100, 'VENUS, mode inline: set ISDELETED = 1 instead of deleting the row');
END;

-- number --
-- The update trigger numbers the rows that are older than the triggers, one by one.
UPDATE {table} SET ISDELETED = 0 WHERE RECORDID IS NULL;

-- begin_behind --
-- The fill reads the rows that exist already.
UPDATE VENUS_POLLED SET LAST_SEQUENCE = (SELECT SEQUENCE FROM VENUS_TABLE_LOG WHERE TABLENAME = {name})
 WHERE TABLENAME = {name};

-- tables --
SELECT C.NAMESPACE, C.NAME
  FROM VENUS_POLLED P JOIN VENUS_CAPTURED_TABLE C ON C.NAMESPACE || '.' || C.NAME = P.TABLENAME

-- has_columns --
SELECT C.COLUMN_NAME FROM ALL_TAB_COLS C
 WHERE C.OWNER = :owner AND C.TABLE_NAME = :name AND C.COLUMN_NAME = 'ISDELETED'

-- claim --
SELECT C.TABLE_ID, P.LAST_SEQUENCE, L.SEQUENCE
  FROM VENUS_POLLED P
  JOIN VENUS_TABLE_LOG L ON L.TABLENAME = P.TABLENAME
  JOIN VENUS_CAPTURED_TABLE C ON C.NAMESPACE || '.' || C.NAME = P.TABLENAME
 WHERE L.SEQUENCE > P.LAST_SEQUENCE

-- changes --
SELECT {columns}, CASE WHEN T.ISDELETED = 0 THEN 1 ELSE 0 END, 0{lobs}
  FROM {table} T WHERE T.SEQUENCE > :last AND T.SEQUENCE <= :hi

-- fill --
SELECT * FROM (SELECT {columns}, 1 AS V_THERE, 0 AS V_FRESH{lobs}
                 FROM {table} T WHERE T.ISDELETED = 0{after} ORDER BY {order}) WHERE ROWNUM <= :lines

-- fill_long --
-- A LONG may not be in a subquery: the reader stops by itself.
SELECT /*+ FIRST_ROWS(1000) */ {columns}, 1 AS V_THERE, 0 AS V_FRESH{lobs}
  FROM {table} T WHERE T.ISDELETED = 0{after} ORDER BY {order}

-- probe --
EXISTS (SELECT 1 FROM VENUS_POLLED P JOIN VENUS_TABLE_LOG L ON L.TABLENAME = P.TABLENAME
         WHERE L.SEQUENCE > P.LAST_SEQUENCE)

-- advance --
UPDATE VENUS_POLLED SET LAST_SEQUENCE = :hi WHERE TABLENAME = :name AND LAST_SEQUENCE = :last

-- waiting --
SELECT {table_id}, COUNT(*) FROM (SELECT 1 AS N FROM {table} T
 WHERE T.SEQUENCE > (SELECT LAST_SEQUENCE FROM VENUS_POLLED WHERE TABLENAME = {name}){bound}) L

-- log_view_table --
SELECT {name} AS TABLENAME, (SELECT SEQUENCE FROM VENUS_TABLE_LOG WHERE TABLENAME = {name}) AS SEQUENCE FROM DUAL

-- drop_columns --
ALTER TABLE {table} DROP (RECORDID, ISDELETED, SEQUENCE);
