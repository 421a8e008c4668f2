-- How a cut reads: everything in one read-only transaction, so that log and table show the same moment.

-- begin --
SET TRANSACTION READ ONLY

-- see_archived --
ALTER SESSION SET ROW ARCHIVAL VISIBILITY = ALL

-- claim --
-- Exactly these are removed by the local transaction: a range would take rows that commit late (capture.md 2).
-- All log tables in one statement: an idle source costs one trip.
SELECT {table_id} AS TABLE_ID, SEQ FROM {log}

-- changes --
-- One row for each key that the log names: the key, the row if it is there, whether it is, and what was noted: 0 with a
-- deletion, 1 only INSERTs, 2 neither. A row that is not there though nobody has deleted it is hidden, or was removed
-- without a trigger.
SELECT {log_key}, {others}CASE WHEN T.{first_key} IS NULL THEN 0 ELSE 1 END, G.FRESH{lobs}
  FROM (SELECT {cast_keys}, CASE WHEN MIN(OP) = 'D' THEN 0 WHEN MAX(OP) = 'I' THEN 1 ELSE 2 END AS FRESH
          FROM {log} WHERE SEQ >= :lo AND SEQ <= :hi GROUP BY {grouped}) G
  LEFT JOIN {table} T ON {joined}

-- deleted --
-- Which keys of a part of the log are deleted anywhere in it: asked where the log is not read at once.
SELECT {log_key}
  FROM (SELECT {cast_keys} FROM {log} WHERE SEQ >= :lo AND SEQ <= :hi GROUP BY {grouped}) G
  JOIN (SELECT {cast_keys} FROM {log} WHERE OP = 'D' GROUP BY {grouped}) D ON {same_key}

-- fill --
-- The next rows in key order, through the key's index.
SELECT * FROM (SELECT {columns}, 1 AS V_THERE, 0 AS V_FRESH{lobs} FROM {table} T {after}ORDER BY {order}) WHERE ROWNUM <= :lines

-- delete --
DELETE FROM {log} WHERE SEQ = :1
