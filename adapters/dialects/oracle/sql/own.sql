-- VENUS's own objects at an Oracle source, in the schema of the user it connects as.

-- sequence --
-- Only identifies log rows, so its order is irrelevant: NOORDER avoids the lock between the instances of a RAC.
CREATE SEQUENCE VENUS_SEQ START WITH 1 INCREMENT BY 1 MINVALUE 1 NOCYCLE CACHE 1000 NOORDER;

-- sequence_order --
-- For a sequence that an older version created with ORDER.
ALTER SEQUENCE VENUS_SEQ NOORDER;

-- checkpoint --
CREATE TABLE VENUS_CHECKPOINT (
  ID             NUMBER(1)   NOT NULL,
  EPOCH          NUMBER(19)  NOT NULL,
  NEXT_SEQUENCE  NUMBER(19)  NOT NULL,
  LAST_BATCH     NUMBER(19)  NOT NULL,
  CONSTRAINT VENUS_CHECKPOINT_PK PRIMARY KEY (ID)
);

-- checkpoint_row --
INSERT INTO VENUS_CHECKPOINT (ID, EPOCH, NEXT_SEQUENCE, LAST_BATCH)
SELECT 1, 0, 1, 0 FROM DUAL WHERE NOT EXISTS (SELECT 1 FROM VENUS_CHECKPOINT);

-- batch --
-- DIGEST: 16 hexadecimal digits.
CREATE TABLE VENUS_BATCH (
  BATCH_NO        NUMBER(19)    NOT NULL,
  EPOCH           NUMBER(19)    NOT NULL,
  FIRST_SEQUENCE  NUMBER(19)    NOT NULL,
  LAST_SEQUENCE   NUMBER(19)    NOT NULL,
  DIGEST          VARCHAR2(16)  NOT NULL,
  CONSTRAINT VENUS_BATCH_PK PRIMARY KEY (BATCH_NO)
);

-- captured_table --
-- SCHEMA_WIRE: a venus.wire.TableSchema. FILL_CURSOR: NULL = at the start.
CREATE TABLE VENUS_CAPTURED_TABLE (
  TABLE_ID       NUMBER(10)              NOT NULL,
  NAMESPACE      VARCHAR2({name_bytes})  NOT NULL,
  NAME           VARCHAR2({name_bytes})  NOT NULL,
  SCHEMA_WIRE    BLOB                    NOT NULL,
  FINGERPRINT    VARCHAR2(64)            NOT NULL,
  STATE          VARCHAR2(16)            NOT NULL,
  REASON         VARCHAR2(2000),
  FILL_CURSOR    BLOB,
  FILL_ROWS      NUMBER(19)              NOT NULL,
  FILL_ESTIMATE  NUMBER(19)              NOT NULL,
  FILL_DONE      NUMBER(1)               NOT NULL,
  SWEEP_FROM     NUMBER(19)              NOT NULL,
  NUMBER_MAX     NUMBER(10)              NOT NULL,
  CONSTRAINT VENUS_CAPTURED_TABLE_PK PRIMARY KEY (TABLE_ID),
  CONSTRAINT VENUS_CAPTURED_TABLE_UK UNIQUE (NAMESPACE, NAME)
);

-- heartbeat --
-- A row that VENUS updates to measure the lag while the application is idle.
CREATE TABLE VENUS_HEARTBEAT (
  ID       NUMBER(9)   NOT NULL,
  BEAT_AT  NUMBER(18)  NOT NULL,
  CONSTRAINT VENUS_HEARTBEAT_PK PRIMARY KEY (ID)
);

-- heartbeat_row --
INSERT INTO VENUS_HEARTBEAT (ID, BEAT_AT) SELECT 1, 0 FROM DUAL WHERE NOT EXISTS (SELECT 1 FROM VENUS_HEARTBEAT);

-- ddl --
CREATE TABLE VENUS_DDL (
  SEQ        NUMBER(19)    NOT NULL,
  EVENT      VARCHAR2(30)  NOT NULL,
  OBJ_OWNER  VARCHAR2({name_bytes}),
  OBJ_NAME   VARCHAR2({name_bytes}),
  SQL_TEXT   VARCHAR2(2000),
  CONSTRAINT VENUS_DDL_PK PRIMARY KEY (SEQ)
);

-- segment --
-- The numbers of the segments of each captured table at the last comparison (segments.py).
CREATE TABLE VENUS_SEGMENT (
  TABLE_ID  NUMBER(10)              NOT NULL,
  SEGMENT   VARCHAR2({name_bytes})  NOT NULL,
  MARK      VARCHAR2(40)            NOT NULL,
  CONSTRAINT VENUS_SEGMENT_PK PRIMARY KEY (TABLE_ID, SEGMENT)
);

-- identity --
-- The identity of the captured database, as JSON. A copy of the database must not be captured in its place.
CREATE TABLE VENUS_IDENTITY (
  ID     NUMBER(1)       NOT NULL,
  FACTS  VARCHAR2(1000)  NOT NULL,
  CONSTRAINT VENUS_IDENTITY_PK PRIMARY KEY (ID)
);

-- ddl_text --
-- For older installations without this column.
ALTER TABLE VENUS_DDL ADD (SQL_TEXT VARCHAR2(2000));

-- ddl_trigger --
-- ON SCHEMA fires only for the schema's owner; ON DATABASE needs ADMINISTER DATABASE TRIGGER.
-- The trigger must never fail a DDL statement. So it names its tables in dynamic SQL only, and does not become invalid when
-- they are dropped. It ignores every error (no room, no quota), because VENUS compares the dictionary all the same.
-- It is not autonomous: a record that is visible before its TRUNCATE has completed would be carried out too early.
CREATE OR REPLACE NONEDITIONABLE TRIGGER VENUS_DDL_TRG
AFTER TRUNCATE OR ALTER OR DROP OR RENAME ON {scope}
DISABLE
DECLARE
  V_PIECES  ORA_NAME_LIST_T;
  V_COUNT   PLS_INTEGER;
  V_TEXT    VARCHAR2(2000);
BEGIN
  IF ORA_DICT_OBJ_TYPE = 'TABLE' THEN
    V_COUNT := ORA_SQL_TXT(V_PIECES);
    FOR N IN 1 .. LEAST(COALESCE(V_COUNT, 0), 24) LOOP
      V_TEXT := V_TEXT || V_PIECES(N);
    END LOOP;
    EXECUTE IMMEDIATE
      'INSERT INTO {owner}VENUS_DDL (SEQ, EVENT, OBJ_OWNER, OBJ_NAME, SQL_TEXT)
       SELECT {owner}VENUS_SEQ.NEXTVAL, :1, NAMESPACE, NAME, :2 FROM {owner}VENUS_CAPTURED_TABLE
        WHERE NAMESPACE = :3 AND NAME = :4'
      USING ORA_SYSEVENT, V_TEXT, ORA_DICT_OBJ_OWNER, ORA_DICT_OBJ_NAME;
  END IF;
EXCEPTION
  WHEN OTHERS THEN
    NULL;
END;

-- log_view --
-- The (TableName, Sequence) log of VENUS 3.1, without a row for which all writers of a table would wait.
CREATE OR REPLACE VIEW VENUS_LOG (TABLENAME, SEQUENCE) AS
{tables}

-- log_view_table --
SELECT {qualified_name} AS TABLENAME, (SELECT MAX(SEQ) FROM {log}) AS SEQUENCE FROM DUAL
