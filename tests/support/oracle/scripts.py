"""The scripts of docs/oracle, as the dialect generates them; `python -m tests.support.oracle.scripts`.

They are for a DBA to read: the same statements that an installation runs, for two tables of a school, and those that
the adapter says while it runs, for a table that has a column of every type.
"""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from pathlib import Path

from tests.support.oracle.double import VARCHAR, Answer, Error, Module
from venus.adapters.dialects.contract import InstallStep
from venus.adapters.dialects.oracle import registry
from venus.adapters.dialects.oracle.dictionary import overrides, ownership, types
from venus.adapters.dialects.oracle.dictionary.reader import OracleDictionary
from venus.adapters.dialects.oracle.dictionary.tables import (
    CharacterSets,
    ListedTable,
    OracleTable,
    build_table,
    with_id,
)
from venus.adapters.dialects.oracle.installation import row_checks
from venus.adapters.dialects.oracle.installation.install import OracleInstallPlanner
from venus.adapters.dialects.oracle.installation.installed_objects import give_room_back, valve_block
from venus.adapters.dialects.oracle.language import ddl, inline
from venus.adapters.dialects.oracle.language.ddl import CaptureStyle, KeyedTable, OracleKeyColumn, build_script
from venus.adapters.dialects.oracle.rows import build_access
from venus.adapters.dialects.oracle.session.connection import EDITION, SESSION, OracleSession
from venus.adapters.dialects.oracle.session.driver import ModuleDriver, OracleOptions
from venus.adapters.dialects.oracle.session.options import VERSIONS, Version
from venus.adapters.dialects.oracle.source import largest_query, sample_query
from venus.adapters.dialects.oracle.sql import log_table_name, statement
from venus.adapters.dialects.registry_rules import LogLimits
from venus.adapters.dialects.survey_contract import TableSize

FOLDER = Path(__file__).parents[3] / "docs" / "oracle"
STUDENT = KeyedTable(owner="APP", name="STUDENT", key=(OracleKeyColumn(name="ID", log_type="NUMBER", is_text=False),))
ENROLL = KeyedTable(
    owner="APP",
    name="ENROLL",
    key=(
        OracleKeyColumn(name="STUDENT_ID", log_type="NUMBER", is_text=False),
        OracleKeyColumn(name="COURSE", log_type="VARCHAR2(4000 CHAR)", is_text=True),
    ),
)
ROWS, INLINE = OracleOptions(), OracleOptions(inline=True)
#: With a valve, and a tablespace for the logs.
LIMITED = OracleOptions(log=LogLimits(rows_max=5_000_000, bytes_max=1 << 30, tablespace="VENUS_LOG"))
NO_KEY = KeyedTable(owner="APP", name="NOKEY", key=())
_TYPES_HEAD = """# Oracle's types

How each type of an Oracle column is carried.

"""


def plan(version: Version, options: OracleOptions) -> list[InstallStep]:
    """Return an installation as the installer plans it, on a double whose dictionary has the two tables of a school."""
    module = Module()
    listed = [["APP", name, "NO", "1000", "N", "NO", "N", None, None, "DISABLED"] for name in ("ENROLL", "STUDENT")]
    module.answers["SELECT T.OWNER"] = [Answer(types=[VARCHAR] * 10, rows=listed)]
    number = ("NUMBER", None, "22", "0", None, "10", "0", "N", None)
    columns = [
        ("ENROLL", "STUDENT_ID", *number),
        ("ENROLL", "COURSE", "VARCHAR2", None, "80", "20", "C", None, None, "N", None),
        ("STUDENT", "ID", *number),
        ("STUDENT", "NAME", "VARCHAR2", None, "40", "40", "B", None, None, "Y", None),
    ]
    module.answers["SELECT C.TABLE_NAME, C.COLUMN_NAME, C.DATA_TYPE"] = [Answer(types=[VARCHAR] * 11, rows=columns)]
    keys = [("ENROLL", "STUDENT_ID"), ("ENROLL", "COURSE"), ("STUDENT", "ID")]
    rows = [[table, f"{table}_PK", "P", column] for table, column in keys]
    module.answers["SELECT K.TABLE_NAME, K.NAME, K.KIND"] = [Answer(types=[VARCHAR] * 4, rows=rows)]
    session = OracleSession(ModuleDriver("double", Error, module, module.connect))
    installer = OracleInstallPlanner(session, OracleDictionary(session, version, "APP", []), version, options)
    return [step.shown for step in installer.plan(["*"], [])]


def statements(version: Version, options: OracleOptions = ROWS) -> list[str]:
    """Return an installation for a version, in order, and what gives a table without a key an identity."""
    made = [step.sql for step in plan(version, options)]
    return made + ddl.record_id_statements(NO_KEY, version, "VENUS_R_00000001")


