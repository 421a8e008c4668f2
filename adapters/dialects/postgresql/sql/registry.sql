-- The registry of captured tables, the checkpoint row and the batch table.

-- tables --
-- The first column changes with the row, so that schemas are fetched only when needed.
SELECT ctid::text || ' ' || xmin::text, table_id, fingerprint, state, coalesce(reason, ''), coalesce(fill_cursor, ''),
       fill_rows, fill_estimate, fill_done = 1, sweep_from
  FROM venus.captured_table WHERE (state = 'RELEASED') = {released} ORDER BY table_id

-- schemas --
SELECT table_id, schema_wire FROM venus.captured_table WHERE table_id = ANY (%(tables)s)

-- oids --
SELECT t.table_id, coalesce(c.oid, 0) FROM venus.captured_table t
  LEFT JOIN (pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace AND c.relkind IN ('r', 'p', 'f'))
    ON n.nspname = t.namespace AND c.relname = t.name
 WHERE t.state <> 'RELEASED'

-- mark --
-- Changes with every change of the registry that affects capture. Such a change also inserts the dirty mark 0, so that a
-- poll need not read this.
SELECT md5(coalesce(string_agg(concat_ws(' ', table_id, fingerprint, state), ',' ORDER BY table_id), ''))
  FROM venus.captured_table

-- has_identity --
SELECT to_regclass('venus.identity') IS NOT NULL, has_function_privilege('pg_control_system()', 'EXECUTE')

-- database --
SELECT oid::text FROM pg_database WHERE datname = current_database()

-- system --
-- A standby that took over has the same number, a server that was loaded from a dump has another one.
SELECT system_identifier::text FROM pg_control_system()

-- identity --
SELECT facts FROM venus.identity

-- store_identity --
INSERT INTO venus.identity (id, facts) VALUES (1, %(facts)s) ON CONFLICT (id) DO UPDATE SET facts = excluded.facts

-- sign --
-- Changes with every write to the registry.
SELECT concat_ws(' ', count(*), sum(hashtidextended(ctid, xmin::text::bigint))) FROM venus.captured_table

-- uncaptured --
-- The tables that the registry lacks. Reads little even for thousands of tables.
SELECT c.oid, n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind IN ('r', 'p', 'f') AND NOT c.relispartition AND c.relpersistence <> 't'
   AND n.nspname <> 'information_schema' AND n.nspname !~ '^pg_'
   AND NOT EXISTS (SELECT FROM venus.captured_table t WHERE t.namespace = n.nspname AND t.name = c.relname)
 ORDER BY n.nspname, c.relname

-- register --
WITH marked AS (INSERT INTO venus.dirty (table_id) VALUES (0))
INSERT INTO venus.captured_table (table_id, namespace, name, schema_wire, fingerprint, state, fill_rows,
                                  fill_estimate, fill_done, sweep_from, log_through, number_max)
SELECT {table_id}, {namespace}, {name}, {schema_wire}, {fingerprint}, 'ACTIVE', 0,
       -- a table that was never analysed is assumed to have a hundred bytes a row
       CASE WHEN reltuples >= 0 THEN reltuples ELSE pg_relation_size(oid) / 100 END::bigint, 0, 0, 0, {number_max}
  FROM pg_class WHERE oid = {table}::regclass

-- new_version --
WITH marked AS (INSERT INTO venus.dirty (table_id) VALUES (0))
UPDATE venus.captured_table
   SET schema_wire = {schema_wire}, fingerprint = {fingerprint}, number_max = greatest(number_max, {number_max})
 WHERE table_id = {table_id}

-- set_state --
WITH marked AS (INSERT INTO venus.dirty (table_id) VALUES (0))
UPDATE venus.captured_table SET state = %(state)s, reason = %(reason)s WHERE table_id = %(table_id)s

-- missed --
-- Does nothing if an operator has removed the triggers since capture read the registry.
WITH marked AS (INSERT INTO venus.dirty (table_id) VALUES (0))
UPDATE venus.captured_table SET state = 'RESYNC', reason = %(reason)s
 WHERE table_id = %(table_id)s AND state NOT IN ('RELEASING', 'RELEASED')

