-- The record of a database that may become the application's and be taken back, and the triggers that reject writes.

-- exists --
SELECT COUNT(*) FROM USER_TABLES T WHERE T.TABLE_NAME = 'VENUS_SIDE'

-- create --
-- Times are microseconds since 1970. A row without a business is no record.
CREATE TABLE IF NOT EXISTS VENUS_SIDE (
    ID NUMBER(1) NOT NULL PRIMARY KEY, BUSINESS VARCHAR2(300 BYTE), NAME VARCHAR2(300 BYTE), PEER VARCHAR2(300 BYTE),
    STATE VARCHAR2(20 BYTE) NOT NULL, SWITCH_NO NUMBER(19) NOT NULL, AT_OFFSET NUMBER(19) NOT NULL,
    CHANGED_AT NUMBER(19) NOT NULL
)

-- create_cutover --
CREATE TABLE IF NOT EXISTS VENUS_CUTOVER (
    GROUP_NAME VARCHAR2(300 BYTE) NOT NULL PRIMARY KEY, STATE VARCHAR2(20 BYTE) NOT NULL, SEQUENCE_NO NUMBER(19) NOT NULL,
    AT_OFFSET NUMBER(19) NOT NULL, CERTIFICATE CLOB, MARKED_AT NUMBER(19) NOT NULL, DONE_AT NUMBER(19)
)

-- create_switched_off --
-- Constraints and triggers that cannot be disabled for single sessions, with the statements that disable them, that enable
-- them before the application writes, and that check the rows afterwards.
CREATE TABLE IF NOT EXISTS VENUS_SWITCHED_OFF (
    NAME VARCHAR2(261 BYTE) NOT NULL PRIMARY KEY, SWITCH_OFF VARCHAR2(1000 BYTE) NOT NULL,
    SWITCH_ON VARCHAR2(1000 BYTE) NOT NULL, CHECK_ON VARCHAR2(1000 BYTE)
)

-- create_row --
INSERT INTO VENUS_SIDE (ID, STATE, SWITCH_NO, AT_OFFSET, CHANGED_AT)
SELECT 1, 'OPEN', 0, 0, {now} FROM DUAL WHERE NOT EXISTS (SELECT 1 FROM VENUS_SIDE)

-- read --
SELECT BUSINESS, NAME, PEER, STATE, SWITCH_NO, AT_OFFSET, CHANGED_AT FROM VENUS_SIDE
 WHERE ID = 1 AND BUSINESS IS NOT NULL

-- hold --
-- Another process locks the record only while it changes it.
SELECT STATE FROM VENUS_SIDE WHERE ID = 1 FOR UPDATE WAIT {seconds}

-- put --
UPDATE VENUS_SIDE SET BUSINESS = :p_business, NAME = :p_name, PEER = :p_peer, STATE = :p_state, SWITCH_NO = :p_switch,
    AT_OFFSET = :p_offset, CHANGED_AT = {now} WHERE ID = 1

-- reject --
-- Sessions of VENUS that apply changes may write. An autonomous transaction sees the newest state, regardless of the
-- snapshot of the application's transaction.
CREATE OR REPLACE NONEDITIONABLE TRIGGER {trigger}
BEFORE {event} ON {table}
FOR EACH ROW
DISABLE
DECLARE
  FUNCTION NEWEST_STATE RETURN VARCHAR2 IS
    PRAGMA AUTONOMOUS_TRANSACTION;
    V_STATE VARCHAR2(20);
  BEGIN
    SELECT STATE INTO V_STATE FROM VENUS_SIDE WHERE ID = 1;
    COMMIT;
    RETURN V_STATE;
  END;
BEGIN
  IF COALESCE(SYS_CONTEXT('USERENV', 'CLIENT_INFO'), '-') <> {mark} THEN
    IF NEWEST_STATE <> 'OPEN' THEN
      RAISE_APPLICATION_ERROR(-20104,
        'VENUS keeps this database equal to another one; `venus status` shows which one accepts writes');
    END IF;
  END IF;
END;

-- rejecting --
SELECT T.TRIGGER_NAME, T.STATUS FROM USER_TRIGGERS T WHERE SUBSTR(T.TRIGGER_NAME, 1, 10) = 'VENUS_REJ_'

-- application_triggers --
-- Triggers of the application that fire for changes of VENUS.
SELECT T.TABLE_NAME, T.OWNER, T.TRIGGER_NAME FROM ALL_TRIGGERS T
 WHERE T.TABLE_OWNER = :p_owner AND T.STATUS = 'ENABLED' AND T.BASE_OBJECT_TYPE = 'TABLE'
 ORDER BY T.TABLE_NAME, T.TRIGGER_NAME

-- always_identities --
SELECT I.TABLE_NAME, I.COLUMN_NAME FROM ALL_TAB_IDENTITY_COLS I
 WHERE I.OWNER = :p_owner AND I.GENERATION_TYPE = 'ALWAYS'

-- foreign_keys --
-- The enabled foreign keys of a schema, and the tables to which they refer.
SELECT C.TABLE_NAME, C.CONSTRAINT_NAME, C.VALIDATED, R.TABLE_NAME
  FROM ALL_CONSTRAINTS C JOIN ALL_CONSTRAINTS R ON R.OWNER = C.R_OWNER AND R.CONSTRAINT_NAME = C.R_CONSTRAINT_NAME
 WHERE C.OWNER = :p_owner AND C.CONSTRAINT_TYPE = 'R' AND C.STATUS = 'ENABLED'
 ORDER BY C.TABLE_NAME, C.CONSTRAINT_NAME

-- note_switched_off --
INSERT INTO VENUS_SWITCHED_OFF (NAME, SWITCH_OFF, SWITCH_ON, CHECK_ON)
SELECT :p_name, :p_switch_off, :p_switch_on, :p_check_on FROM DUAL
 WHERE NOT EXISTS (SELECT 1 FROM VENUS_SWITCHED_OFF S WHERE S.NAME = :p_name)

-- disable_key --
ALTER TABLE {table} DISABLE CONSTRAINT {name}

-- enable_key --
-- New rows are checked at once.
ALTER TABLE {table} ENABLE NOVALIDATE CONSTRAINT {name}

-- validate_key --
-- Lets the application write meanwhile.
ALTER TABLE {table} MODIFY CONSTRAINT {name} VALIDATE

-- disable_trigger --
ALTER TRIGGER {name} DISABLE

-- enable_trigger --
ALTER TRIGGER {name} ENABLE

-- switched_off --
SELECT NAME, SWITCH_OFF, SWITCH_ON, CHECK_ON FROM VENUS_SWITCHED_OFF ORDER BY NAME

-- forget_switched_off --
DELETE FROM VENUS_SWITCHED_OFF WHERE NAME = :p_name

-- count_rows --
SELECT COUNT(*) FROM (SELECT 1 AS N FROM {table} WHERE {condition} AND ROWNUM <= {most}) R

-- make_lock --
INSERT INTO VENUS_TARGET_LOCK (GROUP_NAME) VALUES ('venus switch')

-- try_lock --
SELECT 1 FROM VENUS_TARGET_LOCK WHERE GROUP_NAME = 'venus switch' FOR UPDATE NOWAIT
