-- Queries of the target's dictionary.

-- columns --
-- A type gets its schema as a prefix unless it is built in, because format_type omits a schema of the search path.
-- The last column is the schema and name of an enum or a domain, with [] behind it for an array.
SELECT a.attname,
    CASE WHEN n.nspname <> 'pg_catalog' AND pg_type_is_visible(t.oid) THEN n.nspname || '.' ELSE '' END
        || format_type(a.atttypid, a.atttypmod),
    a.attnotnull, a.attgenerated <> '',
    a.atthasdef OR a.attidentity <> '',
    CASE WHEN t.typtype IN ('e', 'd') THEN quote_ident(n.nspname) || '.' || quote_ident(t.typname)
              || CASE WHEN t.oid <> a.atttypid THEN '[]' ELSE '' END ELSE '' END,
    CASE WHEN a.attgenerated = '' THEN coalesce((SELECT pg_get_expr(d.adbin, d.adrelid) FROM pg_attrdef d
         WHERE d.adrelid = a.attrelid AND d.adnum = a.attnum), '') ELSE '' END,
    a.attidentity <> ''
FROM pg_attribute a
JOIN pg_type c ON c.oid = a.atttypid
JOIN pg_type t ON t.oid = CASE WHEN c.typcategory = 'A' AND c.typelem <> 0 THEN c.typelem ELSE c.oid END
JOIN pg_namespace n ON n.oid = t.typnamespace
WHERE a.attrelid = to_regclass(%(table)s) AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attnum

-- relation --
SELECT c.relkind FROM pg_class c WHERE c.oid = to_regclass(%(table)s)

-- encoding --
SELECT current_setting('server_encoding'), current_database()::text

-- present --
-- Which of these tables exist, as any kind of relation.
SELECT t FROM unnest(%(tables)s::text[]) t WHERE to_regclass(t) IS NOT NULL

-- missing_types --
SELECT t FROM unnest(%(types)s::text[]) t WHERE to_regtype(t) IS NULL

-- may_create --
-- Needs privileges to create tables in an existing schema, or to create the schema.
SELECT n, s.oid IS NOT NULL,
    CASE WHEN s.oid IS NULL THEN has_database_privilege(current_database(), 'CREATE')
         -- NULL if the schema was dropped since the query began
         ELSE coalesce(has_schema_privilege(s.oid, 'CREATE') AND has_schema_privilege(s.oid, 'USAGE'), true) END,
    current_user::text, current_database()::text
FROM unnest(%(namespaces)s::text[]) n LEFT JOIN pg_namespace s ON s.nspname = n

-- own_type --
-- The kind of the type, its labels in order, and its constraints with name and definition.
SELECT CASE t.typtype WHEN 'e' THEN 'enum' WHEN 'd' THEN 'domain over ' || replace(CASE WHEN b.typtype IN ('e', 'd')
         THEN n.nspname || '.' || b.typname ELSE format_type(t.typbasetype, t.typtypmod) END, '"', '')
       ELSE 'no enum and no domain' END,
    array(SELECT e.enumlabel::text FROM pg_enum e WHERE e.enumtypid = t.oid ORDER BY e.enumsortorder),
    array(SELECT ARRAY[k.conname::text, pg_get_constraintdef(k.oid)] FROM pg_constraint k
           WHERE k.contypid = t.oid AND k.contype = 'c' AND pg_get_constraintdef(k.oid) IS NOT NULL ORDER BY k.conname)
    || CASE WHEN t.typnotnull THEN ARRAY[ARRAY['NOT NULL', 'NOT NULL']] ELSE '{}' END
FROM pg_type t
JOIN pg_namespace s ON s.oid = t.typnamespace
LEFT JOIN pg_type b ON b.oid = t.typbasetype
LEFT JOIN pg_namespace n ON n.oid = b.typnamespace
WHERE s.nspname = %(namespace)s AND t.typname = %(name)s

-- unique_keys --
-- Only these can identify the row of INSERT .. ON CONFLICT.
SELECT array(SELECT a.attname FROM unnest(i.indkey::int[]) WITH ORDINALITY k(attnum, n)
             JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
             WHERE k.n <= i.indnkeyatts ORDER BY k.n)::text[]
FROM pg_index i
WHERE i.indrelid = to_regclass(%(table)s) AND i.indisunique AND i.indimmediate AND i.indisvalid
    AND i.indpred IS NULL AND i.indexprs IS NULL

-- besides --
-- The indexes, checks and foreign keys of a table, each with its definition without the table's name; and its columns
-- that are NOT NULL.
-- Definitions name the schema of a temporary table pg_temp or pg_temp_N, depending on the version of PostgreSQL.
SELECT 'i', i.relname::text, CASE WHEN x.indisunique THEN 'UNIQUE ' ELSE '' END || 'INDEX ' || substr(
    regexp_replace(substr(pg_get_indexdef(x.indexrelid), length(concat(
        'CREATE ', CASE WHEN x.indisunique THEN 'UNIQUE ' END, 'INDEX ', quote_ident(i.relname), ' ON ',
        CASE WHEN i.relkind = 'I' THEN 'ONLY ' END)) + 1), '^pg_temp(_[0-9]+)?[.]', quote_ident(n.nspname) || '.'),
    length(concat(quote_ident(n.nspname), '.', quote_ident(c.relname), ' ')) + 1)
