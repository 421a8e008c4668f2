-- Queries of `venus assess` at a MariaDB or MySQL server. All of them only read.

-- sizes --
-- InnoDB estimates the rows from a few pages. MySQL caches these figures for up to a day.
SELECT t.table_name, coalesce(t.table_rows, 0), coalesce(t.data_length, 0), coalesce(t.index_length, 0)
  FROM information_schema.tables t WHERE t.table_schema = {database} AND t.table_type IN ('BASE TABLE', 'SYSTEM VERSIONED')

-- server --
SELECT version(), @@global.performance_schema

-- uptime --
SHOW GLOBAL STATUS LIKE 'Uptime'

-- counted_by_performance_schema --
SELECT object_name, count_insert + count_update + count_delete
  FROM performance_schema.table_io_waits_summary_by_table WHERE object_schema = {database} AND object_type = 'TABLE'

-- counted_by_userstat --
SELECT table_name, rows_changed FROM information_schema.table_statistics WHERE table_schema = {database}

-- userstat --
SELECT variable_value FROM information_schema.global_variables WHERE variable_name = 'USERSTAT'

-- count --
SELECT count(*) FROM {table}

-- sample --
SELECT * FROM {table} LIMIT {rows}

-- largest --
SELECT {lengths} FROM {rows} t

-- some_rows --
(SELECT {columns} FROM {table} LIMIT {rows})

-- database --
SELECT @@version_comment, CASE @@global.read_only WHEN 0 THEN 'writable' ELSE 'read-only (a replica?)' END,
       concat(@@character_set_database, ', collation ', @@collation_database)

-- redo --
SHOW GLOBAL STATUS LIKE 'Innodb_os_log_written'

-- table_triggers --
SELECT event_object_table, concat('trigger ', trigger_name, ': ', lower(action_timing), ' ', lower(event_manipulation))
  FROM information_schema.triggers
 WHERE event_object_schema = {database} AND trigger_name NOT LIKE 'venus\_%'
 ORDER BY event_object_table, trigger_name

-- code --
SELECT lower(routine_type), sum(length(routine_definition) - length(replace(routine_definition, char(10), '')) + 1),
       sum(routine_definition IS NULL)
  FROM information_schema.routines WHERE routine_schema = {database} GROUP BY lower(routine_type) ORDER BY 1
