-- Statements of `venus prove` on its scratch database.

-- facts --
SELECT version(), @@version_comment, @@version_compile_machine, @@character_set_server, @@collation_server,
       @@character_set_database, @@collation_database, @@global.sql_mode, @@global.{isolation}, @@lower_case_table_names,
       @@innodb_page_size, @@global.innodb_flush_log_at_trx_commit, @@global.innodb_autoinc_lock_mode, @@global.log_bin,
       @@global.binlog_format, CASE WHEN @@global.read_only THEN 'read only' ELSE 'writable' END

-- objects --
SELECT lower(table_type), table_name FROM information_schema.tables WHERE table_schema = {database}
UNION ALL
SELECT lower(routine_type), routine_name FROM information_schema.routines WHERE routine_schema = {database}
UNION ALL
SELECT 'event', event_name FROM information_schema.events WHERE event_schema = {database}
ORDER BY 1, 2

-- triggers --
SELECT trigger_name, event_manipulation, event_object_table, action_timing, action_statement, sql_mode
  FROM information_schema.triggers WHERE trigger_schema = {database} ORDER BY trigger_name

-- drop --
DROP {kind} {name}

-- explain --
EXPLAIN {query}
