-- The number of values that do not fit the requested types. One pass over the table.

-- proof --
SELECT COUNT(*), {unfit}
  FROM {table} T

-- uuid --
SUM(CASE WHEN VSIZE({c}) <> 16 THEN 1 ELSE 0 END)

-- bigint --
SUM(CASE WHEN {c} <> FLOOR({c}) OR {c} < -9223372036854775808 OR {c} > 9223372036854775807 THEN 1 ELSE 0 END)

-- boolean --
SUM(CASE WHEN {c} NOT IN (0, 1) THEN 1 ELSE 0 END)
