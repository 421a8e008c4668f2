-- Oracle's dictionary, as far as VENUS asks it, on top of MariaDB's information_schema. Made once for a server, in a
-- schema of its own: what an application finds in APP is its own, and nothing but APP is looked at.

CREATE TABLE PRODUCT_COMPONENT_VERSION AS SELECT 'Oracle stand-in' AS PRODUCT, '19.0.0.0.0' AS VERSION;

CREATE TABLE DATABASE_PROPERTIES AS SELECT 'DEFAULT_EDITION' AS PROPERTY_NAME, 'ORA$BASE' AS PROPERTY_VALUE;

CREATE TABLE SESSION_PRIVS (PRIVILEGE VARCHAR(40) PRIMARY KEY);

CREATE TABLE USER_TS_QUOTAS (TABLESPACE_NAME VARCHAR(30), BYTES BIGINT, MAX_BYTES BIGINT);

CREATE TABLE ALL_POLICIES (OBJECT_OWNER VARCHAR(30), OBJECT_NAME VARCHAR(30), POLICY_NAME VARCHAR(30), SEL VARCHAR(3),
  ENABLE VARCHAR(3));

CREATE TABLE REDACTION_POLICIES (OBJECT_OWNER VARCHAR(30), OBJECT_NAME VARCHAR(30), POLICY_NAME VARCHAR(30),
  ENABLE VARCHAR(7));

CREATE VIEW USER_USERS AS SELECT 'USERS' AS DEFAULT_TABLESPACE;

CREATE VIEW USER_FREE_SPACE AS SELECT 'USERS' AS TABLESPACE_NAME, 1073741824 AS BYTES;

CREATE TABLE USER_ERRORS (NAME VARCHAR(30), LINE INT, POSITION INT, TEXT VARCHAR(200), SEQUENCE INT);

-- Tables that a test declares to be written by an open transaction, as a fence names them.
CREATE TABLE PENDING_DML (NAME VARCHAR(300) PRIMARY KEY);

CREATE TABLE FIXED_STATISTICS (NAME VARCHAR(30) PRIMARY KEY);

CREATE VIEW USER_TAB_STATISTICS AS
SELECT F.NAME AS TABLE_NAME, 'ALL' AS STATTYPE_LOCKED
  FROM FIXED_STATISTICS F JOIN information_schema.tables T ON T.table_schema = 'APP' AND T.table_name = F.NAME;

-- Triggers that a test declares invalid, and the DDL trigger, which MariaDB cannot have.
CREATE TABLE INVALID_TRIGGERS (NAME VARCHAR(30) PRIMARY KEY);

CREATE TABLE DDL_TRIGGERS (NAME VARCHAR(30) PRIMARY KEY, TEXT VARCHAR(4000));

-- What a test says of a table that MariaDB has no such sort of.
CREATE TABLE SORTS (TABLE_NAME VARCHAR(30) PRIMARY KEY, SORT VARCHAR(30));

CREATE VIEW ALL_TABLES AS
SELECT t.table_schema AS OWNER, t.table_name AS TABLE_NAME,
       CASE WHEN t.create_options LIKE '%partitioned%' THEN 'YES' ELSE 'NO' END AS PARTITIONED, t.table_rows AS NUM_ROWS,
       CASE s.SORT WHEN 'temporary' THEN 'Y' ELSE 'N' END AS TEMPORARY,
       CASE s.SORT WHEN 'nested' THEN 'YES' ELSE 'NO' END AS NESTED,
       CASE s.SORT WHEN 'secondary' THEN 'Y' ELSE 'N' END AS SECONDARY, 'NO' AS DROPPED,
       CASE WHEN s.SORT LIKE 'IOT%' THEN s.SORT END AS IOT_TYPE,
       CASE s.SORT WHEN 'clustered' THEN 'ITS_CLUSTER' END AS CLUSTER_NAME,
       CASE s.SORT WHEN 'movable' THEN 'ENABLED' ELSE 'DISABLED' END AS ROW_MOVEMENT
  FROM information_schema.tables t LEFT JOIN SORTS s ON s.TABLE_NAME = t.table_name
 WHERE t.table_type = 'BASE TABLE' AND t.table_schema = 'APP'
   AND (s.SORT IS NULL OR s.SORT NOT IN ('object table', 'XMLType table'));

