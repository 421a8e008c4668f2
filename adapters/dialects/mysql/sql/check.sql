-- Queries of `venus check`. All of them only read; UPDATE and ALTER are proposals to the operator.

-- server --
SELECT version(), @@global.read_only, @@global.log_bin, @@global.binlog_format, @@global.log_bin_trust_function_creators,
       @@innodb_autoinc_lock_mode, current_user()

-- replica_threads --
-- Threads of MariaDB that apply another server's writes. Those of a Galera cluster have another name, and need no
-- triggers, because the log tables are replicated too.
SELECT count(*) FROM information_schema.processlist WHERE command IN ('Slave_SQL', 'Slave_worker')

-- replica_triggers --
SELECT @@global.slave_run_triggers_for_rbr

-- privileges --
-- Privileges of the account and of its current role. Global ones apply everywhere.
SELECT privilege_type FROM information_schema.user_privileges WHERE grantee IN ({grantees})
UNION
SELECT privilege_type FROM information_schema.schema_privileges
 WHERE grantee IN ({grantees}) AND {database} LIKE table_schema

-- zero_dates --
SELECT count(*) FROM (SELECT {column} AS d FROM {table} LIMIT {rows}) AS sample
 WHERE d IS NOT NULL AND (CAST(d AS CHAR) LIKE '%-00%' OR CAST(d AS CHAR) LIKE '0000-00-00%')

-- large_rows --
/*M!100100 SET STATEMENT max_statement_time = {seconds} FOR */
SELECT /*+ MAX_EXECUTION_TIME({seconds}000) */ count(*), coalesce(sum({lengths} > {bytes}), 0) FROM {table}

-- length --
coalesce(length({column}), 0)

-- other_spellings --
-- The number of rows whose parent is spelled differently, and an example.
SELECT count(*), coalesce(min(c.{column}), ''), coalesce(min(p.{referred}), '')
  FROM (SELECT * FROM {child} LIMIT {rows}) AS c JOIN {parent} AS p ON {match} WHERE {differ}

-- same_spelling --
UPDATE {child} AS c JOIN {parent} AS p ON {match} SET {assign} WHERE {differ};

-- record_id --
-- Proposal for a table without a key: a number that distinguishes equal rows. It rewrites the table.
ALTER TABLE {table} ADD COLUMN venus_record_id bigint unsigned NOT NULL AUTO_INCREMENT INVISIBLE PRIMARY KEY
