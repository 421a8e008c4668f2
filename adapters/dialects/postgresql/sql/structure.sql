-- Structure of a PostgreSQL table and the application's other objects: only SELECTs, which any role may run.

-- checks --
-- Checks and exclusion constraints. The last column lists the application's objects that they need.
SELECT c.conrelid, c.conname, pg_get_constraintdef(c.oid), c.contype::text,
       (SELECT string_agg(DISTINCT pg_describe_object(d.refclassid, d.refobjid, 0), ', ') FROM pg_depend d
         WHERE d.classid = 'pg_constraint'::regclass AND d.objid = c.oid
           AND d.refclassid IN ('pg_proc'::regclass, 'pg_operator'::regclass, 'pg_opclass'::regclass))
  FROM pg_constraint c
 WHERE c.conrelid = ANY (%(tables)s::oid[]) AND c.contype IN ('c', 'x')
 ORDER BY c.conrelid, c.conname

-- indexes --
-- definition: the text after ON and the table. A deferrable constraint is a kind of its own.
SELECT x.indrelid, i.relname, x.indisunique, x.indisvalid, m.amname,
       coalesce(k.contype::text, ''), coalesce(k.condeferrable, false),
       (SELECT array_agg(a.attname::text ORDER BY t.position) FROM unnest(x.indkey::int2[]) WITH ORDINALITY t (attnum, position)
          JOIN pg_attribute a ON a.attrelid = x.indrelid AND a.attnum = t.attnum WHERE t.position <= x.indnkeyatts),
       x.indpred IS NULL AND x.indexprs IS NULL AND m.amname = 'btree' AND x.indnatts = x.indnkeyatts
         AND NOT EXISTS (SELECT FROM unnest(x.indoption::int2[]) o WHERE o <> 0)
         AND NOT EXISTS (SELECT FROM unnest(x.indclass::oid[]) o JOIN pg_opclass p ON p.oid = o WHERE NOT p.opcdefault)
         AND NOT EXISTS (SELECT FROM unnest(x.indkey::int2[], x.indcollation::oid[]) t (attnum, coll)
                           JOIN pg_attribute a ON a.attrelid = x.indrelid AND a.attnum = t.attnum
                          WHERE t.coll <> a.attcollation)
         AND pg_get_indexdef(x.indexrelid) !~ 'NULLS NOT DISTINCT',
       substr(pg_get_indexdef(x.indexrelid), length(concat(
         'CREATE ', CASE WHEN x.indisunique THEN 'UNIQUE ' END, 'INDEX ', quote_ident(i.relname), ' ON ',
         CASE WHEN i.relkind = 'I' THEN 'ONLY ' END, quote_ident(n.nspname), '.', quote_ident(c.relname), ' ')) + 1),
       (SELECT string_agg(DISTINCT pg_describe_object(d.refclassid, d.refobjid, 0), ', ') FROM pg_depend d
         WHERE d.classid = 'pg_class'::regclass AND d.objid = x.indexrelid
           AND d.refclassid IN ('pg_proc'::regclass, 'pg_opclass'::regclass, 'pg_collation'::regclass))
  FROM pg_index x
  JOIN pg_class i ON i.oid = x.indexrelid
  JOIN pg_class c ON c.oid = x.indrelid
  JOIN pg_namespace n ON n.oid = c.relnamespace
  JOIN pg_am m ON m.oid = i.relam
  LEFT JOIN pg_constraint k ON k.conindid = x.indexrelid AND k.conrelid = x.indrelid AND k.contype IN ('p', 'u', 'x')
 WHERE x.indrelid = ANY (%(tables)s::oid[]) AND NOT x.indisprimary AND x.indislive
 ORDER BY x.indrelid, i.relname

-- heirs --
-- Child tables by inheritance, whose rows a query of the parent includes. Partitions are left out: their rows belong to
-- the root.
SELECT i.inhparent, quote_ident(n.nspname) || '.' || quote_ident(c.relname),
       quote_ident(m.nspname) || '.' || quote_ident(p.relname)
  FROM pg_inherits i
  JOIN pg_class p ON p.oid = i.inhparent
  JOIN pg_namespace m ON m.oid = p.relnamespace
  JOIN pg_class c ON c.oid = i.inhrelid
  JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE i.inhparent = ANY (%(tables)s::oid[]) AND p.relkind = 'r'
 ORDER BY 1, 2

-- actions --
-- deltype, updtype: a no action, r restrict, c cascade, n set null, d set default.
SELECT f.conrelid, f.conname, f.confdeltype::text, f.confupdtype::text, f.confmatchtype::text, pg_get_constraintdef(f.oid)
  FROM pg_constraint f
 WHERE f.contype = 'f' AND f.conparentid = 0 AND f.conrelid = ANY (%(tables)s::oid[])

-- defaults --
-- The last column states whether the default needs no object of the application.
SELECT d.adrelid, d.adnum::int, pg_get_expr(d.adbin, d.adrelid), a.attgenerated::text, a.attidentity::text,
       NOT EXISTS (SELECT FROM pg_depend r WHERE r.classid = 'pg_attrdef'::regclass AND r.objid = d.oid
                    AND NOT (r.refclassid = 'pg_class'::regclass AND r.refobjid = d.adrelid))
  FROM pg_attrdef d JOIN pg_attribute a ON a.attrelid = d.adrelid AND a.attnum = d.adnum
 WHERE d.adrelid = ANY (%(tables)s::oid[])
 ORDER BY d.adrelid, d.adnum