-- take_up --
-- Rows of a released table that were shipped earlier may have been deleted since, so the table is swept.
WITH marked AS (INSERT INTO venus.dirty (table_id) VALUES (0))
UPDATE venus.captured_table
   SET state = 'ACTIVE', reason = NULL, fill_cursor = NULL, fill_done = 0, fill_rows = 0,
       sweep_from = (SELECT next_sequence FROM venus.checkpoint WHERE id = 1),
       fill_estimate = (SELECT CASE WHEN reltuples >= 0 THEN reltuples ELSE pg_relation_size(oid) / 100 END::bigint
                          FROM pg_class WHERE oid = {table}::regclass)
 WHERE table_id = {table_id}

-- release --
WITH marked AS (INSERT INTO venus.dirty (table_id) VALUES (0))
UPDATE venus.captured_table SET state = {state}, reason = {reason} WHERE table_id = {table_id}

-- restart_fill --
-- If rows of the table may have been shipped, the fill ends in a sweep, which removes the rows that it did not read.
UPDATE venus.captured_table
   SET fill_cursor = NULL, fill_done = 0,
       sweep_from = (SELECT CASE WHEN next_sequence > 1 THEN next_sequence ELSE 0 END FROM venus.checkpoint WHERE id = 1),
       fill_rows = 0,
       reason = CASE WHEN substr(reason, 1, 13) = 'compared with' THEN NULL ELSE reason END,
       fill_estimate = coalesce((SELECT CASE WHEN reltuples >= 0 THEN reltuples ELSE pg_relation_size(oid) / 100 END
                                   FROM pg_class
                                  WHERE oid = to_regclass(quote_ident(namespace) || '.' || quote_ident(name))), 0)
 WHERE table_id = %(table_id)s

-- begin_comparison --
-- Applies only before the fill has read a row.
UPDATE venus.captured_table SET reason = %(reason)s
 WHERE table_id = %(table_id)s AND state = 'ACTIVE' AND fill_done = 0 AND fill_cursor IS NULL

-- advance_comparison --
-- Applies only if no other fill or comparison was requested since, and no other change was missed.
UPDATE venus.captured_table SET reason = %(new_reason)s, fill_rows = %(rows_done)s, fill_done = %(done)s
 WHERE table_id = %(table_id)s AND state = 'ACTIVE' AND reason = %(known_reason)s AND fill_done = 0 AND fill_cursor IS NULL

-- sweep --
-- Forces a sweep even if the source has no record of shipped rows.
UPDATE venus.captured_table SET sweep_from = greatest(sweep_from, 1) WHERE table_id = %(table_id)s

-- state --
SELECT epoch, next_sequence, last_batch FROM venus.checkpoint WHERE id = 1

-- raise_epoch --
UPDATE venus.checkpoint SET epoch = %(epoch)s WHERE id = 1 AND epoch BETWEEN 0 AND %(epoch)s
RETURNING epoch, next_sequence, last_batch

-- empty_registry --
-- Runs before this database continues another database's registry. The logs contain nothing to capture, because this
-- database was a follower.
DELETE FROM venus.captured_table; DELETE FROM venus.captured_leaf; DELETE FROM venus.dirty; DELETE FROM venus.batch;
DELETE FROM venus.seen

-- continue_table --
-- A table that another database has captured before. It is not read again, because the broker has its rows.
INSERT INTO venus.captured_table (table_id, namespace, name, schema_wire, fingerprint, state, reason, fill_rows,
                                  fill_estimate, fill_done, sweep_from, log_through, number_max)
VALUES ({table_id}, {namespace}, {name}, {schema_wire}, {fingerprint}, {state}, {reason}, 0, 0, 1, 0, 0, {number_max})

-- continue_at --
UPDATE venus.checkpoint SET epoch = {epoch}, next_sequence = {next_sequence}, last_batch = {last_batch} WHERE id = 1;
INSERT INTO venus.dirty (table_id) VALUES (0)

