-- Statements of `venus prove` on its scratch database.

-- facts --
SELECT current_setting('server_version'), regexp_replace(version(), '^\S+ \S+ (.*? )?on ', ''),
       current_setting('server_encoding'), d.datcollate, d.datctype, current_setting('block_size'),
       current_setting('data_checksums'), current_setting('wal_level'), current_setting('default_transaction_isolation'),
       current_setting('standard_conforming_strings'), current_setting('session_replication_role'),
       CASE WHEN pg_is_in_recovery() THEN 'standby' ELSE 'primary' END,
       (SELECT CASE WHEN rolsuper THEN 'superuser' ELSE 'ordinary role' END FROM pg_roles WHERE rolname = current_user),
       (SELECT string_agg(extname || ' ' || extversion, ', ' ORDER BY extname) FROM pg_extension)
  FROM pg_database d WHERE d.datname = current_database()

-- objects --
-- Every object of the database that does not come with the server or an extension: its kind, its name, and the statement
-- that drops it if a run creates objects of this kind.
WITH application AS (
    SELECT oid, nspname FROM pg_namespace n
     WHERE n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'
       AND NOT EXISTS (SELECT FROM pg_depend e WHERE e.classid = 'pg_namespace'::regclass AND e.objid = n.oid
                          AND e.deptype = 'e')
), of_extension AS (
    SELECT classid, objid FROM pg_depend WHERE deptype = 'e'
), found (kind, name, dropped) AS (
    SELECT 'schema', nspname::text, CASE nspname WHEN {own} THEN format('DROP SCHEMA %I CASCADE', nspname) END
      FROM application WHERE nspname <> 'public'
    UNION ALL
    SELECT k.kind, n.nspname || '.' || c.relname, format('DROP %s IF EXISTS %s CASCADE', upper(k.kind), c.oid::regclass)
      FROM pg_class c JOIN application n ON n.oid = c.relnamespace
      JOIN (VALUES ('r', 'table'), ('p', 'table'), ('f', 'foreign table'), ('v', 'view'), ('m', 'materialized view'),
                   ('S', 'sequence'), ('c', 'type')) k (relkind, kind) ON k.relkind = c.relkind::text
     WHERE ('pg_class'::regclass, c.oid) NOT IN (SELECT classid, objid FROM of_extension)
    UNION ALL
    SELECT 'function', n.nspname || '.' || p.proname, format('DROP ROUTINE IF EXISTS %s CASCADE', p.oid::regprocedure)
      FROM pg_proc p JOIN application n ON n.oid = p.pronamespace
     WHERE ('pg_proc'::regclass, p.oid) NOT IN (SELECT classid, objid FROM of_extension)
    UNION ALL
    SELECT 'type', n.nspname || '.' || t.typname, format('DROP TYPE IF EXISTS %s CASCADE', t.oid::regtype)
      FROM pg_type t JOIN application n ON n.oid = t.typnamespace
     WHERE t.typtype IN ('d', 'e', 'r') AND ('pg_type'::regclass, t.oid) NOT IN (SELECT classid, objid FROM of_extension)
    UNION ALL
    SELECT 'event trigger', evtname::text, NULL FROM pg_event_trigger t
     WHERE ('pg_event_trigger'::regclass, t.oid) NOT IN (SELECT classid, objid FROM of_extension)
    UNION ALL
    SELECT 'publication', pubname::text, NULL FROM pg_publication
)
-- an identity's sequence goes with its table, and may not be dropped before it
SELECT kind, name, dropped FROM found
 ORDER BY CASE kind WHEN 'schema' THEN 1 WHEN 'table' THEN 2 WHEN 'type' THEN 4 ELSE 3 END, kind, name

-- catalogue --
-- The definitions of everything that `objects` lists, a line each.
WITH application AS (
    SELECT oid, nspname FROM pg_namespace n WHERE n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'
)
SELECT concat_ws(' ', 'schema', nspname) FROM application
UNION ALL
SELECT concat_ws(' ', 'relation', n.nspname, c.relname, c.relkind, c.relacl, c.relreplident, c.reloptions)
  FROM pg_class c JOIN application n ON n.oid = c.relnamespace
UNION ALL
SELECT concat_ws(' ', 'column', n.nspname, c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull,
                 pg_get_expr(d.adbin, d.adrelid), a.attacl)
  FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN application n ON n.oid = c.relnamespace
  LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
 WHERE a.attnum > 0 AND NOT a.attisdropped
UNION ALL
SELECT concat_ws(' ', 'index', pg_get_indexdef(x.indexrelid))
  FROM pg_index x JOIN pg_class c ON c.oid = x.indrelid JOIN application n ON n.oid = c.relnamespace
UNION ALL
SELECT concat_ws(' ', 'constraint', n.nspname, o.conname, pg_get_constraintdef(o.oid))
  FROM pg_constraint o JOIN application n ON n.oid = o.connamespace
UNION ALL
SELECT concat_ws(' ', 'trigger', pg_get_triggerdef(t.oid), t.tgenabled)
  FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid JOIN application n ON n.oid = c.relnamespace
 WHERE NOT t.tgisinternal
UNION ALL
SELECT concat_ws(' ', 'function', n.nspname, p.proname, pg_get_function_identity_arguments(p.oid), md5(p.prosrc), p.proacl)
  FROM pg_proc p JOIN application n ON n.oid = p.pronamespace
UNION ALL
SELECT concat_ws(' ', 'type', n.nspname, t.typname, t.typtype) FROM pg_type t JOIN application n ON n.oid = t.typnamespace
UNION ALL
SELECT concat_ws(' ', 'event trigger', evtname) FROM pg_event_trigger
 ORDER BY 1

-- explain --
EXPLAIN (COSTS OFF) {query}
