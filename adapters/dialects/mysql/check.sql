-- What `venus check` asks. Everything here only reads.

-- server --
SELECT version(), @@global.read_only, @@global.log_bin, @@global.binlog_format, @@global.log_bin_trust_function_creators,
       @@innodb_autoinc_lock_mode, current_user()

-- replica_threads --
-- Of MariaDB: those that write what another server has written. A Galera cluster's have another name, and need no
-- triggers: the log tables are replicated too.
SELECT count(*) FROM information_schema.processlist WHERE command IN ('Slave_SQL', 'Slave_worker')

-- replica_triggers --
SELECT @@global.slave_run_triggers_for_rbr

-- privileges --
-- Of the account and of the role it has taken; global ones count everywhere.
SELECT privilege_type FROM information_schema.user_privileges WHERE grantee IN ({grantees})
UNION
SELECT privilege_type FROM information_schema.schema_privileges
 WHERE grantee IN ({grantees}) AND {database} LIKE table_schema

-- zero_dates --
SELECT count(*) FROM (SELECT {column} AS d FROM {table} LIMIT {rows}) AS sample
 WHERE d IS NOT NULL AND (CAST(d AS CHAR) LIKE '%-00%' OR CAST(d AS CHAR) LIKE '0000-00-00%')

-- other_spellings --
-- Rows whose parent has another spelling than they have themselves, and the first of them.
SELECT count(*), coalesce(min(c.{column}), ''), coalesce(min(p.{referred}), '')
  FROM (SELECT * FROM {child} LIMIT {rows}) AS c JOIN {parent} AS p ON {match} WHERE {differ}

-- same_spelling --
UPDATE {child} AS c JOIN {parent} AS p ON {match} SET {assign} WHERE {differ};

-- record_id --
-- For a table without a key: a number that tells equal rows apart. It rewrites the table.
ALTER TABLE {table} ADD COLUMN venus_record_id bigint unsigned NOT NULL AUTO_INCREMENT INVISIBLE PRIMARY KEY
