-- What `venus check` asks; only SELECTs, in a read-only transaction.

-- server --
SELECT current_setting('server_version_num')::int, current_setting('server_encoding'), current_user::text,
       (SELECT rolsuper FROM pg_roles WHERE rolname = current_user),
       current_database()::text,
       has_database_privilege(current_database(), 'CREATE'),
       to_regnamespace('venus') IS NOT NULL,
       CASE WHEN to_regnamespace('venus') IS NOT NULL
            THEN has_schema_privilege('venus', 'CREATE') AND has_schema_privilege('venus', 'USAGE') ELSE true END,
       pg_is_in_recovery(), pg_has_role('pg_read_all_stats', 'USAGE')

-- privileges --
SELECT c.oid, has_schema_privilege(c.relnamespace, 'USAGE'), has_table_privilege(c.oid, 'SELECT'),
       has_table_privilege(c.oid, 'TRIGGER'),
       c.relrowsecurity AND NOT (pg_has_role(c.relowner, 'USAGE') AND NOT c.relforcerowsecurity)
         AND NOT (SELECT rolsuper OR rolbypassrls FROM pg_roles WHERE rolname = current_user)
  FROM pg_class c WHERE c.oid = ANY (%(tables)s::oid[])

-- replica_writers --
-- Where rows may be written with triggers switched off.
SELECT 'role ' || coalesce(r.rolname, 'any') || ' in database ' || coalesce(d.datname, 'any')
  FROM pg_db_role_setting s LEFT JOIN pg_roles r ON r.oid = s.setrole LEFT JOIN pg_database d ON d.oid = s.setdatabase
 WHERE EXISTS (SELECT FROM unnest(s.setconfig) c WHERE c ~ '^session_replication_role=(replica|local)$')
UNION ALL
SELECT 'subscription ' || subname FROM pg_stat_subscription WHERE subname IS NOT NULL

-- waiting --
-- Who holds a lock on one of these tables that a new trigger has to wait for.
SELECT DISTINCT a.pid, coalesce(a.usename, ''), coalesce(a.application_name, ''), coalesce(a.state, ''),
       coalesce(extract(epoch FROM clock_timestamp() - a.xact_start), 0)::int, l.relation::regclass::text
  FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
 WHERE l.locktype = 'relation' AND l.granted AND l.relation = ANY (%(tables)s::oid[])
   AND l.mode NOT IN ('AccessShareLock', 'RowShareLock') AND l.pid <> pg_backend_pid()
 ORDER BY 5 DESC

-- record_id --
-- For a table without a key: a number that tells equal rows apart. It rewrites the table, under an exclusive lock.
ALTER TABLE {table} ADD COLUMN venus_record_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY
