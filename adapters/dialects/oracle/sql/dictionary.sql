-- Queries on Oracle's dictionary. All of them only read.

-- session --
SELECT USER, SYS_CONTEXT('USERENV', 'CURRENT_SCHEMA') FROM DUAL

-- version --
-- Such as "Oracle Database 19c Enterprise Edition" or "Personal Oracle Database 11g".
SELECT MAX(VERSION) FROM PRODUCT_COMPONENT_VERSION WHERE PRODUCT LIKE '%Oracle%'

-- full_version --
SELECT MAX(VERSION_FULL) FROM PRODUCT_COMPONENT_VERSION WHERE PRODUCT LIKE '%Oracle%'

-- tables --
-- Without the recycle bin; tables.py decides which of these are not ordinary tables.
SELECT T.OWNER, T.TABLE_NAME, T.PARTITIONED, COALESCE(T.NUM_ROWS, 0), T.TEMPORARY, T.NESTED, T.SECONDARY, T.IOT_TYPE,
       T.CLUSTER_NAME, T.ROW_MOVEMENT
  FROM ALL_TABLES T
 WHERE T.OWNER = :owner AND T.DROPPED = 'NO'
 ORDER BY T.TABLE_NAME

-- columns --
-- Without virtual columns, which structure.py reports, and without the server's hidden ones. An invisible column belongs to
-- the application; ORA_ARCHIVE_STATE marks archived rows.
SELECT C.TABLE_NAME, C.COLUMN_NAME, C.DATA_TYPE, C.DATA_TYPE_OWNER, C.DATA_LENGTH, C.CHAR_LENGTH, C.CHAR_USED,
       C.DATA_PRECISION, C.DATA_SCALE, C.NULLABLE, {collation}, C.HIDDEN_COLUMN
  FROM ALL_TAB_COLS C
 WHERE C.OWNER = :owner AND C.VIRTUAL_COLUMN = 'NO'
   AND (C.HIDDEN_COLUMN = 'NO' OR {invisible} OR C.COLUMN_NAME IN ('RECORDID', 'ORA_ARCHIVE_STATE'))
 ORDER BY C.TABLE_NAME, C.INTERNAL_COLUMN_ID

-- keys --
-- Primary key first, then unique constraints (enabled and validated), then unique indexes without a constraint.
SELECT K.TABLE_NAME, K.NAME, K.KIND, K.COLUMN_NAME
  FROM (SELECT C.TABLE_NAME, C.CONSTRAINT_NAME AS NAME, C.CONSTRAINT_TYPE AS KIND, K.COLUMN_NAME, K.POSITION AS PLACE
          FROM ALL_CONSTRAINTS C
          JOIN ALL_CONS_COLUMNS K ON K.OWNER = C.OWNER AND K.CONSTRAINT_NAME = C.CONSTRAINT_NAME
         WHERE C.OWNER = :owner AND C.CONSTRAINT_TYPE IN ('P', 'U') AND C.STATUS = 'ENABLED'
           AND C.VALIDATED = 'VALIDATED' AND C.DEFERRABLE = 'NOT DEFERRABLE'
        UNION ALL
        SELECT I.TABLE_NAME, I.INDEX_NAME, 'X', K.COLUMN_NAME, K.COLUMN_POSITION
          FROM ALL_INDEXES I
          JOIN ALL_IND_COLUMNS K ON K.INDEX_OWNER = I.OWNER AND K.INDEX_NAME = I.INDEX_NAME
         WHERE I.TABLE_OWNER = :owner AND I.UNIQUENESS = 'UNIQUE'
           AND I.INDEX_TYPE = 'NORMAL' AND I.STATUS IN ('VALID', 'N/A')
           AND (I.TABLE_NAME, I.INDEX_NAME) NOT IN (SELECT C.TABLE_NAME, C.INDEX_NAME FROM ALL_CONSTRAINTS C
                                                     WHERE C.OWNER = :owner AND C.INDEX_NAME IS NOT NULL
                                                       AND C.CONSTRAINT_TYPE IN ('P', 'U'))) K
 ORDER BY K.TABLE_NAME, K.KIND, K.NAME, K.PLACE

-- may_read --
SELECT 1 FROM {table} WHERE 1 = 0

-- exists --
-- A user who may read this view needs no privilege on the table.
SELECT 1 FROM DBA_TABLES T WHERE T.OWNER = :owner AND T.TABLE_NAME = :name

-- mark --
-- Changes when a captured table is altered (or a privilege on it is granted, which costs one superfluous comparison). It
-- is a digest and not a maximum, because these times are local and one hour repeats in autumn.
SELECT COUNT(*), SUM(ORA_HASH(O.OWNER || '.' || O.OBJECT_NAME || ' ' || TO_CHAR(O.LAST_DDL_TIME, 'YYYY-MM-DD HH24:MI:SS'))),
       MAX(CASE WHEN O.LAST_DDL_TIME > SYSDATE - 3 / 86400 THEN 1 ELSE 0 END)
  FROM ALL_OBJECTS O JOIN VENUS_CAPTURED_TABLE V ON V.NAMESPACE = O.OWNER AND V.NAME = O.OBJECT_NAME
 WHERE O.OBJECT_TYPE = 'TABLE'

