-- Triggers and log table of one captured table. triggers.py fills in the {braces}.

-- log_table --
-- The key of a changed row and the operation: I, U, D; T for TRUNCATE; X for a change whose key was unreadable, F for
-- changes beyond the limit of the log. There is no number and no index, because a cut deletes exactly the rows in its
-- snapshot. Without them bulk statements are a third faster.
CREATE TABLE {log} (op "char" NOT NULL, {columns})
    WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0,
          autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 2000000000)

-- lock_log --
SET LOCAL lock_timeout = {lock_ms};
LOCK TABLE {log} IN ACCESS EXCLUSIVE MODE

-- log_bytes --
SELECT pg_total_relation_size('{log}')

-- wider_column --
ALTER TABLE {log} ALTER {column} TYPE {type}

-- dirty_table --
-- The dirty marks show which log tables have rows, so that a poll reads one small table however many logs there are.
-- Triggers only insert, one row for each transaction and table, so writers never wait for each other here.
CREATE TABLE venus.dirty (table_id int NOT NULL)
    WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0,
          autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 2000000000)

-- mark_dirty --
-- The condition also sets the flag: an expression costs a fifth of a statement.
IF current_setting('{marked}', true) IS DISTINCT FROM 'on' AND set_config('{marked}', 'on', true) = 'on' THEN
    INSERT INTO venus.dirty (table_id) VALUES ({table_id});
  END IF;

-- statement_function --
CREATE OR REPLACE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, venus AS $venus$
BEGIN
  -- this session applies the changes of the database that this one follows
  IF current_setting('venus.follows', true) = 'on' THEN RETURN NULL; END IF;
  IF TG_OP = 'TRUNCATE' THEN
    INSERT INTO {log} (op) VALUES ('T');
    {mark_dirty};
    RETURN NULL;
  END IF;{full}
  -- A renamed, dropped or retyped key column must not break the application's statement. The key's index is tested first,
  -- which costs a quarter. A recreated index (REINDEX CONCURRENTLY, a restored dump) only makes the test more expensive.
  IF {index_differs} THEN
    IF {key_changed} THEN
      INSERT INTO {log} (op) VALUES ('X');
      {mark_dirty};
      RETURN NULL;
    END IF;
  END IF;
  IF TG_OP = 'INSERT' THEN
    INSERT INTO {log} (op, {keys}) SELECT 'I', {new_key} FROM n;
  ELSIF TG_OP = 'DELETE' THEN
    INSERT INTO {log} (op, {keys}) SELECT 'D', {old_key} FROM o;
  ELSE
    INSERT INTO {log} (op, {keys}) SELECT 'U', {new_key} FROM n;
  END IF;
  -- a statement without rows must not turn its transaction into a writing one
  IF NOT FOUND THEN RETURN NULL; END IF;
  {mark_dirty};
  IF TG_OP = 'UPDATE' THEN
    -- Old keys that no longer exist. EXCEPT instead of a join: a session keeps its first plan, and a join plan for a
    -- single row would compare every old key with every new one if the next statement changes a million rows.
    INSERT INTO {log} (op, {keys}) SELECT 'D', {gone_key}
      FROM (SELECT {old_image} FROM o EXCEPT SELECT {new_image} FROM n) x ({keys});
  END IF;
  RETURN NULL;
END $venus$

-- row_function --
CREATE OR REPLACE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, venus AS $venus$
BEGIN
  IF current_setting('venus.follows', true) = 'on' THEN RETURN NULL; END IF;
  IF TG_OP = 'TRUNCATE' THEN
    -- the triggers of partitions need not log a table that is truncated as a whole
    IF TG_WHEN = 'BEFORE' THEN
      INSERT INTO {log} (op) VALUES ('T');
      {mark_dirty};
      PERFORM set_config('{truncating}', 'on', true);
    ELSE
      PERFORM set_config('{truncating}', 'off', true);
    END IF;
    RETURN NULL;
  END IF;{full}
  -- The key is tested once for each table and client message: a test for each row would cost too much, and a transaction
  -- may alter the key between two of its statements. The index is tested first, as above.
  IF current_setting('{checked}', true) IS DISTINCT FROM TG_RELID::text || statement_timestamp() THEN
    {mark_dirty};
    IF {index_differs} THEN
      IF {key_changed} THEN INSERT INTO {log} (op) VALUES ('X'); RETURN NULL; END IF;{retyped}
    END IF;
    PERFORM set_config('{checked}', TG_RELID::text || statement_timestamp(), true);
  END IF;
  IF TG_OP = 'INSERT' THEN
    INSERT INTO {log} (op, {keys}) VALUES ('I', {new_key});
  ELSIF TG_OP = 'DELETE' THEN
    INSERT INTO {log} (op, {keys}) VALUES ('D', {old_key});
  ELSE
    IF NOT ({same_key}) THEN INSERT INTO {log} (op, {keys}) VALUES ('D', {old_key}); END IF;
    INSERT INTO {log} (op, {keys}) VALUES ('U', {new_key});
  END IF;
  RETURN NULL;