-- own_types --
-- Enums and domains that these tables' columns use. Those of an extension come with the extension.
-- checks: name, definition, and the application's objects that the check needs.
WITH RECURSIVE used (oid) AS (
    SELECT atttypid FROM pg_attribute WHERE attrelid = ANY (%(tables)s::oid[]) AND attnum > 0 AND NOT attisdropped
    UNION
    SELECT u.below FROM used JOIN pg_type t ON t.oid = used.oid
      CROSS JOIN LATERAL (VALUES (t.typbasetype), (t.typelem)) u (below) WHERE u.below <> 0
)
SELECT t.oid, n.nspname, t.typname, format_type(t.oid, NULL), t.typtype::text, t.typnotnull, coalesce(t.typdefault, ''),
       (SELECT string_agg(DISTINCT pg_describe_object(d.refclassid, d.refobjid, 0), ', ') FROM pg_depend d
         WHERE d.classid = 'pg_type'::regclass AND d.objid = t.oid
           AND d.refclassid IN ('pg_proc'::regclass, 'pg_class'::regclass)),
       CASE WHEN t.typcollation NOT IN (0, b.typcollation) THEN t.typcollation::regcollation::text ELSE '' END,
       array(SELECT e.enumlabel::text FROM pg_enum e WHERE e.enumtypid = t.oid ORDER BY e.enumsortorder),
       array(SELECT ARRAY[c.conname::text, pg_get_constraintdef(c.oid), coalesce((
               SELECT string_agg(DISTINCT pg_describe_object(d.refclassid, d.refobjid, 0), ', ') FROM pg_depend d
                WHERE d.classid = 'pg_constraint'::regclass AND d.objid = c.oid
                  AND d.refclassid IN ('pg_proc'::regclass, 'pg_operator'::regclass)), '')]
               FROM pg_constraint c WHERE c.contypid = t.oid AND c.contype = 'c' AND pg_get_constraintdef(c.oid) IS NOT NULL
              ORDER BY c.conname)
  FROM used
  JOIN pg_type t ON t.oid = used.oid AND t.typtype IN ('e', 'd')
  JOIN pg_namespace n ON n.oid = t.typnamespace
  LEFT JOIN pg_type b ON b.oid = t.typbasetype
 WHERE n.nspname NOT IN ('pg_catalog', 'information_schema')
   AND NOT EXISTS (SELECT FROM pg_depend e
                    WHERE e.classid = 'pg_type'::regclass AND e.objid = t.oid AND e.deptype = 'e')
 ORDER BY n.nspname, t.typname

-- numberings --
-- Each sequence with the column that it numbers, if any. last_value is NULL before the first use.
SELECT n.nspname, c.relname, coalesce(s.last_value + s.increment_by, s.start_value), s.increment_by, s.min_value,
       s.max_value, s.cycle, coalesce(tn.nspname, ''), coalesce(t.relname, ''), coalesce(a.attname, ''),
       coalesce(a.attidentity = 'a', false)
  FROM pg_class c
  JOIN pg_namespace n ON n.oid = c.relnamespace
  JOIN pg_sequences s ON s.schemaname = n.nspname AND s.sequencename = c.relname
  LEFT JOIN LATERAL (
       SELECT d.refobjid AS relid, d.refobjsubid AS attnum, 0 AS rank FROM pg_depend d
        WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype IN ('a', 'i')
          AND d.refclassid = 'pg_class'::regclass
        UNION ALL
       SELECT f.adrelid, f.adnum, 1 FROM pg_depend d JOIN pg_attrdef f ON f.oid = d.objid
        WHERE d.classid = 'pg_attrdef'::regclass AND d.refclassid = 'pg_class'::regclass AND d.refobjid = c.oid
        ORDER BY 3, 1, 2 LIMIT 1) o ON true
  LEFT JOIN pg_class t ON t.oid = o.relid
  LEFT JOIN pg_namespace tn ON tn.oid = t.relnamespace
  LEFT JOIN pg_attribute a ON a.attrelid = o.relid AND a.attnum = o.attnum
 WHERE c.relkind = 'S' AND n.nspname = ANY (%(namespaces)s)
 ORDER BY n.nspname, c.relname

-- others --
SELECT CASE c.relkind WHEN 'v' THEN 'view' ELSE 'materialised view' END, n.nspname || '.' || c.relname
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind IN ('v', 'm') AND n.nspname = ANY (%(namespaces)s)
UNION ALL
SELECT CASE p.prokind WHEN 'p' THEN 'procedure' ELSE 'function' END, n.nspname || '.' || p.proname
  FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
 WHERE n.nspname = ANY (%(namespaces)s)
   AND NOT EXISTS (SELECT FROM pg_depend e WHERE e.classid = 'pg_proc'::regclass AND e.objid = p.oid AND e.deptype = 'e')
UNION ALL
SELECT 'trigger', g.tgname || ' on ' || n.nspname || '.' || c.relname
  FROM pg_trigger g JOIN pg_class c ON c.oid = g.tgrelid JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE NOT g.tgisinternal AND g.tgname !~ '^venus_' AND n.nspname = ANY (%(namespaces)s)
UNION ALL
SELECT 'row security policy', p.policyname || ' on ' || p.schemaname || '.' || p.tablename
  FROM pg_policies p WHERE p.schemaname = ANY (%(namespaces)s)
UNION ALL
SELECT CASE t.typtype WHEN 'e' THEN 'enum type' ELSE 'domain' END, n.nspname || '.' || t.typname
  FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace
 WHERE t.typtype IN ('e', 'd') AND n.nspname = ANY (%(namespaces)s)
   -- types that tables use travel with the tables
   AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.refclassid = 'pg_type'::regclass AND d.refobjid IN (t.oid, t.typarray)
                    AND d.classid IN ('pg_class'::regclass, 'pg_type'::regclass) AND d.deptype = 'n')
ORDER BY 1, 2
