"""Entry point of alembic for every command; `venus.migrations.run` passes its parameters in the attributes.

Always offline: revisions are turned into statements, which `run` then shows or executes. So the statements that a DBA
reads in a dry run are exactly those that will run. No alembic.ini is read, and no logging is configured.
"""

from __future__ import annotations

from alembic import context

from venus.migrations import VERSION_TABLE

attributes = context.config.attributes
context.configure(
    connection=attributes["connection"],
    version_table=VERSION_TABLE,
    version_table_schema=attributes["schema"],
    transactional_ddl=False,  # `run` owns the transaction
    venus_schema=attributes["schema"],
)
with context.begin_transaction():
    context.run_migrations()
