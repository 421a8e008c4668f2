"""The record of a cut-over, after which a target is the application's own and VENUS writes no row there (VENUS 3.4).

The certificate is stored with the data, because a file can be lost, and `--undo` compares with it.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from venus.migrations import own_name, own_schema

revision = "target_0002"
down_revision = "target_0001"
branch_labels = None
depends_on = None

MOMENT = sa.DateTime(timezone=True)


def upgrade() -> None:
    """Create the table."""
    schema = own_schema()
    op.create_table(
        own_name("cutover", schema=schema),
        sa.Column("group_name", sa.Text, primary_key=True),
        sa.Column("state", sa.Text, nullable=False),  # CUT = marked and being finished, or DONE
        sa.Column("sequence", sa.BigInteger, nullable=False),
        sa.Column("offset", sa.BigInteger, nullable=False),
        sa.Column("certificate", sa.Text, nullable=False),
        sa.Column("marked_at", MOMENT, nullable=False, server_default=sa.func.now()),
        sa.Column("done_at", MOMENT),
        schema=schema,
    )


def downgrade() -> None:
    """Drop the table."""
    schema = own_schema()
    op.drop_table(own_name("cutover", schema=schema), schema=schema)
