-- Queries of information_schema about one database. All of them only read.

-- tables --
-- create_time: when an ALTER TABLE last wrote the definition; in MySQL perhaps only one that rebuilds the table. Its
-- resolution is one second, so two recent definitions may have the same time.
SELECT t.table_name, t.table_type, coalesce(t.engine, ''), coalesce(t.table_comment, ''), coalesce(t.table_rows, 0),
       coalesce(t.create_time, ''), coalesce(t.create_time > now() - INTERVAL 3 SECOND, 1)
  FROM information_schema.tables t
 WHERE t.table_schema = {database} AND t.table_type IN ('BASE TABLE', 'SYSTEM VERSIONED') ORDER BY t.table_name

-- columns --
SELECT c.table_name, c.column_name, c.data_type, c.column_type, coalesce(c.character_set_name, ''),
       coalesce(c.collation_name, ''), coalesce(c.character_maximum_length, 0), coalesce(c.numeric_precision, 0),
       coalesce(c.numeric_scale, 0), coalesce(c.datetime_precision, 0), c.is_nullable = 'YES', c.extra,
       c.column_default, coalesce(c.column_comment, ''), coalesce(c.generation_expression, '')
  FROM information_schema.columns c WHERE c.table_schema = {database} {only} ORDER BY c.table_name, c.ordinal_position

-- indexes --
SELECT s.table_name, s.index_name, s.non_unique = 0, s.column_name, s.sub_part IS NOT NULL, s.index_type
  FROM information_schema.statistics s
 WHERE s.table_schema = {database} {only} ORDER BY s.table_name, s.index_name <> 'PRIMARY', s.index_name, s.seq_in_index

-- foreign_keys --
-- Includes foreign keys to parents in other databases, which can cascade into this one. MariaDB hides the actions of a
-- key from a user with privileges on single tables.
SELECT k.constraint_name, k.table_schema, k.table_name, k.referenced_table_schema, k.referenced_table_name,
       coalesce(r.delete_rule, ''), coalesce(r.update_rule, ''), k.column_name, k.referenced_column_name
  FROM information_schema.key_column_usage k
  LEFT JOIN information_schema.referential_constraints r
    ON r.constraint_schema = k.constraint_schema AND r.constraint_name = k.constraint_name AND r.table_name = k.table_name
 WHERE k.table_schema = {database} AND k.referenced_table_name IS NOT NULL
 ORDER BY k.table_name, k.constraint_name, k.ordinal_position

-- json_checks --
-- MariaDB's JSON is a LONGTEXT with this check.
SELECT table_name, constraint_name FROM information_schema.check_constraints
 WHERE constraint_schema = {database} AND level = 'Column' AND check_clause = concat('json_valid(`', constraint_name, '`)')

-- objects --
-- Candidates for VENUS's own objects: tables with their comments, and triggers.
SELECT 'table', table_name, coalesce(table_comment, ''), '', '', '' FROM information_schema.tables
 WHERE table_schema = {database} AND table_name LIKE 'venus\_%'
UNION ALL
SELECT 'trigger', trigger_name, action_statement, event_object_table, action_timing, event_manipulation
  FROM information_schema.triggers WHERE trigger_schema = {database} AND trigger_name LIKE 'venus\_%'

-- definition --
SHOW CREATE TABLE {table}

-- encoded --
-- InnoDB's encoding of a name.
SELECT CONVERT(CONVERT({name} USING filename) USING utf8)

-- marks_mariadb --
SELECT name, table_id FROM information_schema.innodb_sys_tables WHERE name LIKE {like}

-- marks_mysql --
SELECT name, table_id FROM information_schema.innodb_tables WHERE name LIKE {like}
