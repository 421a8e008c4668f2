-- Structure of a MariaDB or MySQL table and the other objects of the database. All queries only read.

-- indexes --
-- {expression}: MySQL's column with the expression of an index. MariaDB has no such indexes.
SELECT s.table_name, s.index_name, s.non_unique = 0, s.column_name, coalesce(s.sub_part, 0),
       coalesce(s.collation, 'A') = 'D', s.index_type, {expression}
  FROM information_schema.statistics s
 WHERE s.table_schema = {database} AND s.index_name <> 'PRIMARY' ORDER BY s.table_name, s.index_name, s.seq_in_index

-- checks_mariadb --
SELECT c.table_name, c.constraint_name, c.check_clause, c.level = 'Column', 1 FROM information_schema.check_constraints c
 WHERE c.constraint_schema = {database} ORDER BY c.table_name, c.constraint_name

-- checks_mysql --
SELECT t.table_name, t.constraint_name, c.check_clause, 0, t.enforced = 'YES'
  FROM information_schema.table_constraints t
  JOIN information_schema.check_constraints c
    ON c.constraint_schema = t.constraint_schema AND c.constraint_name = t.constraint_name
 WHERE t.table_schema = {database} AND t.constraint_type = 'CHECK'
 ORDER BY t.table_name, t.constraint_name

-- fresh_statistics --
-- MySQL 8 caches the counters for a day. MariaDB neither has nor needs the setting.
SET SESSION information_schema_stats_expiry = 0

-- numberings --
SELECT t.table_name, c.column_name, t.auto_increment
  FROM information_schema.tables t
  JOIN information_schema.columns c ON c.table_schema = t.table_schema AND c.table_name = t.table_name
 WHERE t.table_schema = {database} AND t.auto_increment IS NOT NULL AND c.extra LIKE '%auto_increment%'
 ORDER BY t.table_name

-- drawn --
-- The columns that MariaDB numbers from a sequence; several columns may share a sequence.
SELECT c.table_name, c.column_name, c.column_default FROM information_schema.columns c
 WHERE c.table_schema = {database} AND c.column_default LIKE 'nextval(%' ORDER BY c.table_name, c.column_name

-- sequences --
SELECT t.table_name FROM information_schema.tables t
 WHERE t.table_schema = {database} AND t.table_type = 'SEQUENCE' ORDER BY t.table_name

-- sequence --
-- Cached numbers count as used.
SELECT next_not_cached_value, increment, minimum_value, maximum_value, cycle_option FROM {sequence}

-- others --
SELECT 'view', table_name FROM information_schema.views WHERE table_schema = {database}
UNION ALL
SELECT lower(routine_type), routine_name FROM information_schema.routines WHERE routine_schema = {database}
UNION ALL
SELECT 'trigger', trigger_name FROM information_schema.triggers
 WHERE trigger_schema = {database} AND trigger_name NOT LIKE 'venus\_%'
UNION ALL
SELECT 'event', event_name FROM information_schema.events
 WHERE event_schema = {database} AND (event_name <> 'venus_valve' OR event_comment NOT LIKE 'VENUS %')
ORDER BY 1, 2
