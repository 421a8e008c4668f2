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
