-- Queries of PostgreSQL's dictionary: only SELECTs, which any role may run.

-- tables --
-- Every table that could be captured. Partitions belong to their root and are not listed.
SELECT c.oid, n.nspname, c.relname, c.relkind::text, c.relpersistence::text, c.relhassubclass,
       EXISTS (SELECT FROM pg_inherits i WHERE i.inhrelid = c.oid) AS inherits,
       c.relrowsecurity, greatest(c.reltuples, 0)::bigint,
       coalesce(obj_description(c.oid, 'pg_class'), ''),
       EXISTS (SELECT FROM pg_depend e WHERE e.classid = 'pg_class'::regclass AND e.objid = c.oid
               AND e.deptype = 'e') AS of_extension
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind IN ('r', 'p', 'f') AND NOT c.relispartition AND c.relpersistence <> 't'
   AND n.nspname <> 'information_schema' AND n.nspname !~ '^pg_'
 ORDER BY n.nspname, c.relname

-- columns --
SELECT a.attrelid, a.attnum::int, a.attname, a.atttypid, a.atttypmod, format_type(a.atttypid, a.atttypmod),
       a.attnotnull, a.attidentity::text, a.attgenerated::text, coalesce(pg_get_expr(d.adbin, d.adrelid), ''),
       coalesce(col_description(a.attrelid, a.attnum), ''),
       coalesce(o.collisdeterministic, true),
       CASE WHEN a.attcollation <> 0 THEN quote_ident(v.nspname) || '.' || quote_ident(o.collname) ELSE '' END
  FROM pg_attribute a
  LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
  LEFT JOIN pg_collation o ON o.oid = a.attcollation
  LEFT JOIN pg_namespace v ON v.oid = o.collnamespace
 WHERE a.attrelid = ANY (%(tables)s::oid[]) AND a.attnum > 0 AND NOT a.attisdropped
 ORDER BY a.attrelid, a.attnum

-- dropped --
-- Those of these tables that no longer exist. A snapshot still shows them, but functions such as format_type() read the
-- newest catalogue, and return NULL or ??? for dropped objects.
SELECT t.oid FROM unnest(%(tables)s::oid[]) t (oid) WHERE has_table_privilege(t.oid, 'SELECT') IS NULL

-- types --
-- The types of these tables' columns, with their base and element types.
WITH RECURSIVE used (oid) AS (
    SELECT atttypid FROM pg_attribute WHERE attrelid = ANY (%(tables)s::oid[]) AND attnum > 0 AND NOT attisdropped
    UNION
    SELECT u.below FROM used JOIN pg_type t ON t.oid = used.oid
      CROSS JOIN LATERAL (VALUES (t.typbasetype), (t.typelem)) u (below) WHERE u.below <> 0
)
SELECT t.oid, n.nspname, t.typname, t.typtype::text, t.typbasetype, t.typtypmod,
       CASE WHEN t.typbasetype <> 0 THEN format_type(t.typbasetype, t.typtypmod) ELSE '' END, t.typelem,
       t.typcategory = 'A' AND t.typelem <> 0 AND t.typsubscript = 'array_subscript_handler'::regproc,
       coalesce((SELECT quote_ident(e.extname) FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid
                  WHERE d.classid = 'pg_type'::regclass AND d.objid = t.oid AND d.deptype = 'e'
                    AND d.refclassid = 'pg_extension'::regclass), '')
  FROM used JOIN pg_type t ON t.oid = used.oid JOIN pg_namespace n ON n.oid = t.typnamespace

-- indexes --
-- One row for each key column of each index. The operators are those of the index.
SELECT x.indrelid, x.indexrelid, i.relname, x.indisprimary, x.indisunique, x.indimmediate AND x.indisvalid,
       x.indpred IS NULL AND x.indexprs IS NULL AND m.amname = 'btree', x.indisreplident, k.position::int,
       k.attnum::int,
       (SELECT quote_ident(s.nspname) || '.' || p.oprname FROM pg_amop e JOIN pg_operator p ON p.oid = e.amopopr
          JOIN pg_namespace s ON s.oid = p.oprnamespace
         WHERE e.amopfamily = c.opcfamily AND e.amoplefttype = c.opcintype AND e.amoprighttype = c.opcintype
           AND e.amopstrategy = 3 AND m.amname = 'btree'),
       (SELECT quote_ident(a.attname) FROM pg_attribute a WHERE a.attrelid = x.indrelid AND a.attnum = k.attnum)
  FROM pg_index x
  JOIN pg_class i ON i.oid = x.indexrelid
  JOIN pg_am m ON m.oid = i.relam
  CROSS JOIN LATERAL unnest(x.indkey::int2[], x.indclass::oid[]) WITH ORDINALITY k (attnum, opclass, position)
  LEFT JOIN pg_opclass c ON c.oid = k.opclass
 WHERE x.indrelid = ANY (%(tables)s::oid[]) AND x.indislive AND k.position <= x.indnkeyatts
 ORDER BY x.indrelid, x.indexrelid, k.position

-- foreign_keys --
SELECT f.conrelid, f.conname, n.nspname, r.relname,
       (SELECT array_agg(a.attname::text ORDER BY k.position) FROM unnest(f.conkey) WITH ORDINALITY k (attnum, position)
          JOIN pg_attribute a ON a.attrelid = f.conrelid AND a.attnum = k.attnum),
       (SELECT array_agg(a.attname::text ORDER BY k.position) FROM unnest(f.confkey) WITH ORDINALITY k (attnum, position)
          JOIN pg_attribute a ON a.attrelid = f.confrelid AND a.attnum = k.attnum)
  FROM pg_constraint f
  JOIN pg_class r ON r.oid = f.confrelid
  JOIN pg_namespace n ON n.oid = r.relnamespace
 WHERE f.contype = 'f' AND f.conparentid = 0 AND f.conrelid = ANY (%(tables)s::oid[])
 ORDER BY f.conrelid, f.conname

