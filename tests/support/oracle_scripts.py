"""The installation scripts of docs/oracle, as the dialect generates them; `python -m tests.support.oracle_scripts`.

They are for a DBA to read: the same statements that an installation runs, for two tables of a school.
"""

from __future__ import annotations

from pathlib import Path

from venus.adapters.dialects.oracle import ddl, types
from venus.adapters.dialects.oracle.ddl import KeyColumn, Keyed
from venus.adapters.dialects.oracle.versions import VERSIONS, Version

FOLDER = Path(__file__).parents[2] / "docs" / "oracle"
STUDENT = Keyed(owner="APP", name="STUDENT", key=(KeyColumn(name="ID", log_type="NUMBER(10)", is_text=False),))
ENROLL = Keyed(
    owner="APP",
    name="ENROLL",
    key=(
        KeyColumn(name="STUDENT_ID", log_type="NUMBER(10)", is_text=False),
        KeyColumn(name="COURSE", log_type="VARCHAR2(20 CHAR)", is_text=True),
    ),
)
NO_KEY = Keyed(owner="APP", name="NOKEY", key=())
_TYPES_HEAD = """# Oracle's types

Made from the code that does it (`python -m tests.support.oracle_scripts`); a test compares the two.

"""


def statements(version: Version, *, cluster: bool) -> list[str]:
    """Return an installation for a version, in order."""
    made = [m.sql for m in ddl.own_objects(version, cluster=cluster)] + [sql for _, sql in ddl.own_rows()]
    trigger = ddl.ddl_trigger()
    made += [trigger.sql, ddl.enable(trigger.name)]
    for table_id, table in enumerate((STUDENT, ENROLL), 1):
        triggers = list(ddl.triggers(table, table_id))
        made += [ddl.log_ddl(table, table_id).sql, *(t.sql for t in triggers)]
        made += [*(ddl.enable(t.name) for t in triggers), ddl.fence(table), "COMMIT"]
    made.append(ddl.log_view([("APP.STUDENT", 1), ("APP.ENROLL", 2)]))
    return made + ddl.record_id(NO_KEY, version, "VENUS_R_00000001")


def script(version: Version, *, cluster: bool) -> str:
    """Return it as SQL*Plus would take it."""
    ended = [s + ("\n/" if s.endswith("END;") else ";") for s in statements(version, cluster=cluster)]
    place = f"{version.name} RAC" if cluster else version.name
    head = f"-- What VENUS installs on Oracle {place}, for two tables and a third without a key.\n"
    return head + "\n\n".join(ended) + "\n"


def files() -> dict[str, str]:
    """Return every generated file of docs/oracle by name."""
    found = {f"install-{v.name}.sql": script(v, cluster=False) for v in VERSIONS}
    found["install-19c-rac.sql"] = script(next(v for v in VERSIONS if v.name == "19c"), cluster=True)
    return found | {"TYPES.md": _TYPES_HEAD + types.documentation()}


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in files().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
