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
SELECT constraint_name FROM information_schema.referential_constraints
WHERE constraint_schema = %(database)s AND table_name = %(name)s

-- has_rows --
SELECT EXISTS (SELECT 1 FROM {table})

-- count_rows --
SELECT count(*) FROM {table}

-- grants --
SHOW GRANTS