-- digest --
-- Changes when a table of these schemas, a segment or index of one, or a trigger of VENUS changes. Recent times are
-- marked, because their resolution is one second.
SELECT COUNT(*), SUM(ORA_HASH(X.LOOK)), MAX(X.RECENT)
  FROM (SELECT O.OWNER || '.' || O.OBJECT_NAME || ' ' || O.SUBOBJECT_NAME || ' ' || TO_CHAR(O.DATA_OBJECT_ID) || ' ' ||
               TO_CHAR(O.LAST_DDL_TIME, 'YYYY-MM-DD HH24:MI:SS') || ' ' || O.TIMESTAMP AS LOOK,
               CASE WHEN O.LAST_DDL_TIME > SYSDATE - 3 / 86400 THEN 1 ELSE 0 END AS RECENT
          FROM ALL_OBJECTS O
         WHERE O.OWNER IN ({owners}) AND O.OBJECT_TYPE IN ('TABLE', 'TABLE PARTITION', 'TABLE SUBPARTITION', 'INDEX')
        UNION ALL
        SELECT T.TRIGGER_NAME || ' ON ' || T.TABLE_OWNER || '.' || T.TABLE_NAME || ' ' || T.STATUS || ' ' || O.STATUS || ' ' ||
               TO_CHAR(O.LAST_DDL_TIME, 'YYYY-MM-DD HH24:MI:SS'),
               CASE WHEN O.LAST_DDL_TIME > SYSDATE - 3 / 86400 THEN 1 ELSE 0 END
          FROM USER_TRIGGERS T
          JOIN USER_OBJECTS O ON O.OBJECT_TYPE = 'TRIGGER' AND O.OBJECT_NAME = T.TRIGGER_NAME
         WHERE T.TRIGGER_NAME LIKE 'VENUS\_%' ESCAPE '\') X

-- own_objects --
SELECT OBJECT_NAME, OBJECT_TYPE, STATUS FROM USER_OBJECTS WHERE OBJECT_NAME LIKE 'VENUS\_%' ESCAPE '\'

-- sequence_order --
SELECT ORDER_FLAG FROM USER_SEQUENCES WHERE SEQUENCE_NAME = 'VENUS_SEQ'

-- editioned --
-- Sessions in an older edition do not fire these.
SELECT OBJECT_NAME FROM USER_OBJECTS
 WHERE OBJECT_TYPE = 'TRIGGER' AND EDITION_NAME IS NOT NULL AND OBJECT_NAME LIKE 'VENUS\_%' ESCAPE '\'

-- unique_name --
SELECT SYS_CONTEXT('USERENV', 'DB_UNIQUE_NAME') FROM DUAL

-- container --
SELECT SYS_CONTEXT('USERENV', 'CON_NAME') FROM DUAL

-- dbid --
-- A standby that took over has the same number, a duplicate has another one.
SELECT TO_CHAR(DBID) FROM V$DATABASE

-- triggers --
-- FLASHBACK TABLE TO BEFORE DROP and a redefinition leave triggers under other names (installed_objects.py).
SELECT TRIGGER_NAME, STATUS, TABLE_OWNER, TABLE_NAME FROM USER_TRIGGERS
 WHERE TRIGGER_NAME LIKE 'VENUS\_%' ESCAPE '\' OR SUBSTR(TRIGGER_NAME, 1, 4) IN ('BIN$', 'TMP$')

-- source --
SELECT NAME, TEXT FROM USER_SOURCE
 WHERE TYPE = 'TRIGGER' AND (NAME LIKE 'VENUS\_%' ESCAPE '\' OR SUBSTR(NAME, 1, 4) IN ('BIN$', 'TMP$'))
 ORDER BY NAME, LINE

-- valve --
SELECT JOB_ACTION FROM USER_SCHEDULER_JOBS WHERE JOB_NAME = 'VENUS_VALVE'

-- log_columns --
SELECT C.TABLE_NAME, C.COLUMN_NAME, C.DATA_TYPE, C.CHAR_LENGTH, C.DATA_LENGTH, C.DATA_PRECISION
  FROM USER_TAB_COLUMNS C
 WHERE C.TABLE_NAME LIKE 'VENUS\_L\_%' ESCAPE '\' AND C.COLUMN_NAME LIKE 'K%' ORDER BY C.TABLE_NAME, C.COLUMN_ID

-- errors --
SELECT NAME, LINE, POSITION, TEXT FROM USER_ERRORS WHERE NAME = :name ORDER BY SEQUENCE

-- privileges --
-- Granted directly or through a role: the triggers touch only VENUS's own objects, so a role is enough to create them.
SELECT PRIVILEGE FROM SESSION_PRIVS

-- schema_privileges --
SELECT PRIVILEGE, SCHEMA FROM SESSION_SCHEMA_PRIVS

-- packages --
-- ALL_OBJECTS shows the packages that this user may execute.
SELECT OBJECT_NAME FROM ALL_OBJECTS
 WHERE OWNER = 'SYS' AND OBJECT_TYPE = 'PACKAGE' AND OBJECT_NAME IN ('DBMS_LOB', 'DBMS_STATS', 'DBMS_UTILITY', 'UTL_RAW')

-- fixed_statistics --
SELECT TABLE_NAME FROM USER_TAB_STATISTICS WHERE TABLE_NAME LIKE 'VENUS\_L\_%' ESCAPE '\' AND STATTYPE_LOCKED = 'ALL'

-- own_columns --
SELECT TABLE_NAME, COLUMN_NAME FROM USER_TAB_COLUMNS WHERE TABLE_NAME LIKE 'VENUS\_%' ESCAPE '\'

-- quota --
SELECT TABLESPACE_NAME, BYTES, MAX_BYTES FROM USER_TS_QUOTAS

-- user_tables --
SELECT T.TABLE_NAME FROM USER_TABLES T ORDER BY T.TABLE_NAME

-- switched_off --
-- The objects that VENUS disabled while this database was a follower, with the statements that enable them again.
SELECT NAME, SWITCH_ON, CHECK_ON FROM VENUS_SWITCHED_OFF ORDER BY NAME