CREATE VIEW ALL_MVIEWS AS
SELECT 'APP' AS OWNER, TABLE_NAME AS CONTAINER_NAME FROM SORTS WHERE SORT = 'materialized view';

CREATE VIEW ALL_MVIEW_LOGS AS
SELECT 'APP' AS LOG_OWNER, TABLE_NAME AS LOG_TABLE FROM SORTS WHERE SORT = 'materialized view log';

CREATE VIEW ALL_EXTERNAL_TABLES AS SELECT 'APP' AS OWNER, TABLE_NAME FROM SORTS WHERE SORT = 'external table';

CREATE VIEW ALL_QUEUE_TABLES AS
SELECT 'APP' AS OWNER, TABLE_NAME AS QUEUE_TABLE FROM SORTS WHERE SORT = 'queue table';

CREATE VIEW ALL_OBJECT_TABLES AS
SELECT 'APP' AS OWNER, TABLE_NAME, 'NO' AS NESTED FROM SORTS WHERE SORT IN ('object table', 'XMLType table');

CREATE VIEW ALL_XML_TABLES AS SELECT 'APP' AS OWNER, TABLE_NAME FROM SORTS WHERE SORT = 'XMLType table';

CREATE VIEW ALL_BLOCKCHAIN_TABLES AS SELECT 'APP' AS SCHEMA_NAME, TABLE_NAME FROM SORTS WHERE SORT = 'ledger';

CREATE TABLE ALL_SYNONYMS (OWNER VARCHAR(30), SYNONYM_NAME VARCHAR(30), TABLE_OWNER VARCHAR(30), TABLE_NAME VARCHAR(30),
  DB_LINK VARCHAR(30));

-- Columns that a test declares CHAR(n BYTE), which MariaDB does not have: the test stores the blanks that an Oracle would.
CREATE TABLE BYTE_CHARS (TABLE_NAME VARCHAR(30), COLUMN_NAME VARCHAR(30));

CREATE VIEW ALL_TAB_COLS AS
SELECT table_schema AS OWNER, table_name AS TABLE_NAME, column_name AS COLUMN_NAME,
       CASE WHEN (table_name, column_name) IN (SELECT TABLE_NAME, COLUMN_NAME FROM BYTE_CHARS) THEN 'CHAR'
         ELSE CASE data_type WHEN 'decimal' THEN 'NUMBER' WHEN 'varchar' THEN 'VARCHAR2' WHEN 'char' THEN 'CHAR'
         WHEN 'longtext' THEN 'CLOB' WHEN 'mediumtext' THEN 'LONG' WHEN 'longblob' THEN 'BLOB' WHEN 'varbinary' THEN 'RAW'
         WHEN 'double' THEN 'BINARY_DOUBLE' WHEN 'float' THEN 'BINARY_FLOAT'
         WHEN 'datetime' THEN CASE datetime_precision WHEN 0 THEN 'DATE'
                                                      ELSE CONCAT('TIMESTAMP(', datetime_precision, ')') END
         ELSE data_type END END AS DATA_TYPE,
       NULL AS DATA_TYPE_OWNER, character_octet_length AS DATA_LENGTH, character_maximum_length AS CHAR_LENGTH,
       CASE WHEN (table_name, column_name) IN (SELECT TABLE_NAME, COLUMN_NAME FROM BYTE_CHARS) THEN 'B' ELSE 'C' END AS CHAR_USED, numeric_precision AS DATA_PRECISION,
       COALESCE(numeric_scale, NULLIF(datetime_precision, 0)) AS DATA_SCALE,
       CASE is_nullable WHEN 'YES' THEN 'Y' ELSE 'N' END AS NULLABLE, NULL AS COLLATION, CASE WHEN extra LIKE '%INVISIBLE%' THEN 'YES' ELSE 'NO' END AS HIDDEN_COLUMN,
       CASE WHEN extra LIKE '%INVISIBLE%' AND column_name <> 'ORA_ARCHIVE_STATE' THEN 'YES' ELSE 'NO' END AS USER_GENERATED,
       CASE WHEN extra LIKE '%GENERATED%' THEN 'YES' ELSE 'NO' END AS VIRTUAL_COLUMN, ordinal_position AS INTERNAL_COLUMN_ID, column_default AS DATA_DEFAULT
  FROM information_schema.columns WHERE table_schema = 'APP';

