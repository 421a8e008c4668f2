"""Predicates, which select the rows of a target, and the progress of a changed predicate (SREM 2).

The target stores its predicate's text, so it knows which rows it has even after the configuration has changed.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from venus.migrations import own_name, own_schema

revision = "target_0003"
down_revision = "target_0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns."""
    schema = own_schema()
    if op.get_context().dialect.name == "postgresql":  # all altered tables, in the order of own.sql
        op.execute(f"LOCK TABLE {schema}.applied, {schema}.load_manifest, {schema}.target_table")
    table = own_name("target_table", schema=schema)
    # Changes are judged by it; empty = every row.
    op.add_column(table, sa.Column("predicate", sa.Text, nullable=False, server_default=""), schema=schema)
    # The previous predicate, until rows that now belong here have been added, and others removed.
    op.add_column(table, sa.Column("predicate_before", sa.Text), schema=schema)
    for name in ("rows_brought", "rows_removed"):  # by the last change of the predicate
        op.add_column(table, sa.Column(name, sa.BigInteger, nullable=False, server_default="0"), schema=schema)
    manifest = own_name("load_manifest", schema=schema)
    op.add_column(manifest, sa.Column("outside", sa.BigInteger, nullable=False, server_default="0"), schema=schema)


def downgrade() -> None:
    """Drop the columns."""
    schema = own_schema()
    op.drop_column(own_name("load_manifest", schema=schema), "outside", schema=schema)
    for name in ("rows_removed", "rows_brought", "predicate_before", "predicate"):
        op.drop_column(own_name("target_table", schema=schema), name, schema=schema)
