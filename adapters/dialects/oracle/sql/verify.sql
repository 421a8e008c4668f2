-- The statements of verification, in one read-only transaction.

-- begin --
SET TRANSACTION READ ONLY

-- rows --
SELECT {columns}, 1 AS V_THERE, 0 AS V_FRESH{lobs} FROM {table} T WHERE {where}

-- estimate --
SELECT COUNT(*) FROM {table} T

-- cuts --
-- The leading key column is the first of its index, so this is one pass over the index.
SELECT K FROM (SELECT {key} AS K, ROW_NUMBER() OVER (ORDER BY {key}) AS N, COUNT(*) OVER () AS LAST_N
                 FROM {table} T WHERE {where}) X
 WHERE N = 1 OR N = LAST_N OR MOD(N, {rows}) = 0

-- waiting --
SELECT DISTINCT {keys} FROM {log} G WHERE {where}

-- touch --
-- Logs keys as if the application had changed their rows: the next cut reads them. D, because some rows may be gone.
INSERT INTO {log} (SEQ, OP, {keys}) VALUES (VENUS_SEQ.NEXTVAL, 'D', {values})
