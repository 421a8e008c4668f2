-- What `venus check` looks for beyond the dictionary. A sample finds what is common, not what is rare.

-- sampled --
SELECT COUNT(*), {findings}
  FROM (SELECT {columns} FROM {table}{sample} WHERE ROWNUM <= {rows}) T

-- nul --
SUM(CASE WHEN INSTR({c}, CHR(0)) > 0 THEN 1 ELSE 0 END)

-- no_date --
SUM(CASE WHEN EXTRACT(YEAR FROM {c}) = 0 OR EXTRACT(MONTH FROM {c}) = 0 THEN 1 ELSE 0 END)

-- room --
-- What is free in the files as they are; whether they grow by themselves only a DBA can see.
SELECT U.DEFAULT_TABLESPACE, COALESCE(SUM(F.BYTES), 0)
  FROM USER_USERS U LEFT JOIN USER_FREE_SPACE F ON F.TABLESPACE_NAME = U.DEFAULT_TABLESPACE
 GROUP BY U.DEFAULT_TABLESPACE

-- blockers --
-- Who has written a log table and not committed yet, on any instance: age of the oldest in seconds.
SELECT O.OBJECT_NAME, MAX(ROUND((SYSDATE - T.START_DATE) * 86400))
  FROM GV$LOCKED_OBJECT L
  JOIN GV$TRANSACTION T ON T.INST_ID = L.INST_ID AND T.XIDUSN = L.XIDUSN AND T.XIDSLOT = L.XIDSLOT
                       AND T.XIDSQN = L.XIDSQN
  JOIN USER_OBJECTS O ON O.OBJECT_ID = L.OBJECT_ID
 WHERE O.OBJECT_NAME LIKE 'VENUS\_L\_%' ESCAPE '\'
 GROUP BY O.OBJECT_NAME

-- holder --
-- Whose that is; these two views tell it without V$SESSION.
SELECT L.SESSION_ID, L.INST_ID, L.ORACLE_USERNAME, L.OS_USER_NAME, TO_CHAR(T.START_DATE, 'YYYY-MM-DD HH24:MI:SS')
  FROM GV$LOCKED_OBJECT L
  JOIN GV$TRANSACTION T ON T.INST_ID = L.INST_ID AND T.XIDUSN = L.XIDUSN AND T.XIDSLOT = L.XIDSLOT
                       AND T.XIDSQN = L.XIDSQN
  JOIN USER_OBJECTS O ON O.OBJECT_ID = L.OBJECT_ID
 WHERE O.OBJECT_NAME LIKE 'VENUS\_L\_%' ESCAPE '\'
 ORDER BY T.START_DATE
