-- How a cut reads: everything in one read-only transaction, so that log and table show the same moment.

-- begin --
SET TRANSACTION READ ONLY

-- see_archived --
ALTER SESSION SET ROW ARCHIVAL VISIBILITY = ALL

-- probe --
-- What an idle source is asked: one trip, no dictionary, of each index its first entry.
SELECT (SELECT COUNT(*) FROM VENUS_DDL) AS NOTES, (SELECT MAX(SEQ) FROM VENUS_DDL) AS NEWEST,
       CASE WHEN {logged} THEN 1 ELSE 0 END AS LOGGED
  FROM DUAL

-- probe_log --
EXISTS (SELECT /*+ INDEX(L {log}_PK) */ 1 FROM {log} L)

-- probe_paused --
-- Of a table that was paused when the last snapshot was looked at: whether another process has let it go on.
(EXISTS (SELECT /*+ INDEX(L {log}_PK) */ 1 FROM {log} L)
        AND EXISTS (SELECT 1 FROM VENUS_CAPTURED_TABLE C WHERE C.TABLE_ID = {table_id} AND C.STATE <> 'PAUSED'))

-- coalesce --
-- Joins the empty leaves of an index whose entries were deleted: whoever looks for the first entry passes all of them.
ALTER INDEX {log}_PK COALESCE

-- claim --
-- Exactly these are removed by the local transaction: a range would take rows that commit late (capture.md 2).
-- All log tables in one statement: an idle source costs one trip.
SELECT /*+ INDEX(L {log}_PK) */ {table_id} AS TABLE_ID, L.SEQ FROM {log} L

-- changes --
-- One row for each key that the log names: the key, the row if it is there, whether it is, and what was noted: 0 with a
-- deletion, 1 only INSERTs, 2 neither. A row that is not there though nobody has deleted it is hidden, or was removed
-- without a trigger.
SELECT {log_key}, {others}CASE WHEN T.{first_key} IS NULL THEN 0 ELSE 1 END, G.FRESH{lobs}
  FROM (SELECT /*+ INDEX(L {log}_PK) */ {cast_keys},
               CASE WHEN MIN(OP) = 'D' THEN 0 WHEN MAX(OP) = 'I' THEN 1 ELSE 2 END AS FRESH
          FROM {log} L WHERE L.SEQ >= :lo AND L.SEQ <= :hi GROUP BY {grouped}) G
  LEFT JOIN {table} T ON {joined}

-- deleted --
-- Which keys of a part of the log are deleted anywhere in it: asked where the log is not read at once.
SELECT {log_key}
  FROM (SELECT /*+ INDEX(L {log}_PK) */ {cast_keys} FROM {log} L
         WHERE L.SEQ >= :lo AND L.SEQ <= :hi GROUP BY {grouped}) G
  JOIN (SELECT /*+ INDEX(L {log}_PK) */ {cast_keys} FROM {log} L WHERE L.OP = 'D' GROUP BY {grouped}) D ON {same_key}

-- fill --
-- The next rows in key order, through the key's index: behind a key, one range of it (filling.py).
SELECT * FROM (SELECT {columns}, 1 AS V_THERE, 0 AS V_FRESH{lobs} FROM {table} T {after}ORDER BY {order}) WHERE ROWNUM <= :lines

-- fill_long --
-- A LONG stands in no subquery: the reader stops by itself.
SELECT /*+ FIRST_ROWS(1000) */ {columns}, 1 AS V_THERE, 0 AS V_FRESH{lobs} FROM {table} T {after}ORDER BY {order}

-- delete --
DELETE FROM {log} WHERE SEQ = :1
