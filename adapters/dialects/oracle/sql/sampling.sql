-- The checks of `venus check` beyond the dictionary. A sample finds frequent values, not rare ones.

-- sampled --
SELECT COUNT(*), {findings}
  FROM (SELECT {columns} FROM {table}{sample} WHERE ROWNUM <= {rows}) T

-- values --
SELECT {columns} FROM {table}{sample} WHERE ROWNUM <= {rows}

-- nul --
SUM(CASE WHEN INSTR({c}, CHR(0)) > 0 THEN 1 ELSE 0 END)

-- no_date --
SUM(CASE WHEN EXTRACT(YEAR FROM {c}) = 0 OR EXTRACT(MONTH FROM {c}) = 0 THEN 1 ELSE 0 END)

-- replaced --
-- Texts that a round trip through Unicode changes, compared in pieces that fit a VARCHAR2 in both directions.
SUM(CASE WHEN {differs} THEN 1 ELSE 0 END)

-- round_trip --
CONVERT(CONVERT({piece}, 'AL32UTF8', {charset}), {charset}, 'AL32UTF8') <> {piece}

-- every_row --
SELECT COUNT(*), {findings}
  FROM {table} T

-- too_large --
-- Rows contain the lengths, so no large value is read.
SUM(CASE WHEN {lengths} > {bytes} THEN 1 ELSE 0 END)

-- length --
COALESCE(DBMS_LOB.GETLENGTH({c}), 0)

-- character_sets --
SELECT PARAMETER, VALUE FROM NLS_DATABASE_PARAMETERS
 WHERE PARAMETER IN ('NLS_CHARACTERSET', 'NLS_NCHAR_CHARACTERSET') ORDER BY PARAMETER

-- direct_path --
-- Plans that are still cached by the instances. LOAD AS SELECT is a direct-path load. Parallel servers execute a change
-- that is below the first step of a plan.
SELECT P.OBJECT_OWNER, P.OBJECT_NAME, COUNT(DISTINCT P.SQL_ID)
  FROM GV$SQL_PLAN P
 WHERE P.OBJECT_NAME IS NOT NULL
   AND (P.OPERATION = 'LOAD AS SELECT' OR (P.OPERATION IN ('UPDATE', 'DELETE', 'MERGE') AND P.DEPTH > 1))
 GROUP BY P.OBJECT_OWNER, P.OBJECT_NAME

-- room --
-- The free space in the present files; only a DBA can see whether they grow automatically.
SELECT U.DEFAULT_TABLESPACE, COALESCE(SUM(F.BYTES), 0)
  FROM USER_USERS U LEFT JOIN USER_FREE_SPACE F ON F.TABLESPACE_NAME = U.DEFAULT_TABLESPACE
 GROUP BY U.DEFAULT_TABLESPACE

-- blockers --
-- The open transactions that wrote a log table, on any instance: age of the oldest in seconds.
SELECT O.OBJECT_NAME, MAX(ROUND((SYSDATE - T.START_DATE) * 86400))
  FROM GV$LOCKED_OBJECT L
  JOIN GV$TRANSACTION T ON T.INST_ID = L.INST_ID AND T.XIDUSN = L.XIDUSN AND T.XIDSLOT = L.XIDSLOT
                       AND T.XIDSQN = L.XIDSQN
  JOIN USER_OBJECTS O ON O.OBJECT_ID = L.OBJECT_ID
 WHERE O.OBJECT_NAME LIKE 'VENUS\_L\_%' ESCAPE '\'
 GROUP BY O.OBJECT_NAME

-- holder --
-- The sessions of these transactions; these two views need no V$SESSION.
SELECT L.SESSION_ID, L.INST_ID, L.ORACLE_USERNAME, L.OS_USER_NAME, TO_CHAR(T.START_DATE, 'YYYY-MM-DD HH24:MI:SS')
  FROM GV$LOCKED_OBJECT L
  JOIN GV$TRANSACTION T ON T.INST_ID = L.INST_ID AND T.XIDUSN = L.XIDUSN AND T.XIDSLOT = L.XIDSLOT
                       AND T.XIDSQN = L.XIDSQN
  JOIN USER_OBJECTS O ON O.OBJECT_ID = L.OBJECT_ID
 WHERE O.OBJECT_NAME LIKE 'VENUS\_L\_%' ESCAPE '\'
 ORDER BY T.START_DATE
