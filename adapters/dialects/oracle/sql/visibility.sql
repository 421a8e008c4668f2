-- The features that hide rows or values from the user that reads them. All statements only read.

-- policies --
-- Virtual Private Database; Label Security uses such policies.
SELECT P.OBJECT_NAME, P.POLICY_NAME FROM ALL_POLICIES P
 WHERE P.OBJECT_OWNER = :owner AND P.SEL = 'YES' AND P.ENABLE = 'YES' ORDER BY P.OBJECT_NAME, P.POLICY_NAME

-- redactions --
SELECT R.OBJECT_NAME, R.POLICY_NAME FROM REDACTION_POLICIES R
 WHERE R.OBJECT_OWNER = :owner AND R.ENABLE LIKE 'YES%' ORDER BY R.OBJECT_NAME, R.POLICY_NAME

-- archival --
-- A table with ROW ARCHIVAL has this column, and shows only rows in which it is 0.
SELECT C.TABLE_NAME FROM ALL_TAB_COLS C
 WHERE C.OWNER = :owner AND C.COLUMN_NAME = 'ORA_ARCHIVE_STATE' AND C.HIDDEN_COLUMN = 'YES'