-- seal --
-- A negative epoch stops every process from capturing here, until another database hands capture over to this one.
UPDATE venus.checkpoint SET epoch = -epoch WHERE id = 1 AND epoch = {epoch} AND epoch > 0

-- unseal --
UPDATE venus.checkpoint SET epoch = abs(epoch) WHERE id = 1

-- batches --
SELECT batch_no, epoch, first_sequence, last_sequence, digest FROM venus.batch WHERE batch_no = ANY (%(numbers)s)

-- settle --
-- Waits for an instance that is committing.
SELECT epoch FROM venus.checkpoint WHERE id = 1 FOR UPDATE

-- beat --
UPDATE venus.heartbeat SET beat_at = (extract(epoch FROM clock_timestamp()) * 1000000)::bigint WHERE id = 1

-- beat_again --
-- The heartbeat row was deleted.
INSERT INTO venus.heartbeat (id, beat_at)
SELECT 1, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint WHERE NOT EXISTS (SELECT FROM venus.heartbeat)

-- dirty --
SELECT DISTINCT table_id FROM venus.dirty

-- blockers --
-- Open transactions that have written to a captured table. Their changes cannot be captured before they end.
SELECT l.relation, max(extract(epoch FROM clock_timestamp() - a.xact_start))::float8
  FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
 WHERE l.locktype = 'relation' AND l.mode IN ('RowExclusiveLock', 'AccessExclusiveLock') AND l.granted
   AND l.relation = ANY (%(tables)s::oid[]) AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
   AND l.pid <> pg_backend_pid() AND a.xact_start IS NOT NULL
 GROUP BY l.relation

-- unreadable --
-- If a table or its log may not be read: the statement that makes it readable again, and whether the triggers fail the
-- application's statements until then. Triggers run as the owner of their function.
SELECT t.table_id,
       CASE WHEN NOT has_schema_privilege(c.relnamespace, 'USAGE')
            THEN 'GRANT USAGE ON SCHEMA ' || c.relnamespace::regnamespace || ' TO ' || quote_ident(current_user)
            WHEN NOT has_table_privilege(c.oid, 'SELECT')
            THEN 'GRANT SELECT ON ' || c.oid::regclass || ' TO ' || quote_ident(current_user)
            WHEN row_security_active(c.oid)
            THEN 'ALTER ROLE ' || quote_ident(current_user) || ' BYPASSRLS'
            WHEN NOT (has_table_privilege(l.oid, 'SELECT') AND has_table_privilege(l.oid, 'DELETE'))
            THEN 'GRANT SELECT, DELETE ON ' || l.oid::regclass || ' TO ' || quote_ident(current_user)
            WHEN NOT has_table_privilege(f.proowner, l.oid, 'INSERT')
            THEN 'GRANT INSERT ON ' || l.oid::regclass || ' TO ' || f.proowner::regrole END,
       NOT has_table_privilege(f.proowner, l.oid, 'INSERT')
  FROM unnest(%(tables)s::int[], %(oids)s::oid[]) t (table_id, oid)
  CROSS JOIN LATERAL lpad(table_id::text, greatest(5, length(table_id::text)), '0') number
  JOIN pg_class c ON c.oid = t.oid
  JOIN pg_class l ON l.oid = to_regclass('venus.l_' || number)
  LEFT JOIN pg_proc f ON f.pronamespace = to_regnamespace('venus') AND f.proname = 'f_' || number

-- own_lacking --
-- Missing privileges of this role on VENUS's own tables. Even an owner's privileges can be revoked.
SELECT n.nspname::text, 'GRANT USAGE ON SCHEMA venus TO ' || quote_ident(current_user)
  FROM pg_namespace n WHERE n.nspname = 'venus' AND NOT has_schema_privilege(n.oid, 'USAGE')