-- partitions --
-- The leaves of partitioned tables.
SELECT t.root, p.relid::oid, n.nspname, c.relname
  FROM unnest(%(tables)s::oid[]) t (root)
  CROSS JOIN LATERAL pg_partition_tree(t.root) p
  JOIN pg_class c ON c.oid = p.relid
  JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE p.isleaf AND p.relid <> t.root
 ORDER BY t.root, n.nspname, c.relname

-- fingerprint --
-- A digest of the position and writer of each relevant row in the system catalogs: a cheap sign that these tables may
-- have changed. Other tables count only by their existence, and temporary ones not at all.
SELECT md5(string_agg(x.part || ' ' || coalesce(x.seen, ''), ' ' ORDER BY x.part)) FROM (
    SELECT 0 AS part, ({mark}) AS seen
    UNION ALL SELECT 1, sum(hashtextextended(relname, oid::bigint))::text FROM pg_class
     WHERE relkind IN ('r', 'p', 'f') AND relpersistence <> 't'
    UNION ALL SELECT 2, sum(hashtidextended(ctid, xmin::text::bigint))::text FROM pg_class
     WHERE oid = ANY (%(tables)s::oid[]) OR relnamespace = 'venus'::regnamespace
    UNION ALL SELECT 3, sum(hashtidextended(c.ctid, c.xmin::text::bigint))::text FROM pg_class c
      JOIN pg_index x ON x.indexrelid = c.oid WHERE x.indrelid = ANY (%(tables)s::oid[])
    UNION ALL SELECT 4, sum(hashtidextended(ctid, xmin::text::bigint))::text FROM pg_index
     WHERE indrelid = ANY (%(tables)s::oid[])
    UNION ALL SELECT 5, sum(hashtidextended(ctid, xmin::text::bigint))::text FROM pg_attribute
     WHERE attrelid = ANY (%(tables)s::oid[])
    UNION ALL SELECT 6, sum(hashtidextended(ctid, xmin::text::bigint))::text FROM pg_attrdef
     WHERE adrelid = ANY (%(tables)s::oid[])
    UNION ALL SELECT 7, sum(hashtidextended(ctid, xmin::text::bigint))::text FROM pg_constraint
     WHERE conrelid = ANY (%(tables)s::oid[]) OR contypid <> 0
    UNION ALL SELECT 8, sum(hashtidextended(ctid, xmin::text::bigint))::text FROM pg_trigger
     WHERE tgrelid = ANY (%(tables)s::oid[])
    UNION ALL SELECT 9, sum(hashtidextended(ctid, xmin::text::bigint))::text FROM pg_description
     WHERE objoid = ANY (%(tables)s::oid[])
    UNION ALL SELECT 10, sum(hashtidextended(ctid, xmin::text::bigint))::text FROM pg_proc
     WHERE pronamespace = 'venus'::regnamespace
    UNION ALL SELECT 11, sum(hashtidextended(ctid, xmin::text::bigint))::text FROM pg_type
     WHERE typtype IN ('e', 'd', 'r') AND oid >= 16384
    UNION ALL SELECT 12, sum(hashtidextended(ctid, xmin::text::bigint))::text FROM pg_enum
    UNION ALL SELECT 13, sum(hashtidextended(ctid, xmin::text::bigint))::text FROM pg_inherits
    UNION ALL SELECT 14, sum(hashtidextended(ctid, xmin::text::bigint))::text FROM pg_namespace WHERE nspname !~ '^pg_'
) x

-- signatures --
-- Changes whenever a table's version may change. It is compared before every read, so that no row is read in another
-- version.
SELECT c.oid, n.nspname, c.relname,
       md5(concat_ws(' ', n.nspname, c.relname, c.relkind, c.relhassubclass, '') || (
           SELECT string_agg(format('%%s %%s %%s %%s %%s %%s', a.attnum, a.attname, a.atttypid, a.atttypmod,
                                    a.attnotnull, a.attcollation) || CASE WHEN a.atttypid < 16384 THEN '' ELSE (
               -- labels of the application's enums; oids from 16384 up belong to the application
               SELECT coalesce(string_agg(e.enumlabel, ' ' ORDER BY e.enumsortorder), '')
                 FROM pg_type t JOIN pg_enum e ON e.enumtypid IN (t.oid, t.typelem, t.typbasetype)
                WHERE t.oid = a.atttypid) END, ',' ORDER BY a.attnum)
             FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped)
       || ' ' || coalesce((
           SELECT string_agg(format('%%s %%s %%s %%s', x.indexrelid, x.indisprimary, x.indkey, x.indisvalid), ','
                             ORDER BY x.indexrelid)
             FROM pg_index x WHERE x.indrelid = c.oid AND x.indisunique), '')
       || ' ' || CASE WHEN c.relkind = 'p' THEN (
           SELECT coalesce(string_agg(p.relid::oid::text, ',' ORDER BY p.relid::oid), '')
             FROM pg_partition_tree(c.oid) p WHERE p.isleaf) ELSE '' END)
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.oid = ANY (%(tables)s::oid[])
