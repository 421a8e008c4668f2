"""The tables of VENUS at a target: its position, the state of each table, and refused rows (VENUS 3.4).

`applied` changes in the same transaction as the rows, which is why a replay has no second effect. Every row belongs
to a consumer group, `<business>/<target name>`: several targets may live in one database. PostgreSQL only.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from venus.migrations import own_name, own_schema

revision = "target_0001"
down_revision = None
branch_labels = ("target",)
depends_on = None

MOMENT = sa.DateTime(timezone=True)
#: Space that is left on the pages of rows that change with every cut, so that no index entry is written (HOT).
ROOM = "ALTER TABLE {table} SET (fillfactor = 50)"

#: Moves the applied offset, or fails: so only one transaction at a time applies, from exactly the expected offset.
ADVANCE = """
CREATE FUNCTION {schema}.advance(
    the_group text, expected bigint, the_control bigint, reached bigint, reached_epoch bigint, reached_sequence bigint,
    captured timestamptz, committed timestamptz, heartbeat timestamptz, rows_without_table bigint
) RETURNS void LANGUAGE plpgsql AS $body$
BEGIN
    UPDATE {schema}.applied a
    SET "offset" = reached, epoch = reached_epoch, last_sequence = reached_sequence,
        captured_at = coalesce(captured, a.captured_at), committed_at = coalesce(committed, a.committed_at),
        applied_at = clock_timestamp(), heartbeat_at = coalesce(heartbeat, a.heartbeat_at),
        rows_other = a.rows_other + rows_without_table
    WHERE a.group_name = the_group AND a."offset" = expected AND a.control = the_control;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the target is not where this process believes it to be' USING ERRCODE = 'VE001';
    END IF;
