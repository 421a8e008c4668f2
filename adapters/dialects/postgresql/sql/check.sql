-- Queries of `venus check`: only SELECTs, in a read-only transaction.

-- server --
SELECT current_setting('server_version_num')::int, current_setting('server_encoding'), current_user::text,
       (SELECT rolsuper FROM pg_roles WHERE rolname = current_user),
       current_database()::text,
       has_database_privilege(current_database(), 'CREATE'),
       to_regnamespace('venus') IS NOT NULL,
       CASE WHEN to_regnamespace('venus') IS NOT NULL
            -- NULL if the schema was dropped since the snapshot
            THEN coalesce(has_schema_privilege(to_regnamespace('venus')::oid, 'CREATE')
                          AND has_schema_privilege(to_regnamespace('venus')::oid, 'USAGE'), true) ELSE true END,
       pg_is_in_recovery(), pg_has_role('pg_read_all_stats', 'USAGE')

-- privileges --
SELECT c.oid, has_schema_privilege(c.relnamespace, 'USAGE'), has_table_privilege(c.oid, 'SELECT'),
       has_table_privilege(c.oid, 'TRIGGER'),
       c.relrowsecurity AND NOT (pg_has_role(c.relowner, 'USAGE') AND NOT c.relforcerowsecurity)
         AND NOT (SELECT rolsuper OR rolbypassrls FROM pg_roles WHERE rolname = current_user),
       c.relowner::regrole::text,
       pg_has_role(c.relowner, 'USAGE')
         OR EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = c.oid AND t.tgname ~ '^venus_[a-z]_' AND t.tgenabled = 'A')
  FROM pg_class c WHERE c.oid = ANY (%(tables)s::oid[])

-- large_values --
-- The size of the values that are stored outside of their rows, in a table and its partitions.
SELECT coalesce(sum(pg_relation_size(c.reltoastrelid)), 0)
  FROM pg_class c WHERE c.reltoastrelid <> 0 AND c.oid = ANY (%(tables)s::oid[])

-- large_rows --
SELECT count(*), count(*) FILTER (WHERE {lengths} > {bytes}) FROM {table} x

-- length --
-- The server knows it without reading the value.
coalesce(octet_length(x.{c}), 0)

-- text_length --
-- Reads only values that take much space.
CASE WHEN pg_column_size(x.{c}) > {bytes} THEN octet_length(x.{c}::text) ELSE 0 END

-- replica_writers --
-- Roles, databases and subscriptions that may write rows without firing triggers.
SELECT 'role ' || coalesce(r.rolname, 'any') || ' in database ' || coalesce(d.datname, 'any')
  FROM pg_db_role_setting s LEFT JOIN pg_roles r ON r.oid = s.setrole LEFT JOIN pg_database d ON d.oid = s.setdatabase
 WHERE EXISTS (SELECT FROM unnest(s.setconfig) c WHERE c ~ '^session_replication_role=(replica|local)$')
UNION ALL
SELECT 'subscription ' || subname FROM pg_stat_subscription WHERE subname IS NOT NULL

-- unseen --
-- Whether an older installation lacks the table of the marks of triggers and columns.
SELECT count(*) FILTER (WHERE c.relname = 'captured_table') > count(*) FILTER (WHERE c.relname = 'seen')
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = 'venus' AND c.relkind = 'r'

-- keyless --
-- The facts that decide how a table without a key can be given one. The last is a column with the table's row type,
-- alone or inside another type; such a table cannot be rewritten.
SELECT c.oid, c.relkind = 'p', c.reloftype <> 0, c.relnatts::int,
       EXISTS (SELECT FROM pg_inherits i WHERE c.oid IN (i.inhparent, i.inhrelid)) AND c.relkind <> 'p',
       EXISTS (SELECT FROM pg_index x WHERE x.indrelid = c.oid AND x.indisprimary),
       (SELECT array_agg(a.attname::text) FROM pg_attribute a
         WHERE a.attnum > 0 AND NOT a.attisdropped
           AND a.attrelid IN (SELECT c.oid UNION SELECT r.oid FROM related r WHERE r.root = c.oid)),
       (SELECT d.adbin IS NOT NULL AND a.attnotnull AND a.atttypid = 'bigint'::regtype
          FROM pg_attribute a LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
         WHERE a.attrelid = c.oid AND a.attname = 'venus_record_id' AND NOT a.attisdropped),
       (SELECT array_agg(DISTINCT coalesce(a.attname::text, ''))
          FROM pg_partition_tree(c.oid) t JOIN pg_partitioned_table p ON p.partrelid = t.relid
          CROSS JOIN LATERAL unnest(p.partattrs::int2[]) k (attnum)
          LEFT JOIN pg_attribute a ON a.attrelid = p.partrelid AND a.attnum = k.attnum AND k.attnum > 0),
       (SELECT min(l.oid::regclass::text) FROM pg_class l JOIN pg_partition_tree(c.oid) t ON t.relid = l.oid
         WHERE l.relkind = 'f'),
       (SELECT min(u.relation) FROM uses u WHERE u.root = c.oid)
  FROM pg_class c WHERE c.oid = ANY (%(tables)s::oid[])

-- with_keyless --
WITH RECURSIVE related (root, oid) AS (
    SELECT t.oid, t.oid FROM unnest(%(tables)s::oid[]) t (oid)
    UNION
    SELECT r.root, o.oid FROM related r JOIN pg_inherits i ON r.oid IN (i.inhparent, i.inhrelid)
      CROSS JOIN LATERAL (VALUES (i.inhparent), (i.inhrelid)) o (oid)
), made_of (root, type) AS (
    SELECT r.root, c.reltype FROM related r JOIN pg_class c ON c.oid = r.oid
    UNION
    SELECT m.root, o.type FROM made_of m CROSS JOIN LATERAL (
        SELECT t.oid FROM pg_type t WHERE m.type IN (t.typelem, t.typbasetype)
        UNION ALL SELECT g.rngtypid FROM pg_range g WHERE g.rngsubtype = m.type
        UNION ALL SELECT c.reltype FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
                   WHERE a.atttypid = m.type AND c.relkind = 'c' AND NOT a.attisdropped
    ) o (type)
), uses (root, relation) AS (
    SELECT m.root, format('%%s.%%I', c.oid::regclass, a.attname)
      FROM made_of m JOIN pg_attribute a ON a.atttypid = m.type AND a.attnum > 0 AND NOT a.attisdropped
      JOIN pg_class c ON c.oid = a.attrelid AND c.relkind IN ('r', 'p', 'm')
)
