"""The tables of VENUS at a source: the state with which the upper adapter survives a crash (VENUS 3.1, 3.3).

The local transaction writes `checkpoint` and `batch`; `captured_table` is the registry of tables and their schema
versions; `heartbeat` is a row that VENUS changes itself, to measure lag while the application is idle. This revision
creates no log tables: the dialect creates one for each captured table.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from venus.migrations import own_name, own_schema

revision = "source_0001"
down_revision = None
branch_labels = ("source",)
depends_on = None

#: MySQL's plain BLOB ends at 64 KiB; other databases ignore the length.
WIRE = sa.LargeBinary(length=16_777_215)
#: Only a column declared INTEGER is SQLite's own row number; it has 64 bits even so.
NUMBER = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    """Create the tables, and the initial row of those that have exactly one."""
    _create_checkpoint()
    _create_batch()
    _create_captured_table()
    _create_heartbeat()


def downgrade() -> None:
    """Drop the tables."""
    schema = own_schema()
    for name in ("heartbeat", "captured_table", "batch", "checkpoint"):
        op.drop_table(own_name(name, schema=schema), schema=schema)


def _create_checkpoint() -> None:
    schema = own_schema()
    table = op.create_table(
        own_name("checkpoint", schema=schema),
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("next_sequence", sa.BigInteger, nullable=False),
        sa.Column("last_batch", sa.BigInteger, nullable=False),
        schema=schema,
    )
    op.bulk_insert(table, [{"id": 1, "epoch": 0, "next_sequence": 1, "last_batch": 0}])


def _create_batch() -> None:
    schema = own_schema()
    op.create_table(
        own_name("batch", schema=schema),
        sa.Column("batch_no", NUMBER, primary_key=True, autoincrement=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("first_sequence", sa.BigInteger, nullable=False),
        sa.Column("last_sequence", sa.BigInteger, nullable=False),
        # 16 hexadecimal digits: an unsigned 64-bit number fits no integer type that all databases have.
        sa.Column("digest", sa.String(16), nullable=False),
        schema=schema,
    )


def _create_captured_table() -> None:
    schema = own_schema()
    op.create_table(
        own_name("captured_table", schema=schema),
        sa.Column("table_id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("namespace", sa.String(128), nullable=False),
        sa.Column("name", sa.String(128), nullable=False),
        sa.Column("schema_wire", WIRE, nullable=False),  # a venus.wire.TableSchema
        sa.Column("fingerprint", sa.String(64), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("reason", sa.Text),
        sa.Column("fill_cursor", WIRE),  # NULL = at the start, because Oracle has no empty value
        sa.Column("fill_rows", sa.BigInteger, nullable=False),
        sa.Column("fill_estimate", sa.BigInteger, nullable=False),
        sa.Column("fill_done", sa.SmallInteger, nullable=False),  # 0 or 1: not every database has booleans
        sa.Column("sweep_from", sa.BigInteger, nullable=False),
        # The last consumed log row, for databases where a single writer at a time makes that exact; else 0.
        sa.Column("log_through", sa.BigInteger, nullable=False, server_default="0"),
        # The highest field number ever assigned to a column: numbers of dropped columns are not reused.
        sa.Column("number_max", sa.Integer, nullable=False, server_default="0"),
        sa.UniqueConstraint("namespace", "name", name="venus_captured_table_uk"),
        schema=schema,
    )


def _create_heartbeat() -> None:
    schema = own_schema()
    table = op.create_table(
        own_name("heartbeat", schema=schema),
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("beat_at", sa.BigInteger, nullable=False),  # Unix microseconds, the source's clock
        schema=schema,
    )
    op.bulk_insert(table, [{"id": 1, "beat_at": 0}])
