-- By which number Oracle knows the segments of the captured tables: one that is emptied or exchanged gets another.

-- now --
-- Of a table itself, or of its partitions and subpartitions. An index-organized table has none.
SELECT O.OWNER, O.OBJECT_NAME, O.SUBOBJECT_NAME, O.DATA_OBJECT_ID
  FROM ALL_OBJECTS O JOIN VENUS_CAPTURED_TABLE V ON V.NAMESPACE = O.OWNER AND V.NAME = O.OBJECT_NAME
 WHERE O.OBJECT_TYPE IN ('TABLE', 'TABLE PARTITION', 'TABLE SUBPARTITION') AND O.DATA_OBJECT_ID IS NOT NULL

-- stored --
SELECT TABLE_ID, SEGMENT, MARK FROM VENUS_SEGMENT

-- store --
INSERT INTO VENUS_SEGMENT (TABLE_ID, SEGMENT, MARK) VALUES (:1, :2, :3)

-- forget --
DELETE FROM VENUS_SEGMENT WHERE TABLE_ID = :table_id