_ASKED = """
`[source.type_map]` (`"APP.STUDENT.ACTIVE" = "boolean"`) and `--type-map APP.STUDENT.ACTIVE=boolean` can request the
following types by column, in a key where the remarks allow it; `usual` is the mapping of the table above:

"""
_SWITCHES = Path(__file__).with_name("switches.md").read_text(encoding="utf-8")
#: A column of every type, as the dictionary spells them: name, type, scale.
_EVERY = (
    ("GRADE", "NUMBER", 2),
    ("RATIO", "FLOAT", None),
    ("SINGLE", "BINARY_FLOAT", None),
    ("TWICE", "BINARY_DOUBLE", None),
    ("CODE", "NCHAR", None),
    ("NAME", "NVARCHAR2", None),
    ("SEEN", "DATE", None),
    ("AT", "TIMESTAMP(9)", 9),
    ("SINCE", "TIMESTAMP(6) WITH TIME ZONE", 6),
    ("UNTIL", "TIMESTAMP(3) WITH LOCAL TIME ZONE", 3),
    ("AGE", "INTERVAL YEAR(2) TO MONTH", None),
    ("TOOK", "INTERVAL DAY(2) TO SECOND(6)", 6),
    ("MARK", "RAW", None),
    ("SCAN", "BLOB", None),
    ("ESSAY", "CLOB", None),
    ("FORM", "XMLTYPE", None),
    ("ANSWERS", "JSON", None),
    ("PASSED", "BOOLEAN", None),
    ("PLACE", "ROWID", None),
)


def make_full_table() -> OracleTable:
    """Describe a table with a column of every type that travels, and a key of two columns."""
    rows: list[tuple[object, ...]] = [
        ("STUDENT_ID", "NUMBER", None, 22, 0, None, 10, 0, "N", None),
        ("TAKEN", "TIMESTAMP(6)", None, 11, 0, None, None, 6, "N", None),
    ]
    rows += [(name, kind, None, 40, 20, "C", None, scale, "Y", None) for name, kind, scale in _EVERY]
    listed = ListedTable(owner="APP", name="EXAM", partitioned=False, rows=0)
    return with_id(build_table(listed, rows, [("EXAM_PK", "P", "STUDENT_ID"), ("EXAM_PK", "P", "TAKEN")]), 3)


#: Blocks of the registry for a database that follows (fall_back_statements.py).
_BY_FALL_BACK = (
    *("seal", "unseal", "empty_registry", "empty_batches", "empty_ddl", "empty_segments", "empty_log", "is_waiting"),
    *("continue_table", "continue_at"),
)


def _probes() -> list[str]:
    asked = [statement("cut", "probe_log", log=log_table_name(1)), statement("inline", "probe")]
    asked.append(statement("cut", "probe_paused", log=log_table_name(3), table_id="3"))
    return [statement("cut", "probe", logged=" OR ".join(asked)), statement("cut", "coalesce", log=log_table_name(1))]


def running() -> list[str]:
    """Return what the adapter says from its first session on: dictionary, cut, fill, local transaction, review."""
    access = build_access(make_full_table())
    parts = {"collation": "C.COLLATION", "invisible": "C.USER_GENERATED = 'YES'", "table": make_full_table().keyed.sql}
    parts |= {"owners": "'APP', 'VENUS'"}
    asked = [statement("dictionary", name, **parts) for name in statement.blocks("dictionary")]
    asked += [statement(file, name) for file in ("kinds", "visibility", "segments") for name in statement.blocks(file)]
    claim = "\nUNION ALL ".join(statement("cut", "claim", table_id=str(n), log=log_table_name(n)) for n in (1, 3))
    cut = [
        statement("cut", "begin"),
        *_probes(),
        claim,
        access.changes_sql,
        access.fill.first,
        *access.fill.behind,
        *access.fill.up_to_end,
        access.fill.last,
        statement("cut", "delete", log=access.log),
        "COMMIT",
    ]
    asked += [
        row_checks.proof_query(make_full_table(), [("MARK", "uuid"), ("STUDENT_ID", "bigint"), ("GRADE", "boolean")])
    ]
    asked += [row_checks.sample_query(make_full_table()), statement("sampling", "room")]
    asked += [row_checks.sample_query(make_full_table(), CharacterSets(database="US7ASCII"))]
    asked += [statement("sampling", "character_sets"), statement("sampling", "direct_path")]
    asked += [statement("sampling", "blockers"), statement("sampling", "holder")]
    kept = [
        statement("registry", name, log=access.log, table_id="3", bound=" WHERE ROWNUM <= 100", **{"is": "<>"})
        for name in statement.blocks("registry")
        if name not in _BY_FALL_BACK
        and name not in ("register", "register_piece", "installed", "forget_segments", "take_up")
    ]
    kept += [
        registry.register_statement(make_full_table().schema, 1000),
        registry.installed_state_statement(3, registry.ACTIVE, None),
    ]
    kept += [registry.forget_segments_statement(3), registry.recapture_statement(3)]
    recorded = overrides.RecordedType(owner="APP", table="EXAM", column="PASSED", to="boolean")
    kept += [valve_block(LIMITED.log), give_room_back(access.log)]
    kept += [statement("valve", "job", action=valve_block(LIMITED.log)), statement("valve", "drop_job")]
    ways = [overrides.type_map_table(VERSIONS[-1]).sql, *(sql for _, sql in overrides.record_statements(recorded))]
    cut += [ownership.widen_column(3, "K1", "NUMBER")]
    own = [
        statement("ownership", name, schema=schema) for name in ("recorded", "registered") for schema in ("", '"APP".')
    ]
    return [*SESSION, EDITION, *asked, *own, *cut, *kept, *ways, statement("overrides", "recorded")]


