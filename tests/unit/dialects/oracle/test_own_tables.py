"""At an Oracle, VENUS's own tables are created by a script, which must equal the migrations.

The reason is in docs/explanation/decisions.md.
"""

from __future__ import annotations

import io
import re
from unittest import mock

from alembic.migration import MigrationContext
from alembic.operations import Operations

from tests.support.oracle.scripts import FOLDER
from venus.adapters.dialects.oracle.dictionary import ownership
from venus.adapters.dialects.oracle.language import ddl
from venus.adapters.dialects.oracle.session.options import VERSIONS
from venus.migrations.versions import source_0001_tables as migration

_TABLE = re.compile(r"CREATE TABLE (\w+) \(\n(.*?)\n\)", re.DOTALL)
_COLUMN = re.compile(r"^\s+(\w+)\s+[A-Z].*?( NOT NULL)?,?\s*$", re.MULTILINE)
#: Tables with the position up to which a log is consumed; Oracle deletes log rows one by one instead.
_NOT_AT_ORACLE = {("VENUS_CAPTURED_TABLE", "LOG_THROUGH")}
#: Tables that only Oracle has.
_ONLY_AT_ORACLE = {"VENUS_DDL", "VENUS_IDENTITY", "VENUS_OWNED", "VENUS_SEGMENT"}


def columns(text: str) -> dict[str, list[tuple[str, bool]]]:
    """Return the columns of each of VENUS's own tables in order, with NOT NULL."""
    found = {}
    for table, body in _TABLE.findall(text.upper()):
        rows = [(c, bool(n)) for c, n in _COLUMN.findall(body) if c not in ("PRIMARY", "CONSTRAINT")]
        found[table] = [(c, n) for c, n in rows if (table, c) not in _NOT_AT_ORACLE]
    return found


def render() -> str:
    """Return the DDL of alembic's Oracle dialect."""
    said = io.StringIO()
    context = MigrationContext.configure(dialect_name="oracle", opts={"as_sql": True, "output_buffer": said})
    with Operations.context(context), mock.patch.object(migration, "own_schema", return_value=None):
        migration.upgrade()
    return said.getvalue()


def test_the_script_creates_the_tables_of_the_migrations() -> None:
    own = [ownership.owned_table(), *ddl.build_own_objects(VERSIONS[-1])]
    made = columns("\n".join(m.sql for m in own))
    assert made.keys() >= _ONLY_AT_ORACLE
    assert {table: c for table, c in made.items() if table not in _ONLY_AT_ORACLE} == columns(render())
    assert len(made["VENUS_CAPTURED_TABLE"]) > 10


def test_the_file_for_a_dba_has_them_too() -> None:
    shown = columns((FOLDER / "install-23ai.sql").read_text(encoding="utf-8"))
    assert shown.items() >= columns(render()).items()
