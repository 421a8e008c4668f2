-- What is at the target already.

-- columns --
SELECT a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attgenerated <> '',
    a.atthasdef OR a.attidentity <> ''
FROM pg_attribute a
WHERE a.attrelid = to_regclass(%(table)s) AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attnum

-- relation --
SELECT c.relkind FROM pg_class c WHERE c.oid = to_regclass(%(table)s)

-- unique_keys --
-- Only these can tell INSERT .. ON CONFLICT which row is meant.
SELECT array(SELECT a.attname FROM unnest(i.indkey::int[]) WITH ORDINALITY k(attnum, n)
             JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
             WHERE k.n <= i.indnkeyatts ORDER BY k.n)::text[]
FROM pg_index i
WHERE i.indrelid = to_regclass(%(table)s) AND i.indisunique AND i.indimmediate AND i.indisvalid
    AND i.indpred IS NULL AND i.indexprs IS NULL

-- has_rows --
SELECT EXISTS (SELECT FROM {table})

-- count_rows --
SELECT count(*) FROM {table}

-- acting_foreign_keys --
-- What would act or be checked row by row if the role may not switch foreign keys off while VENUS applies.
SELECT r.conrelid::regclass::text, r.conname, r.confdeltype <> 'a' OR r.confupdtype <> 'a', r.condeferrable
FROM pg_constraint r
WHERE r.contype = 'f' AND r.confrelid = ANY(%(tables)s::regclass[])
    AND (r.confdeltype <> 'a' OR r.confupdtype <> 'a' OR NOT r.condeferrable)
ORDER BY 1, 2

-- replica_role --
SET session_replication_role = replica

-- set_sequence --
-- As far as a counter goes: a wider column may hold more than that.
SELECT setval(pg_get_serial_sequence(%(table)s, %(column)s),
              LEAST(GREATEST((SELECT max({column}) FROM {table}), 0) + 1, 9223372036854775807)::bigint, false)
WHERE pg_get_serial_sequence(%(table)s, %(column)s) IS NOT NULL