def survey_statements() -> list[str]:
    """Return what `venus assess` reads of the table of every type and of its server."""
    table, size = make_full_table(), TableSize(namespace="APP", name="EXAM", rows=1_000_000, counted=False)
    bare = "sample", "segments", "segments_of_anybody", "segments_of_own", "largest", "some_rows"
    parts = {"table": table.keyed.sql}
    asked = [statement("survey", name, **parts) for name in statement.blocks("survey") if name not in bare]
    asked += [
        statement("survey", "segments", segments=statement("survey", f"segments_of_{whose}"))
        for whose in ("anybody", "own")
    ]
    sizes = size, replace(size, counted=True)
    return [*asked, sample_query(table, size.rows), *(largest_query(table, found) for found in sizes)]


def inline_statements(version: Version) -> list[str]:
    """Return what the paper's own variant adds, runs and takes away for one table."""
    found = make_full_table()
    read = build_access(replace(found, keyed=replace(found.keyed, style=CaptureStyle.INLINE)))
    made = [step.sql for step in plan(version, INLINE)]
    made += [statement("inline", "claim"), read.changes_sql, read.fill.first, *read.fill.behind]
    made += [
        statement("inline", "advance"),
        inline.count_waiting_sql(3, "APP", "STUDENT"),
        statement("inline", "tables"),
    ]
    return [
        *made,
        statement("inline", "has_columns"),
        inline.delete_polled_row("APP", "STUDENT"),
        inline.drop_inline_columns("APP", "STUDENT"),
    ]


def script_of(version: Version, options: OracleOptions) -> str:
    """Return an installation as `--dry-run` prints it."""
    return build_script(plan(version, options), removal=False, user="APP", version=version.name)


def _write_script(head: str, said: list[str]) -> str:
    ended = [s + ("\n/" if s.endswith("END;") else ";") for s in said]
    return f"-- {head}\n" + "\n\n".join(ended) + "\n"


#: The version of the scripts in docs/oracle. Those for other versions name theirs in the first line, and differ as
#: the table in the file of differences says.
SHOWN = VERSIONS[-1]
DIFFERENCES = "differences.csv"


def variants() -> dict[tuple[str, str], str]:
    """Return the script for every version, by the kind of script and the name of the version."""
    found = {("install", v.name): script_of(v, ROWS) for v in VERSIONS}
    return found | {("inline", v.name): script_of(v, INLINE) for v in VERSIONS}


def _differences() -> str:
    rows: dict[tuple[str, str, str], list[str]] = {}
    scripts = variants()
    for (kind, name), text in scripts.items():
        shown = scripts[kind, SHOWN.name].splitlines()[1:]
        for line, instead in zip(shown, text.splitlines()[1:], strict=True):
            places = rows.setdefault((kind, line.strip(), instead.strip()), []) if line != instead else []
            if name not in places:
                places.append(name)
    found = io.StringIO()
    table = csv.writer(found, lineterminator="\n")
    table.writerow(["script", "Oracle", f"line for {SHOWN.name}", "line instead"])
    table.writerows([kind, ", ".join(names), line, instead] for (kind, line, instead), names in rows.items())
    return found.getvalue()


def files() -> dict[str, str]:
    """Return every generated file of docs/oracle by name."""
    scripts = variants()
    return {
        f"install-{SHOWN.name}.sql": scripts["install", SHOWN.name],
        f"inline-{SHOWN.name}.sql": scripts["inline", SHOWN.name],
        "running.sql": _write_script("The statements of the running adapter, for a table of every type.", running()),
        DIFFERENCES: _differences(),
    }


def types_page() -> str:
    """Return the page reference/oracle-types.md of the site."""
    return _TYPES_HEAD + types.types_documentation() + _ASKED + overrides.overrides_documentation() + _SWITCHES


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in files().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
