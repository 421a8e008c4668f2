-- The record of a database that may become the application's and be taken back, and the triggers that reject writes.
-- {own} is the schema of VENUS's own tables.

-- lock_switch --
SELECT pg_try_advisory_lock(hashtextextended('venus switch', 7654))

-- exists --
SELECT to_regclass('{own}.side') IS NOT NULL

-- create --
CREATE TABLE IF NOT EXISTS {own}.side (id int PRIMARY KEY CHECK (id = 1), business text NOT NULL, name text NOT NULL,
    peer text NOT NULL, state text NOT NULL, switch bigint NOT NULL, "offset" bigint NOT NULL,
    changed_at timestamptz NOT NULL)

-- read --
SELECT business, name, peer, state, switch, "offset", changed_at FROM {own}.side

-- put --
INSERT INTO {own}.side (id, business, name, peer, state, switch, "offset", changed_at)
VALUES (1, %(business)s, %(name)s, %(peer)s, %(state)s, %(switch)s, %(offset)s, clock_timestamp())
ON CONFLICT (id) DO UPDATE SET business = EXCLUDED.business, name = EXCLUDED.name, peer = EXCLUDED.peer,
    state = EXCLUDED.state, switch = EXCLUDED.switch, "offset" = EXCLUDED."offset", changed_at = EXCLUDED.changed_at

-- relations --
-- The tables and their partitions. A statement fires the triggers of the relation that it names.
SELECT DISTINCT r.oid::regclass::text
  FROM unnest(%(tables)s::regclass[]) t (oid)
 CROSS JOIN LATERAL (SELECT t.oid UNION SELECT p.relid FROM pg_partition_tree(t.oid) p) r (oid)
 ORDER BY 1

-- reject_function --
-- The sessions of the pipeline that this database follows may write. The error code is that of a read-only transaction,
-- which applications know.
CREATE OR REPLACE FUNCTION {own}.reject_write() RETURNS trigger LANGUAGE plpgsql AS $venus$
BEGIN
  IF current_setting('venus.follows', true) = 'on' THEN RETURN NULL; END IF;
  RAISE EXCEPTION USING ERRCODE = 'read_only_sql_transaction',
    MESSAGE = 'this database rejects writes, because VENUS keeps it equal to another one: ' || {peer},
    HINT = 'write to the other database; `venus status` shows which one accepts writes';
END $venus$

-- may_read --
SELECT coalesce(has_table_privilege(to_regclass('{own}.side'), 'SELECT'), false)

-- mark_session --
-- Triggers of release 0.1.0 read venus.apply, which every target of that release sets.
SELECT set_config(m.name, 'on', false) FROM {own}.side CROSS JOIN unnest(ARRAY['venus.follows', 'venus.apply']) m (name)
 WHERE side.business = %(business)s AND side.name = %(target)s

-- reject --
CREATE OR REPLACE TRIGGER venus_closed BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON {table}
    FOR EACH STATEMENT EXECUTE FUNCTION {own}.reject_write()

-- reject_always --
-- Also in sessions of other pipelines, in which ordinary triggers do not fire.
ALTER TABLE {table} ENABLE ALWAYS TRIGGER venus_closed

-- accept --
-- The triggers stay until `remove_triggers`, which waits for readers.
CREATE OR REPLACE FUNCTION {own}.reject_write() RETURNS trigger LANGUAGE plpgsql AS $venus$
BEGIN
  RETURN NULL;
END $venus$

-- remove_triggers --
DROP FUNCTION IF EXISTS {own}.reject_write() CASCADE

-- lock_timeout --
SET lock_timeout = {milliseconds}

-- unfit_triggers --
-- Triggers and rules of the application that fire in VENUS's sessions as well.
SELECT t.tgrelid::regclass::text, quote_ident(t.tgname), CASE t.tgenabled WHEN 'A' THEN 'ALWAYS' ELSE 'REPLICA' END
  FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid
 WHERE t.tgrelid = ANY (%(tables)s::regclass[]) AND NOT t.tgisinternal AND t.tgenabled IN ('A', 'R')
   AND p.pronamespace IS DISTINCT FROM to_regnamespace('{own}')
 ORDER BY 1, 2

-- unfit_columns --
-- Identity columns outside the key that only DEFAULT can update.
SELECT a.attrelid::regclass::text, quote_ident(a.attname) FROM pg_attribute a
 WHERE a.attrelid = ANY (%(tables)s::regclass[]) AND a.attidentity = 'a' AND NOT a.attisdropped
   AND NOT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = a.attrelid AND i.indisprimary
                      AND a.attnum = ANY (i.indkey::int2[]))
 ORDER BY 1, 2

-- missing_rights --
SELECT c.oid::regclass::text, string_agg(p.name, ', ' ORDER BY p.name) FROM pg_class c
 CROSS JOIN unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE', 'TRUNCATE', 'TRIGGER']) p (name)
 WHERE c.oid = ANY (%(tables)s::regclass[]) AND NOT has_table_privilege(c.oid, p.name)
 GROUP BY 1 ORDER BY 1

-- hidden_rows --
SELECT c.oid::regclass::text FROM pg_class c
 WHERE c.oid = ANY (%(tables)s::regclass[]) AND row_security_active(c.oid) ORDER BY 1

-- encoding --
SELECT current_setting('server_encoding'), current_setting('server_version_num')::int

-- count_values --
-- The number of rows whose value differs from the value that the stream would give them at the other database.
SELECT count(*) FROM (SELECT FROM {table} WHERE {column} IS DISTINCT FROM ({value}) LIMIT {most}) r

-- count_rows --
SELECT count(*) FROM (SELECT FROM {table} LIMIT {most}) r

-- role --
SELECT quote_ident(current_user)
