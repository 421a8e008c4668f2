-- VENUS's own tables at a SQLite target. Every statement may be repeated. {own} is the prefix of their names; {strict} is
-- empty in a file of an application, whose SQLite may not know it. Times are microseconds since 1970.

-- applied --
CREATE TABLE IF NOT EXISTS {own}applied (
    group_name TEXT NOT NULL PRIMARY KEY, business TEXT NOT NULL,
    "offset" INTEGER NOT NULL, epoch INTEGER NOT NULL, last_sequence INTEGER NOT NULL,
    captured_at INTEGER, committed_at INTEGER, applied_at INTEGER, heartbeat_at INTEGER,
    paused INTEGER NOT NULL DEFAULT 0, control INTEGER NOT NULL DEFAULT 0, note TEXT NOT NULL,
    counted_from INTEGER NOT NULL, rows_other INTEGER NOT NULL DEFAULT 0, rows_repaired INTEGER NOT NULL DEFAULT 0,
    rows_identity TEXT, compared TEXT
) {strict}

-- target_table --
CREATE TABLE IF NOT EXISTS {own}target_table (
    group_name TEXT NOT NULL, table_id INTEGER NOT NULL, schema_version INTEGER NOT NULL,
    namespace TEXT NOT NULL, name TEXT NOT NULL, source_name TEXT NOT NULL,
    state TEXT NOT NULL, held_from INTEGER, reason TEXT NOT NULL,
    rows_applied INTEGER NOT NULL DEFAULT 0, rows_quarantined INTEGER NOT NULL DEFAULT 0,
    rows_skipped INTEGER NOT NULL DEFAULT 0, rows_held INTEGER NOT NULL DEFAULT 0,
    counted_from INTEGER NOT NULL, created INTEGER NOT NULL,
    predicate TEXT NOT NULL, predicate_before TEXT,
    rows_brought INTEGER NOT NULL DEFAULT 0, rows_removed INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (group_name, table_id)
) {strict}

-- target_schema --
CREATE TABLE IF NOT EXISTS {own}target_schema (
    group_name TEXT NOT NULL, table_id INTEGER NOT NULL, version INTEGER NOT NULL, schema_wire BLOB NOT NULL,
    PRIMARY KEY (group_name, table_id, version)
) {strict}

-- quarantine --
CREATE TABLE IF NOT EXISTS {own}quarantine (
    id INTEGER PRIMARY KEY, group_name TEXT NOT NULL, business TEXT NOT NULL,
    table_id INTEGER NOT NULL, schema_version INTEGER NOT NULL, record_id BLOB NOT NULL,
    "key" TEXT NOT NULL, "offset" INTEGER NOT NULL, sequence INTEGER NOT NULL, sqlstate TEXT NOT NULL,
    message TEXT NOT NULL, row_message BLOB NOT NULL, is_deleted INTEGER NOT NULL, state TEXT NOT NULL,
    reason TEXT NOT NULL, created_at INTEGER NOT NULL, decided_at INTEGER,
    UNIQUE (group_name, table_id, "offset", record_id)
) {strict}

-- sweep --
CREATE TABLE IF NOT EXISTS {own}sweep (
    group_name TEXT NOT NULL, table_id INTEGER NOT NULL, purpose TEXT NOT NULL, from_offset INTEGER NOT NULL,
    PRIMARY KEY (group_name, table_id, purpose)
) {strict}

-- held --
CREATE TABLE IF NOT EXISTS {own}held (
    group_name TEXT NOT NULL, table_id INTEGER NOT NULL, "offset" INTEGER NOT NULL, "rows" INTEGER NOT NULL,
    PRIMARY KEY (group_name, table_id, "offset")
) {strict}

-- load_job --
CREATE TABLE IF NOT EXISTS {own}load_job (
    group_name TEXT NOT NULL PRIMARY KEY, load_id TEXT NOT NULL, state TEXT NOT NULL, snapshot BLOB NOT NULL,
    started_at INTEGER NOT NULL, ended_at INTEGER
) {strict}

-- load_manifest --
CREATE TABLE IF NOT EXISTS {own}load_manifest (
    load_id TEXT NOT NULL, split INTEGER NOT NULL, table_id INTEGER NOT NULL, "rows" INTEGER NOT NULL DEFAULT 0,
    parked INTEGER NOT NULL DEFAULT 0, outside INTEGER NOT NULL DEFAULT 0, digest TEXT NOT NULL DEFAULT '',
    attempt TEXT NOT NULL, done_at INTEGER,
    PRIMARY KEY (load_id, split)
) {strict}