-- What stands for a log table's columns there (the driver's adaptations) under the names that they have here.
CREATE VIEW USER_TAB_COLUMNS AS
SELECT TABLE_NAME, COLUMN_NAME, INTERNAL_COLUMN_ID AS COLUMN_ID,
       CASE DATA_TYPE WHEN 'TIMESTAMP(6)' THEN 'TIMESTAMP(9)' ELSE DATA_TYPE END AS DATA_TYPE, CHAR_LENGTH, DATA_LENGTH,
       NULLIF(DATA_PRECISION, 65) AS DATA_PRECISION
  FROM ALL_TAB_COLS;

CREATE VIEW ALL_CONSTRAINTS AS
SELECT t.table_schema AS OWNER, t.table_name AS TABLE_NAME,
       CONCAT(t.table_name, '_', t.constraint_name) AS CONSTRAINT_NAME,
       CASE t.constraint_type WHEN 'PRIMARY KEY' THEN 'P' WHEN 'UNIQUE' THEN 'U' WHEN 'CHECK' THEN 'C' ELSE 'R' END
         AS CONSTRAINT_TYPE,
       'ENABLED' AS STATUS, 'VALIDATED' AS VALIDATED, 'NOT DEFERRABLE' AS DEFERRABLE,
       CASE t.constraint_name WHEN 'PRIMARY' THEN CONCAT(t.table_name, '_PRIMARY') ELSE t.constraint_name END AS INDEX_NAME,
       c.check_clause AS SEARCH_CONDITION, r.delete_rule AS DELETE_RULE, r.unique_constraint_schema AS R_OWNER,
       CONCAT(r.referenced_table_name, '_', r.unique_constraint_name) AS R_CONSTRAINT_NAME
  FROM information_schema.table_constraints t
  LEFT JOIN information_schema.referential_constraints r
    ON r.constraint_schema = t.constraint_schema AND r.constraint_name = t.constraint_name AND r.table_name = t.table_name
  LEFT JOIN information_schema.check_constraints c
    ON c.constraint_schema = t.constraint_schema AND c.constraint_name = t.constraint_name AND c.table_name = t.table_name
 WHERE t.table_schema = 'APP';

CREATE VIEW ALL_CONS_COLUMNS AS
SELECT table_schema AS OWNER, CONCAT(table_name, '_', constraint_name) AS CONSTRAINT_NAME,
       table_name AS TABLE_NAME, column_name AS COLUMN_NAME, ordinal_position AS POSITION
  FROM information_schema.key_column_usage WHERE table_schema = 'APP';

CREATE VIEW ALL_INDEXES AS
SELECT DISTINCT table_schema AS OWNER, CASE index_name WHEN 'PRIMARY' THEN CONCAT(table_name, '_PRIMARY') ELSE index_name END AS INDEX_NAME,
       table_schema AS TABLE_OWNER, table_name AS TABLE_NAME, 'NORMAL' AS INDEX_TYPE,
       CASE non_unique WHEN 0 THEN 'UNIQUE' ELSE 'NONUNIQUE' END AS UNIQUENESS, 'VALID' AS STATUS
  FROM information_schema.statistics WHERE table_schema = 'APP';

CREATE VIEW ALL_IND_COLUMNS AS
SELECT table_schema AS INDEX_OWNER, CASE index_name WHEN 'PRIMARY' THEN CONCAT(table_name, '_PRIMARY') ELSE index_name END AS INDEX_NAME,
       table_schema AS TABLE_OWNER, table_name AS TABLE_NAME, column_name AS COLUMN_NAME,
       seq_in_index AS COLUMN_POSITION, 'ASC' AS DESCEND
  FROM information_schema.statistics WHERE table_schema = 'APP';

-- MariaDB has neither of these: no index computes anything, and no column has a sequence of its own.
CREATE TABLE ALL_IND_EXPRESSIONS (INDEX_OWNER VARCHAR(30), INDEX_NAME VARCHAR(61), COLUMN_POSITION INT,
  COLUMN_EXPRESSION VARCHAR(200));

CREATE TABLE ALL_TAB_IDENTITY_COLS (OWNER VARCHAR(30), TABLE_NAME VARCHAR(30), COLUMN_NAME VARCHAR(30),
  GENERATION_TYPE VARCHAR(10), SEQUENCE_NAME VARCHAR(30));