UNION ALL
-- triggers run as the owner of their functions
SELECT DISTINCT a.place, 'GRANT ' || a.privilege || ' TO ' || p.proowner::regrole
  FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace AND n.nspname = 'venus'
 CROSS JOIN LATERAL (
       SELECT 'venus', 'USAGE ON SCHEMA venus' WHERE NOT has_schema_privilege(p.proowner, n.oid, 'USAGE')
        UNION ALL
       SELECT 'venus.dirty', 'INSERT ON venus.dirty' FROM pg_class c
        WHERE c.relname = 'dirty' AND c.relnamespace = n.oid AND NOT has_table_privilege(p.proowner, c.oid, 'INSERT')
       ) a (place, privilege)
 WHERE p.proowner <> (SELECT oid FROM pg_roles WHERE rolname = current_user) AND p.prorettype = 'trigger'::regtype
UNION ALL
SELECT 'venus.' || c.relname, 'GRANT ' || t.privileges || ' ON venus.' || c.relname || ' TO ' || quote_ident(current_user)
  FROM (VALUES ('checkpoint', 'SELECT, UPDATE'), ('batch', 'SELECT, INSERT, DELETE'),
               ('captured_table', 'SELECT, UPDATE'), ('dirty', 'SELECT, INSERT, DELETE'),
               ('heartbeat', 'SELECT, INSERT, UPDATE'), ('seen', 'SELECT, INSERT, UPDATE, DELETE'),
               ('captured_leaf', 'SELECT, INSERT, DELETE'), ('identity', 'SELECT, INSERT, UPDATE')) t (name, privileges)
  JOIN pg_class c ON c.relname = t.name AND c.relkind = 'r'
  JOIN pg_namespace n ON n.oid = c.relnamespace AND n.nspname = 'venus'
 WHERE NOT (SELECT bool_and(has_table_privilege(c.oid, p)) FROM regexp_split_to_table(t.privileges, ', ') p)

-- prepare_advance --
PREPARE venus_advance (bigint, bigint, bigint) AS
UPDATE venus.checkpoint SET next_sequence = $1, last_batch = $2 WHERE id = 1 AND epoch = $3

-- advance --
EXECUTE venus_advance ({next_sequence}, {last_batch}, {epoch})

-- epoch --
SELECT epoch FROM venus.checkpoint WHERE id = 1

-- add_batch --
INSERT INTO venus.batch (batch_no, epoch, first_sequence, last_sequence, digest) VALUES {rows}

-- prepare_add_batch --
PREPARE venus_add_batch (bigint, bigint, bigint, bigint, text) AS
INSERT INTO venus.batch (batch_no, epoch, first_sequence, last_sequence, digest) VALUES ($1, $2, $3, $4, $5)

-- add_one_batch --
EXECUTE venus_add_batch {row}

-- prepare_forget_batches --
PREPARE venus_forget_batches (bigint) AS
DELETE FROM venus.batch WHERE batch_no < $1

-- forget_batches --
EXECUTE venus_forget_batches ({below})

-- store_fill --
-- Applies only if the fill was not restarted since its state was read.
UPDATE venus.captured_table
   SET fill_cursor = %(cursor)s, fill_rows = %(rows_done)s, fill_done = %(done)s, sweep_from = %(sweep_from)s,
       reason = CASE WHEN substr(reason, 1, 13) = 'compared with' THEN NULL ELSE reason END
 WHERE table_id = %(table_id)s AND coalesce(fill_cursor, '') = %(was_cursor)s AND fill_rows = %(was_rows)s
   AND sweep_from = %(was_sweep)s AND fill_done = 0

-- row_counts --
-- Estimated row counts: those of the last ANALYZE times the table's growth since, else the server's own count. The rows of
-- a partitioned table are those of its partitions.
SELECT t.table_id, greatest(0, sum(
           CASE WHEN c.relkind = 'p' THEN 0
                WHEN c.reltuples >= 0 AND c.relpages > 0
                THEN c.reltuples / c.relpages * (pg_relation_size(c.oid) / current_setting('block_size')::bigint)
                ELSE pg_stat_get_live_tuples(c.oid) END))::bigint
  FROM unnest(%(ids)s::int[], %(names)s::text[]) t (table_id, name)
  CROSS JOIN LATERAL (SELECT to_regclass(t.name) AS oid UNION SELECT p.relid FROM pg_partition_tree(to_regclass(t.name)) p) r
  JOIN pg_class c ON c.oid = r.oid
 GROUP BY t.table_id