END
$body$
"""

OWN = ("load_manifest", "load_job", "held", "sweep", "quarantine", "target_schema", "target_table", "applied")


def upgrade() -> None:
    """Create the tables and the function."""
    _create_applied()
    _create_target_table()
    _create_target_schema()
    _create_quarantine()
    _create_sweep()
    _create_held()
    _create_load()


def downgrade() -> None:
    """Drop the tables and the function."""
    schema = own_schema()
    op.execute(f"DROP FUNCTION {schema}.advance")
    for name in OWN:
        op.drop_table(own_name(name, schema=schema), schema=schema)


def _create_applied() -> None:
    """Create the table of the applied offset of each consumer group."""
    schema = own_schema()
    op.create_table(
        own_name("applied", schema=schema),
        sa.Column("group_name", sa.Text, primary_key=True),
        sa.Column("business", sa.Text, nullable=False),
        sa.Column("offset", sa.BigInteger, nullable=False),  # the first offset not applied
        sa.Column("epoch", sa.BigInteger, nullable=False),  # the epoch of the last applied increment
        sa.Column("last_sequence", sa.BigInteger, nullable=False),
        sa.Column("captured_at", MOMENT),
        sa.Column("committed_at", MOMENT),
        sa.Column("applied_at", MOMENT),
        sa.Column("heartbeat_at", MOMENT),
        sa.Column("paused", sa.Boolean, nullable=False, server_default=sa.false()),
        # Incremented by every command that changes a state, so that the loop sees that before its next transaction.
        sa.Column("control", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("note", sa.Text, nullable=False, server_default=""),
        sa.Column("counted_from", sa.BigInteger, nullable=False),  # offsets are counted from here
        # Offsets without a table: heartbeats, and the one offset that an empty batch takes.
        sa.Column("rows_other", sa.BigInteger, nullable=False, server_default="0"),
        # Changes that were unaccounted for until a resync of all tables brought their outcome.
        sa.Column("rows_repaired", sa.BigInteger, nullable=False, server_default="0"),
        schema=schema,
    )
    op.execute(ROOM.format(table=f"{schema}.applied"))
    op.execute(ADVANCE.format(schema=schema))


def _create_target_table() -> None:
    schema = own_schema()
    op.create_table(
        own_name("target_table", schema=schema),
        sa.Column("group_name", sa.Text, primary_key=True),
        sa.Column("table_id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("schema_version", sa.Integer, nullable=False),
        sa.Column("namespace", sa.Text, nullable=False),  # at the target
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("source_name", sa.Text, nullable=False),  # namespace.table at the source
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("held_from", sa.BigInteger),  # the first offset not applied to this table
        sa.Column("reason", sa.Text, nullable=False, server_default=""),
        sa.Column("rows_applied", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("rows_quarantined", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("rows_skipped", sa.BigInteger, nullable=False, server_default="0"),
        # Changes that wait at the broker because the table is held; a catch-up moves each to a count above.
        sa.Column("rows_held", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("counted_from", sa.BigInteger, nullable=False),  # the counters are valid for offsets from here
        sa.Column("created", sa.Boolean, nullable=False),  # whether VENUS created the table; else it existed before
        schema=schema,
    )
    op.execute(ROOM.format(table=f"{schema}.target_table"))


def _create_target_schema() -> None:
    schema = own_schema()
    op.create_table(
        own_name("target_schema", schema=schema),
        sa.Column("group_name", sa.Text, primary_key=True),
        sa.Column("table_id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("version", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("schema_wire", sa.LargeBinary, nullable=False),  # a venus.wire.TableSchema
        schema=schema,
    )


def _create_quarantine() -> None:
    schema = own_schema()
    op.create_table(
        own_name("quarantine", schema=schema),
        sa.Column("id", sa.BigInteger, sa.Identity(), primary_key=True),
        sa.Column("group_name", sa.Text, nullable=False),
        sa.Column("business", sa.Text, nullable=False),
        sa.Column("table_id", sa.Integer, nullable=False),
        sa.Column("schema_version", sa.Integer, nullable=False),
        sa.Column("record_id", sa.LargeBinary, nullable=False),
        sa.Column("key", sa.Text, nullable=False),  # for display
        sa.Column("offset", sa.BigInteger, nullable=False),
        sa.Column("sequence", sa.BigInteger, nullable=False),
        sa.Column("sqlstate", sa.Text, nullable=False),  # empty = parked: it waits for an earlier change of its key
        sa.Column("message", sa.Text, nullable=False),
        sa.Column("row_message", sa.LargeBinary, nullable=False),
        sa.Column("is_deleted", sa.Boolean, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False, server_default=""),
        sa.Column("created_at", MOMENT, nullable=False, server_default=sa.func.now()),
        sa.Column("decided_at", MOMENT),
        # -1 = refused during the full load. A change is recorded once, however often it is read again.
        sa.UniqueConstraint("group_name", "table_id", "offset", "record_id", name="quarantine_change_uk"),
        schema=schema,
    )


def _create_sweep() -> None:
    """Create the list of the tables whose changed keys are recorded, for a sweep or a resync."""
    schema = own_schema()
    op.create_table(
        own_name("sweep", schema=schema),
        sa.Column("group_name", sa.Text, primary_key=True),
        sa.Column("table_id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("purpose", sa.Text, primary_key=True),  # sweep = one of the source; resync = one of this target
        sa.Column("from_offset", sa.BigInteger, nullable=False),
        schema=schema,
    )


def _create_held() -> None:
    """Create the table of offsets of held changes during a resync; the resync brings the changes before its cut."""
    schema = own_schema()
    op.create_table(
        own_name("held", schema=schema),
        sa.Column("group_name", sa.Text, primary_key=True),
        sa.Column("table_id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("offset", sa.BigInteger, primary_key=True, autoincrement=False),  # the offset of the first change
        sa.Column("rows", sa.BigInteger, nullable=False),
        schema=schema,
    )


def _create_load() -> None:
    """Create the tables of a full load: its plan, and the splits that are loaded."""
    schema = own_schema()
    op.create_table(
        own_name("load_job", schema=schema),
        sa.Column("group_name", sa.Text, primary_key=True),
        sa.Column("load_id", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("snapshot", sa.LargeBinary, nullable=False),  # a venus.wire.Snapshot: the plan
        sa.Column("started_at", MOMENT, nullable=False, server_default=sa.func.now()),
        sa.Column("ended_at", MOMENT),
        schema=schema,
    )
    op.create_table(
        own_name("load_manifest", schema=schema),
        sa.Column("load_id", sa.Text, primary_key=True),
        sa.Column("split", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("table_id", sa.Integer, nullable=False),
        sa.Column("rows", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("parked", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("digest", sa.Text, nullable=False, server_default=""),
        sa.Column("attempt", sa.Text, nullable=False),
        sa.Column("done_at", MOMENT, nullable=False, server_default=sa.func.now()),
        schema=schema,
    )