CREATE TABLE ALL_SEQUENCES (SEQUENCE_OWNER VARCHAR(30), SEQUENCE_NAME VARCHAR(30), LAST_NUMBER BIGINT,
  INCREMENT_BY BIGINT, MIN_VALUE BIGINT, MAX_VALUE BIGINT, CYCLE_FLAG VARCHAR(1));

CREATE VIEW ALL_TAB_COMMENTS AS
SELECT table_schema AS OWNER, table_name AS TABLE_NAME, NULLIF(table_comment, '') AS COMMENTS
  FROM information_schema.tables WHERE table_type = 'BASE TABLE' AND table_schema = 'APP';

CREATE VIEW ALL_COL_COMMENTS AS
SELECT table_schema AS OWNER, table_name AS TABLE_NAME, column_name AS COLUMN_NAME,
       NULLIF(column_comment, '') AS COMMENTS
  FROM information_schema.columns WHERE table_schema = 'APP';

-- Segments that a test gives another number, and partitions that it declares; every other table has number 1.
CREATE TABLE SEGMENTS (OBJECT_NAME VARCHAR(30), SUBOBJECT_NAME VARCHAR(30), DATA_OBJECT_ID BIGINT);

CREATE VIEW ALL_OBJECTS AS
SELECT t.table_schema AS OWNER, t.table_name AS OBJECT_NAME, 'TABLE' AS OBJECT_TYPE, t.create_time AS LAST_DDL_TIME,
       NULL AS SUBOBJECT_NAME, CASE WHEN s.OBJECT_NAME IS NULL THEN 1 ELSE s.DATA_OBJECT_ID END AS DATA_OBJECT_ID
  FROM information_schema.tables t
  LEFT JOIN SEGMENTS s ON s.OBJECT_NAME = t.table_name AND s.SUBOBJECT_NAME IS NULL
 WHERE t.table_type = 'BASE TABLE' AND t.table_schema = 'APP'
UNION ALL SELECT 'APP', OBJECT_NAME, 'TABLE PARTITION', NULL, SUBOBJECT_NAME, DATA_OBJECT_ID FROM SEGMENTS
 WHERE SUBOBJECT_NAME IS NOT NULL
UNION ALL SELECT 'SYS', 'DBMS_LOB', 'PACKAGE', NULL, NULL, NULL
UNION ALL SELECT 'SYS', 'DBMS_STATS', 'PACKAGE', NULL, NULL, NULL
UNION ALL SELECT 'SYS', 'DBMS_UTILITY', 'PACKAGE', NULL, NULL, NULL;

CREATE VIEW USER_TRIGGERS AS
SELECT trigger_name AS TRIGGER_NAME, 'ENABLED' AS STATUS, event_object_schema AS TABLE_OWNER,
       event_object_table AS TABLE_NAME
  FROM information_schema.triggers WHERE trigger_schema = 'APP'
UNION ALL SELECT NAME, 'ENABLED', 'APP', '' FROM DDL_TRIGGERS;

CREATE VIEW USER_OBJECTS AS
SELECT table_name AS OBJECT_NAME, CASE table_type WHEN 'BASE TABLE' THEN 'TABLE' ELSE table_type END AS OBJECT_TYPE,
       'VALID' AS STATUS
  FROM information_schema.tables WHERE table_schema = 'APP'
UNION ALL
SELECT DISTINCT index_name, 'INDEX', 'VALID' FROM information_schema.statistics WHERE table_schema = 'APP'
UNION ALL
SELECT TRIGGER_NAME, 'TRIGGER',
       CASE WHEN EXISTS (SELECT 1 FROM INVALID_TRIGGERS WHERE NAME = TRIGGER_NAME) THEN 'INVALID' ELSE 'VALID' END
  FROM USER_TRIGGERS;

CREATE VIEW USER_SOURCE AS
SELECT trigger_name AS NAME, 'TRIGGER' AS TYPE, 1 AS LINE, action_statement AS TEXT
  FROM information_schema.triggers WHERE trigger_schema = 'APP'
UNION ALL SELECT NAME, 'TRIGGER', 1, TEXT FROM DDL_TRIGGERS;
