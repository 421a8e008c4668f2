"""The outcome of the last `venus verify` of a target, beside its position, so that another process can show it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from venus.migrations import own_name, own_schema

revision = "target_0005"
down_revision = "target_0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column."""
    schema = own_schema()
    # JSON of venus/rpc/conditions.py; NULL = the target was never compared.
    op.add_column(own_name("applied", schema=schema), sa.Column("compared", sa.Text), schema=schema)


def downgrade() -> None:
    """Drop the column."""
    schema = own_schema()
    op.drop_column(own_name("applied", schema=schema), "compared", schema=schema)
