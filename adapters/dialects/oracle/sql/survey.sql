-- The queries of `venus assess`. All of them only read.

-- banner --
SELECT MAX(PRODUCT || ' ' || VERSION) FROM PRODUCT_COMPONENT_VERSION WHERE PRODUCT LIKE '%Oracle%'

-- sizes --
-- NUM_ROWS is as of LAST_ANALYZED; NULL without statistics.
SELECT T.TABLE_NAME, T.NUM_ROWS, ROUND((SYSDATE - T.LAST_ANALYZED) * 86400) FROM ALL_TABLES T WHERE T.OWNER = :owner

-- modifications --
-- The changes since the statistics were gathered, of a table as a whole. Oracle updates this view every few minutes.
SELECT M.TABLE_NAME, M.INSERTS, M.UPDATES, M.DELETES FROM ALL_TAB_MODIFICATIONS M
 WHERE M.TABLE_OWNER = :owner AND M.PARTITION_NAME IS NULL

-- segments --
-- The bytes of tables, of their indexes and of their large values, summed over partitions.
SELECT COALESCE(I.TABLE_NAME, L.TABLE_NAME, S.SEGMENT_NAME),
       CASE WHEN I.TABLE_NAME IS NOT NULL THEN 'INDEX' WHEN L.TABLE_NAME IS NOT NULL THEN 'LOB' ELSE 'TABLE' END,
       SUM(S.BYTES)
  FROM {segments} S
  LEFT JOIN ALL_INDEXES I ON I.OWNER = :owner AND I.INDEX_NAME = S.SEGMENT_NAME AND S.SEGMENT_TYPE LIKE 'INDEX%'
  LEFT JOIN ALL_LOBS L ON L.OWNER = :owner AND L.SEGMENT_NAME = S.SEGMENT_NAME
 GROUP BY COALESCE(I.TABLE_NAME, L.TABLE_NAME, S.SEGMENT_NAME),
       CASE WHEN I.TABLE_NAME IS NOT NULL THEN 'INDEX' WHEN L.TABLE_NAME IS NOT NULL THEN 'LOB' ELSE 'TABLE' END

-- segments_of_anybody --
(SELECT SEGMENT_NAME, SEGMENT_TYPE, BYTES FROM DBA_SEGMENTS WHERE OWNER = :owner)

-- segments_of_own --
(SELECT SEGMENT_NAME, SEGMENT_TYPE, BYTES FROM USER_SEGMENTS)

-- count --
SELECT COUNT(*) FROM {table}

-- sample --
SELECT * FROM (SELECT {columns} FROM {table}{sample} WHERE ROWNUM <= {rows}) T

-- largest --
-- Rows contain the lengths, so no large value is read. The length of a CLOB is in characters.
SELECT {lengths} FROM {rows} T

-- some_rows --
(SELECT {columns} FROM {table}{sample} WHERE ROWNUM <= {rows})

-- instances --
SELECT COUNT(*) FROM GV$INSTANCE

-- role --
SELECT SYS_CONTEXT('USERENV', 'DATABASE_ROLE') FROM DUAL

-- patches --
SELECT P.DESCRIPTION, TO_CHAR(P.ACTION_TIME, 'YYYY-MM-DD') FROM DBA_REGISTRY_SQLPATCH P
 WHERE P.ACTION = 'APPLY' AND P.STATUS = 'SUCCESS' ORDER BY P.ACTION_TIME

-- log_rates --
-- Bytes a second since the instances started. The redo includes that of the undo.
SELECT S.NAME, SUM(S.VALUE / GREATEST((SYSDATE - I.STARTUP_TIME) * 86400, 1))
  FROM GV$SYSSTAT S JOIN GV$INSTANCE I ON I.INST_ID = S.INST_ID
 WHERE S.NAME IN ('redo size', 'undo change vector size')
 GROUP BY S.NAME

-- code --
SELECT S.TYPE, COUNT(*) FROM ALL_SOURCE S WHERE S.OWNER = :owner GROUP BY S.TYPE ORDER BY S.TYPE

-- invalid --
SELECT O.OBJECT_TYPE, COUNT(*) FROM ALL_OBJECTS O
 WHERE O.OWNER = :owner AND O.STATUS = 'INVALID' GROUP BY O.OBJECT_TYPE ORDER BY O.OBJECT_TYPE

-- table_triggers --
SELECT G.TABLE_NAME, G.OWNER, G.TRIGGER_NAME, G.TRIGGER_TYPE, G.STATUS FROM ALL_TRIGGERS G
 WHERE G.TABLE_OWNER = :owner AND G.BASE_OBJECT_TYPE = 'TABLE' ORDER BY G.TABLE_NAME, G.TRIGGER_NAME

-- view_logs --
SELECT L.MASTER, L.LOG_TABLE FROM ALL_MVIEW_LOGS L WHERE L.LOG_OWNER = :owner ORDER BY L.MASTER
