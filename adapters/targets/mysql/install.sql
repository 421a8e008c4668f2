-- VENUS's own tables at a MariaDB or MySQL target. Every statement may be repeated. {own} is the prefix of their names.

-- applied --
CREATE TABLE IF NOT EXISTS {own}applied (
    group_name varchar(255) NOT NULL PRIMARY KEY, business varchar(255) NOT NULL,
    `offset` bigint NOT NULL, epoch bigint NOT NULL, last_sequence bigint NOT NULL,
    captured_at datetime(6), committed_at datetime(6), applied_at datetime(6), heartbeat_at datetime(6),
    paused boolean NOT NULL DEFAULT 0, control bigint NOT NULL DEFAULT 0, note longtext NOT NULL,
    counted_from bigint NOT NULL, rows_other bigint NOT NULL DEFAULT 0, rows_repaired bigint NOT NULL DEFAULT 0,
    rows_identity longtext, compared longtext
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin ROW_FORMAT = DYNAMIC

-- target_table --
CREATE TABLE IF NOT EXISTS {own}target_table (
    group_name varchar(255) NOT NULL, table_id int NOT NULL, schema_version int NOT NULL,
    namespace varchar(255) NOT NULL, name varchar(255) NOT NULL, source_name varchar(1000) NOT NULL,
    state varchar(20) NOT NULL, held_from bigint, reason longtext NOT NULL,
    rows_applied bigint NOT NULL DEFAULT 0, rows_quarantined bigint NOT NULL DEFAULT 0,
    rows_skipped bigint NOT NULL DEFAULT 0, rows_held bigint NOT NULL DEFAULT 0,
    counted_from bigint NOT NULL, created boolean NOT NULL,
    predicate longtext NOT NULL, predicate_before longtext,
    rows_brought bigint NOT NULL DEFAULT 0, rows_removed bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (group_name, table_id)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin ROW_FORMAT = DYNAMIC

-- target_schema --
CREATE TABLE IF NOT EXISTS {own}target_schema (
    group_name varchar(255) NOT NULL, table_id int NOT NULL, version int NOT NULL, schema_wire longblob NOT NULL,
    PRIMARY KEY (group_name, table_id, version)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin ROW_FORMAT = DYNAMIC

-- quarantine --
CREATE TABLE IF NOT EXISTS {own}quarantine (
    id bigint NOT NULL AUTO_INCREMENT PRIMARY KEY, group_name varchar(255) NOT NULL, business varchar(255) NOT NULL,
    table_id int NOT NULL, schema_version int NOT NULL, record_id longblob NOT NULL, record_hash binary(32) NOT NULL,
    `key` longtext NOT NULL, `offset` bigint NOT NULL, sequence bigint NOT NULL, `sqlstate` varchar(20) NOT NULL,
    message longtext NOT NULL, row_message longblob NOT NULL, is_deleted boolean NOT NULL, state varchar(20) NOT NULL,
    reason longtext NOT NULL, created_at datetime(6) NOT NULL DEFAULT current_timestamp(6), decided_at datetime(6),
    UNIQUE KEY quarantine_change_uk (group_name, table_id, `offset`, record_hash)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin ROW_FORMAT = DYNAMIC

-- sweep --
CREATE TABLE IF NOT EXISTS {own}sweep (
    group_name varchar(255) NOT NULL, table_id int NOT NULL, purpose varchar(20) NOT NULL, from_offset bigint NOT NULL,
    PRIMARY KEY (group_name, table_id, purpose)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin ROW_FORMAT = DYNAMIC

-- held --
CREATE TABLE IF NOT EXISTS {own}held (
    group_name varchar(255) NOT NULL, table_id int NOT NULL, `offset` bigint NOT NULL, `rows` bigint NOT NULL,
    PRIMARY KEY (group_name, table_id, `offset`)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin ROW_FORMAT = DYNAMIC

-- load_job --
CREATE TABLE IF NOT EXISTS {own}load_job (
    group_name varchar(255) NOT NULL PRIMARY KEY, load_id varchar(64) NOT NULL, state varchar(20) NOT NULL,
    snapshot longblob NOT NULL, started_at datetime(6) NOT NULL DEFAULT current_timestamp(6), ended_at datetime(6)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin ROW_FORMAT = DYNAMIC

-- load_manifest --
CREATE TABLE IF NOT EXISTS {own}load_manifest (
    load_id varchar(64) NOT NULL, split int NOT NULL, table_id int NOT NULL, `rows` bigint NOT NULL DEFAULT 0,
    parked bigint NOT NULL DEFAULT 0, outside bigint NOT NULL DEFAULT 0, digest varchar(64) NOT NULL DEFAULT '',
    attempt varchar(255) NOT NULL, done_at datetime(6) NOT NULL DEFAULT current_timestamp(6),
    PRIMARY KEY (load_id, split)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin ROW_FORMAT = DYNAMIC

-- cutover --
CREATE TABLE IF NOT EXISTS {own}cutover (
    group_name varchar(255) NOT NULL PRIMARY KEY, state varchar(20) NOT NULL, sequence bigint NOT NULL,
    `offset` bigint NOT NULL, certificate longtext NOT NULL,
    marked_at datetime(6) NOT NULL DEFAULT current_timestamp(6), done_at datetime(6)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin ROW_FORMAT = DYNAMIC

-- intent --
-- Objects that VENUS is about to create. DDL commits at once, so a table may come from an interrupted attempt.
CREATE TABLE IF NOT EXISTS {own}intent (
    group_name varchar(255) NOT NULL, table_id int NOT NULL, name varchar(255) NOT NULL,
    PRIMARY KEY (group_name, table_id, name)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin ROW_FORMAT = DYNAMIC
