-- Queries of the dictionary of a MariaDB or MySQL target.

-- server --
SELECT version(), @@version_comment, @@lower_case_table_names, @@default_storage_engine,
    @@log_bin, @@global.binlog_format, @@innodb_page_size, @@read_only

-- database --
SELECT default_character_set_name FROM information_schema.schemata WHERE schema_name = %(database)s

-- installed --
SELECT count(*) FROM information_schema.tables WHERE table_schema = database() AND table_name = '{own}intent'

-- table --
SELECT table_type, coalesce(engine, '') FROM information_schema.tables
WHERE table_schema = %(database)s AND table_name = %(name)s

-- columns --
SELECT column_name, column_type, is_nullable = 'NO', coalesce(character_set_name, ''), coalesce(collation_name, ''),
    column_default IS NOT NULL OR extra LIKE '%%auto_increment%%', extra LIKE '%%GENERATED%%'
FROM information_schema.columns WHERE table_schema = %(database)s AND table_name = %(name)s ORDER BY ordinal_position

-- unique_keys --
SELECT index_name, column_name FROM information_schema.statistics
WHERE table_schema = %(database)s AND table_name = %(name)s AND non_unique = 0 AND sub_part IS NULL
ORDER BY index_name, seq_in_index

-- indexes --
SELECT DISTINCT index_name FROM information_schema.statistics
WHERE table_schema = %(database)s AND table_name = %(name)s

-- triggers --
SELECT trigger_name FROM information_schema.triggers
WHERE event_object_schema = %(database)s AND event_object_table = %(name)s

-- foreign_keys --
SELECT constraint_name, table_name, referenced_table_schema, referenced_table_name, column_name, referenced_column_name
FROM information_schema.key_column_usage
WHERE table_schema = database() AND table_name IN %(tables)s AND referenced_table_name IS NOT NULL
ORDER BY table_name, constraint_name, ordinal_position

-- orphans --
-- Rows that refer to no parent. VENUS applies with foreign keys disabled, and the server never checks those rows.
SELECT count(*), coalesce(min(concat_ws(', ', {child_columns})), '') FROM {child} c
WHERE {all_set} AND NOT EXISTS (SELECT 1 FROM {parent} p WHERE {match})

-- waits_mariadb --
-- The locks that the session waits for which holds the lock of this target (own.sql, try_lock), with their holders. A
-- lock of a table's definition shows no holder, so the sessions with an open transaction in this database count.
SELECT replace(l.lock_table, '`', ''), b.trx_mysql_thread_id, coalesce(p.user, ''), coalesce(p.host, ''),
    coalesce(p.command, ''), coalesce(p.info, ''), coalesce(b.trx_started, '')
FROM information_schema.innodb_lock_waits w
    JOIN information_schema.innodb_trx r ON r.trx_id = w.requesting_trx_id
    JOIN information_schema.innodb_trx b ON b.trx_id = w.blocking_trx_id
    JOIN information_schema.innodb_locks l ON l.lock_id = w.requested_lock_id
    LEFT JOIN information_schema.processlist p ON p.id = b.trx_mysql_thread_id
WHERE r.trx_mysql_thread_id = IS_USED_LOCK(concat('venus ', md5(concat(database(), '/', %(lock)s))))
UNION ALL
SELECT '', p.id, coalesce(p.user, ''), coalesce(p.host, ''), coalesce(p.command, ''), coalesce(p.info, ''), t.trx_started
FROM information_schema.processlist w
    JOIN information_schema.processlist p ON p.db = database() AND p.id <> w.id
    JOIN information_schema.innodb_trx t ON t.trx_mysql_thread_id = p.id
WHERE w.id = IS_USED_LOCK(concat('venus ', md5(concat(database(), '/', %(lock)s))))
    AND w.state LIKE 'Waiting for table metadata lock%%'

-- waits_mysql --
SELECT replace(w.locked_table, '`', ''), w.blocking_pid, coalesce(p.user, ''), coalesce(p.host, ''),
    coalesce(p.command, ''), coalesce(p.info, ''), coalesce(w.blocking_trx_started, '')
FROM sys.innodb_lock_waits w LEFT JOIN information_schema.processlist p ON p.id = w.blocking_pid
WHERE w.waiting_pid = IS_USED_LOCK(concat('venus ', md5(concat(database(), '/', %(lock)s))))

-- has_rows --
SELECT EXISTS (SELECT 1 FROM {table})

-- grants --
SHOW GRANTS
