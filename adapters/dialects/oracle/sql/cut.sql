-- The statements of a cut. It reads everything in one read-only transaction, so that log and table show the same moment.

-- begin --
SET TRANSACTION READ ONLY

-- see_archived --
ALTER SESSION SET ROW ARCHIVAL VISIBILITY = ALL

-- probe --
-- The poll of an idle source: one round trip, no dictionary, the first entry of each index.
SELECT (SELECT COUNT(*) FROM VENUS_DDL) AS NOTES, (SELECT MAX(SEQ) FROM VENUS_DDL) AS NEWEST,
       CASE WHEN {logged} THEN 1 ELSE 0 END AS LOGGED
  FROM DUAL

-- probe_log --
EXISTS (SELECT /*+ INDEX(L {log}_PK) */ 1 FROM {log} L)

-- probe_paused --
-- For a table that was paused in the last snapshot: whether another process has resumed it.
(EXISTS (SELECT /*+ INDEX(L {log}_PK) */ 1 FROM {log} L)
        AND EXISTS (SELECT 1 FROM VENUS_CAPTURED_TABLE C WHERE C.TABLE_ID = {table_id} AND C.STATE <> 'PAUSED'))

-- coalesce --
-- Joins the empty leaves of an index whose entries were deleted; a search for the first entry visits all of them.
ALTER INDEX {log}_PK COALESCE

-- claim --
-- The local transaction removes exactly these rows: a range would include rows that commit late.
-- One statement reads all log tables: an idle source costs one round trip.
SELECT /*+ INDEX(L {log}_PK) */ {table_id} AS TABLE_ID, L.SEQ FROM {log} L

-- changes --
-- One row for each key in the log: the key, the row if it exists, whether it exists, and a summary of its log rows: 0 = a
-- deletion, 1 = only INSERTs, 2 = neither. A row that does not exist and has no logged deletion is hidden, or was removed
-- without a trigger.
SELECT {log_key}, {others}CASE WHEN T.{first_key} IS NULL THEN 0 ELSE 1 END, G.FRESH{lobs}
  FROM (SELECT /*+ INDEX(L {log}_PK) */ {cast_keys},
               CASE WHEN MIN(OP) = 'D' THEN 0 WHEN MAX(OP) = 'I' THEN 1 ELSE 2 END AS FRESH
          FROM {log} L WHERE L.SEQ >= :lo AND L.SEQ <= :hi GROUP BY {grouped}) G
  LEFT JOIN {table} T ON {joined}

-- deleted --
-- The keys of a part of the log that have a deletion anywhere in the log. Used if one statement does not read all of it.
SELECT {log_key}
  FROM (SELECT /*+ INDEX(L {log}_PK) */ {cast_keys} FROM {log} L
         WHERE L.SEQ >= :lo AND L.SEQ <= :hi GROUP BY {grouped}) G
  JOIN (SELECT /*+ INDEX(L {log}_PK) */ {cast_keys} FROM {log} L WHERE L.OP = 'D' GROUP BY {grouped}) D ON {same_key}

-- fill --
-- The next rows in key order, through the key's index: each range behind a key is one range of the index (rows.py).
SELECT * FROM (SELECT {columns}, 1 AS V_THERE, 0 AS V_FRESH{lobs} FROM {table} T {after}ORDER BY {order}) WHERE ROWNUM <= :lines

-- fill_long --
-- A LONG may not be in a subquery: the reader stops by itself.
SELECT /*+ FIRST_ROWS(1000) */ {columns}, 1 AS V_THERE, 0 AS V_FRESH{lobs} FROM {table} T {after}ORDER BY {order}

-- delete --
DELETE FROM {log} WHERE SEQ = :1