END $venus$

-- full --
-- A log at its limit gets one row for each transaction, by which capture knows that it missed changes.
  IF pg_relation_size('{log}') >= {bytes} THEN
    IF current_setting('{marked}', true) IS DISTINCT FROM 'full' AND set_config('{marked}', 'full', true) = 'full' THEN
      INSERT INTO {log} (op) VALUES ('F');
      INSERT INTO venus.dirty (table_id) VALUES ({table_id});
    END IF;
    RETURN NULL;
  END IF

-- retyped --
      -- Used until capture replaces this function: a session keeps its plans for the key's old type, which would fail the
      -- application's statement. The text of a value has no type.
      IF ({other_type}) THEN
        IF TG_OP <> 'INSERT' THEN INSERT INTO {log} (op, {keys}) VALUES ('D', {old_text}); END IF;
        IF TG_OP <> 'DELETE' THEN INSERT INTO {log} (op, {keys}) VALUES ('U', {new_text}); END IF;
        RETURN NULL;
      END IF

-- partition_function --
-- TRUNCATE of a single partition removes rows of the table without a row trigger, so their keys are logged first.
CREATE OR REPLACE FUNCTION {partition_function}() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, venus AS $venus$
BEGIN
  IF current_setting('venus.follows', true) = 'on' OR current_setting('{truncating}', true) = 'on' THEN
    RETURN NULL;
  END IF;{full}
  EXECUTE format({keys_of_partition}, TG_RELID::regclass);
  {mark_dirty};
  RETURN NULL;
END $venus$

-- keys_of_partition --
-- The statement that the function above executes for one partition.
INSERT INTO {log} (op, {keys}) SELECT 'D', {key} FROM ONLY %s x

-- idle_function --
-- Used after a change of the key: the application's statements succeed, and nothing is captured.
CREATE OR REPLACE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, venus AS $venus$
BEGIN
  RETURN NULL;
END $venus$

-- revoke --
REVOKE ALL ON FUNCTION {function}() FROM PUBLIC

-- present --
-- The triggers of VENUS in the server's own notation. A partition has its own copy of each row trigger, which can be
-- disabled alone. If a copy has another state, the states of all copies are returned as well. The definition of a trigger
-- that was dropped since the snapshot is NULL.
SELECT t.tgrelid, t.tgname, pg_get_triggerdef(t.oid),
       CASE WHEN c.states <> t.tgenabled::text THEN t.tgenabled::text || c.states ELSE t.tgenabled::text END
  FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid JOIN pg_namespace n ON n.oid = p.pronamespace
  LEFT JOIN (SELECT tgfoid, tgname, string_agg(DISTINCT tgenabled::text, '') AS states
               FROM pg_trigger WHERE tgparentid <> 0 GROUP BY tgfoid, tgname) c
    ON c.tgfoid = t.tgfoid AND c.tgname = t.tgname
 WHERE n.nspname = 'venus' AND NOT t.tgisinternal AND t.tgparentid = 0

-- functions --
-- A function without SECURITY DEFINER or with another search_path counts as altered, so its text is returned empty.
SELECT p.proname, CASE WHEN p.prosecdef AND 'search_path=pg_catalog, venus' = ANY (p.proconfig) THEN p.prosrc ELSE '' END
  FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
 WHERE n.nspname = 'venus'

-- logs --
-- The log tables with the types and collations of their key columns.
SELECT c.relname, array_agg(format_type(a.atttypid, a.atttypmod) ORDER BY a.attnum),
       array_agg(CASE WHEN a.attcollation <> 0 THEN quote_ident(v.nspname) || '.' || quote_ident(o.collname) ELSE '' END
                 ORDER BY a.attnum)
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
  JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND a.attname <> 'op' AND NOT a.attisdropped
  LEFT JOIN pg_collation o ON o.oid = a.attcollation
  LEFT JOIN pg_namespace v ON v.oid = o.collnamespace
 WHERE n.nspname = 'venus' AND c.relkind = 'r' AND c.relname ~ '^l_[0-9]+$'
 GROUP BY c.relname