FROM pg_index x
JOIN pg_class i ON i.oid = x.indexrelid
JOIN pg_class c ON c.oid = x.indrelid
JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE x.indrelid = to_regclass(%(table)s) AND NOT x.indisprimary
UNION ALL
SELECT contype::text, conname::text, pg_get_constraintdef(oid) FROM pg_constraint
WHERE conrelid = to_regclass(%(table)s) AND contype IN ('c', 'f')
UNION ALL
SELECT contype::text, conname::text, '' FROM pg_constraint WHERE conrelid = to_regclass(%(table)s) AND contype = 'u'
UNION ALL
SELECT 'n', attname::text, '' FROM pg_attribute
WHERE attrelid = to_regclass(%(table)s) AND attnum > 0 AND attnotnull AND NOT attisdropped

-- not_valid_checks --
-- Checks that older rows may violate, each as ALTER TABLE ADD CONSTRAINT takes it.
SELECT quote_ident(conname), pg_get_constraintdef(oid) FROM pg_constraint
WHERE conrelid = to_regclass(%(table)s) AND contype = 'c' AND NOT convalidated AND pg_get_constraintdef(oid) IS NOT NULL

-- no_identity --
-- An identity is NOT NULL, a column with a default need not be.
DO $venus$ BEGIN
    IF EXISTS (SELECT FROM pg_attribute WHERE attrelid = to_regclass({table_name}) AND attname = {column_name}
               AND attidentity <> '') THEN
        ALTER TABLE {table} ALTER COLUMN {column} DROP IDENTITY;
        ALTER TABLE {table} ALTER COLUMN {column} DROP NOT NULL;
        CREATE SEQUENCE {sequence} OWNED BY {table}.{column};
        ALTER TABLE {table} ALTER COLUMN {column} SET DEFAULT {default};
    END IF;
END $venus$

-- taken --
-- The names of relations in these schemas, except these tables and their indexes.
SELECT n.nspname::text, c.relname::text FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_index x ON x.indexrelid = c.oid
WHERE n.nspname = ANY (%(namespaces)s) AND coalesce(x.indrelid, c.oid) <> ALL (
    SELECT coalesce(to_regclass(t)::oid, 0) FROM unnest(%(tables)s::text[]) t)

-- primary_key --
SELECT conname::text FROM pg_constraint WHERE conrelid = to_regclass(%(table)s) AND contype = 'p'

-- referring --
-- Foreign keys that refer to the primary key of a table.
SELECT r.conrelid::regclass::text, r.conname::text
FROM pg_constraint r JOIN pg_constraint p ON p.conindid = r.conindid AND p.contype = 'p'
WHERE r.contype = 'f' AND r.conparentid = 0 AND r.confrelid = to_regclass(%(table)s)
    AND p.conrelid = to_regclass(%(table)s)
ORDER BY 1, 2

-- has_rows --
SELECT EXISTS (SELECT FROM {table})

-- count_rows --
SELECT count(*) FROM {table}

-- acting_foreign_keys --
-- Foreign keys that would act, or be checked row by row, if the role may not disable them while VENUS applies. A
-- dropped table is ignored here, because it halts alone.
SELECT r.conrelid::regclass::text, r.conname, r.confdeltype <> 'a' OR r.confupdtype <> 'a', r.condeferrable
FROM pg_constraint r
WHERE r.contype = 'f' AND r.confrelid IN (SELECT to_regclass(t) FROM unnest(%(tables)s::text[]) t)
    AND (r.confdeltype <> 'a' OR r.confupdtype <> 'a' OR NOT r.condeferrable)
ORDER BY 1, 2

-- drop_foreign_keys --
-- The statements that drop the foreign keys of some tables to others, in the form in which a load adds them.
SELECT format('ALTER TABLE %%s DROP CONSTRAINT %%I', r.conrelid::regclass, r.conname)
FROM pg_constraint r
WHERE r.contype = 'f' AND r.conparentid = 0 AND r.condeferrable AND NOT r.condeferred
    AND r.confdeltype = 'a' AND r.confupdtype = 'a'
    AND r.conrelid IN (SELECT to_regclass(t) FROM unnest(%(children)s::text[]) t)
    AND r.confrelid IN (SELECT to_regclass(t) FROM unnest(%(parents)s::text[]) t)
ORDER BY 1

-- referred_to --
SELECT n.nspname, c.relname FROM pg_constraint r JOIN pg_class c ON c.oid = r.confrelid
    JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE r.conrelid = to_regclass(%(table)s) AND r.conname = %(constraint)s

-- deferred --
-- Everything that may run at the COMMIT of a transaction that has written to these tables, in its order: their
-- constraints and constraint triggers, and foreign keys of other tables to them.
SELECT t.name, quote_ident(n.nspname) || '.' || quote_ident(r.conname)
FROM unnest(%(tables)s::text[]) WITH ORDINALITY t (name, place)
JOIN pg_constraint r ON r.condeferrable AND to_regclass(t.name) IN (r.conrelid, r.confrelid)
JOIN pg_namespace n ON n.oid = r.connamespace
ORDER BY t.place, r.contype, r.conname

-- replica_role --
SET session_replication_role = replica

-- set_sequence --
-- Limited to the range of a sequence, because a wider column may hold larger numbers.
SELECT setval(pg_get_serial_sequence(%(table)s, %(column)s),
              LEAST(GREATEST((SELECT max({column}) FROM {table}), 0) + 1, 9223372036854775807)::bigint, false)
WHERE pg_get_serial_sequence(%(table)s, %(column)s) IS NOT NULL
