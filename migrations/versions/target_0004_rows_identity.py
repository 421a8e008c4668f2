"""The identity of a target's rows, by the predicates of broker sets, beside its position (Minos 3).

A broker set with other predicates has other rows at the same offset; a target that moves there must detect that.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from venus.migrations import own_name, own_schema

revision = "target_0004"
down_revision = "target_0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column."""
    schema = own_schema()
    # JSON of venus/network/row_filters.py at the applied offset; NULL = not known yet.
    op.add_column(own_name("applied", schema=schema), sa.Column("rows_identity", sa.Text), schema=schema)


def downgrade() -> None:
    """Drop the column."""
    schema = own_schema()
    op.drop_column(own_name("applied", schema=schema), "rows_identity", schema=schema)