-- others --
SELECT c.relname, has_table_privilege(c.oid, 'SELECT') FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname = 'venus' AND c.relkind = 'r' AND c.relname !~ '^l_[0-9]+$'

-- pipelines --
-- The targets of pipelines in this database to which VENUS may write. A target that was cut over is the application's.
SELECT group_name FROM venus.applied a WHERE {writes}

-- is_not_cut_over --
NOT EXISTS (SELECT FROM venus.cutover c WHERE c.group_name = a.group_name)

-- is_not_follower --
NOT EXISTS (SELECT FROM venus.side s WHERE s.business || '/' || s.name = a.group_name)

-- leaves_table --
-- The captured partitions. ATTACH and DETACH add and remove rows without firing a trigger.
CREATE TABLE venus.captured_leaf (table_id int NOT NULL, leaf oid NOT NULL, PRIMARY KEY (table_id, leaf))

-- leaves --
SELECT table_id, array_agg(leaf) FROM venus.captured_leaf GROUP BY table_id

-- leaf_joined --
INSERT INTO venus.captured_leaf (table_id, leaf) VALUES ({table_id}, {leaf}) ON CONFLICT DO NOTHING

-- leaf_left --
DELETE FROM venus.captured_leaf WHERE table_id = {table_id} AND leaf = {leaf}

-- leaves_left --
DELETE FROM venus.captured_leaf WHERE table_id = {table_id}

-- leaf_rows --
INSERT INTO {log} (op, {keys}) SELECT 'U', {key} FROM ONLY {leaf} x;
INSERT INTO venus.dirty (table_id) VALUES ({table_id})

-- identity_table --
-- The identity of the captured database, as JSON. A copy of the database must not be captured in its place.
CREATE TABLE venus.identity (id smallint PRIMARY KEY, facts text NOT NULL)

-- seen_table --
-- The stored marks of triggers and columns. A trigger that was disabled and enabled again looks unchanged without them.
CREATE TABLE venus.seen (relation oid NOT NULL, name text NOT NULL, mark text NOT NULL, PRIMARY KEY (relation, name))

-- seen --
SELECT relation, name, mark FROM venus.seen

-- seen_now --
-- The present marks: the row version of each trigger, partitions' copies included; and for a table its file, the row
-- versions of its columns, and the expressions of generated columns. The trigger that rejects writes is left out, because
-- a cut-over creates and drops it.
SELECT t.tgrelid, t.tgname::text, concat_ws(' ', t.tgfoid, t.xmin)
  FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid
 WHERE p.pronamespace = 'venus'::regnamespace AND p.proname <> 'reject_write'
   AND t.tgrelid = ANY (%(relations)s::oid[])
UNION ALL
SELECT c.oid, 'values', jsonb_build_object('file', c.relfilenode::text,
       'columns', coalesce((SELECT jsonb_object_agg(a.attnum, a.xmin::text) FROM pg_attribute a
                             WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped), '{}'),
       'expressions', coalesce((SELECT jsonb_object_agg(a.attnum, pg_get_expr(d.adbin, d.adrelid))
                                         -- NULL in a relation that was dropped since the snapshot: no other expression
                                         FILTER (WHERE pg_get_expr(d.adbin, d.adrelid) IS NOT NULL)
                                  FROM pg_attribute a
                                  JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
                                 WHERE a.attrelid = c.oid AND a.attgenerated <> '' AND NOT a.attisdropped), '{}'))::text
  FROM pg_class c WHERE c.oid = ANY (%(relations)s::oid[])

-- saw --
INSERT INTO venus.seen (relation, name, mark)
SELECT * FROM unnest(%(relations)s::oid[], %(names)s::text[], %(marks)s::text[])
ON CONFLICT (relation, name) DO UPDATE SET mark = EXCLUDED.mark

-- seen_others --
DELETE FROM venus.seen WHERE relation = ANY (%(relations)s::oid[])

-- seen_mended --
DELETE FROM venus.seen WHERE name ~ '^venus_[a-z]_{number}$'

-- seen_exists --
SELECT to_regclass('venus.seen') IS NOT NULL

-- seen_again --
UPDATE venus.seen s SET mark = concat_ws(' ', t.tgfoid, t.xmin)
  FROM pg_trigger t WHERE t.tgrelid = s.relation AND t.tgname = s.name AND s.name ~ '^venus_[a-z]_{number}$'
