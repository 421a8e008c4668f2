"""The generated statements: stored for a DBA to read, accepted by a parser of Oracle's SQL, names that fit 11.2."""

from __future__ import annotations

import csv
import re
from dataclasses import replace

import pytest
from sqlfluff.core import Linter
from sqlfluff.core.errors import SQLParseError

from tests.support.oracle.scripts import (
    DIFFERENCES,
    ENROLL,
    FOLDER,
    LIMITED,
    ROWS,
    SHOWN,
    files,
    inline_statements,
    running,
    statements,
    variants,
)
from tests.support.oracle.sqlplus import read
from venus.adapters.dialects.contract import InstallStep
from venus.adapters.dialects.oracle.installation.installed_objects import describe_limits
from venus.adapters.dialects.oracle.language import ddl
from venus.adapters.dialects.oracle.language.ddl import OracleKeyColumn, build_script
from venus.adapters.dialects.oracle.session.options import VERSIONS, Version, find_version, version_of
from venus.adapters.dialects.oracle.sql import NAME_BYTES_MAX

#: Clauses that sqlfluff's oracle dialect does not support; the grammar of tests/integration/oracle/test_grammar.py
#: does.
UNCOVERED = (
    "DECLARE",
    "BEGIN\n  DBMS_SCHEDULER",
    "CREATE OR REPLACE TRIGGER VENUS_DDL_TRG",
    "CREATE OR REPLACE NONEDITIONABLE TRIGGER VENUS_DDL_TRG",
    "ALTER TRIGGER",
    "ALTER TABLE",
)
#: Oracle's reserved words ("SQL Language Reference", appendix E), because a bind with such a name is ORA-01745.
RESERVED = set(
    re.findall(
        r"\w+",
        """access add all alter and any as asc audit between by char check cluster column column_value comment
    compress connect create current date decimal default delete desc distinct drop else exclusive exists file float for
    from grant group having identified immediate in increment index initial insert integer intersect into is level like
    lock long maxextents minus mlslabel mode modify nested_table_id noaudit nocompress not nowait null number of offline
    on online option or order pctfree prior public raw rename resource revoke row rowid rownum rows select session set
    share size smallint start successful synonym sysdate table then to trigger uid union unique update user validate
    values varchar varchar2 view whenever where with""",
    )
)


@pytest.fixture(scope="module")
def linter() -> Linter:
    return Linter(dialect="oracle")


def problems(linter: Linter, sql: str) -> list[str]:
    text = sql.replace(" NONEDITIONABLE", "", 1) + ("\n/\n" if sql.endswith("END;") else ";\n")
    parsed = linter.parse_string(text)
    return [str(v) for v in parsed.violations if isinstance(v, SQLParseError)]


@pytest.mark.parametrize("name", sorted(files()))
def test_the_stored_scripts_equal_the_generated_ones(name: str) -> None:
    assert (FOLDER / name).read_text(encoding="utf-8") == files()[name]


def _with_differences(kind: str, version: str, table: str) -> str:
    """Return the stored script of a kind with the differences that the table lists for a version."""
    rows = csv.reader(table.splitlines())
    instead = {line: new for k, versions, line, new in rows if k == kind and version in versions.split(", ")}
    shown = (FOLDER / f"{kind}-{SHOWN.name}.sql").read_text(encoding="utf-8").splitlines(keepends=True)
    return "".join(line.replace(line.strip(), instead.get(line.strip(), line.strip())) for line in shown)


@pytest.mark.parametrize(("kind", "version"), list(variants()))
def test_the_script_of_every_version_differs_as_the_table_says(kind: str, version: str) -> None:
    table = (FOLDER / DIFFERENCES).read_text(encoding="utf-8")
    found, made = (
        text.partition("\n") for text in (_with_differences(kind, version, table), variants()[kind, version])
    )
    assert found[2] == made[2]
    assert found[0].replace(f"Oracle {SHOWN.name}", f"Oracle {version.partition(' ')[0]}") == made[0]


def test_a_parser_of_oracles_sql_accepts_every_statement_that_it_supports(linter: Linter) -> None:
    every = {s for v in VERSIONS for options in (ROWS, LIMITED) for s in statements(v, options)}
    assert {s: problems(linter, s) for s in every if not s.startswith(UNCOVERED) and problems(linter, s)} == {}
    assert sum(not s.startswith(UNCOVERED) for s in every) > 20


def test_the_parser_notices_a_broken_trigger(linter: Linter) -> None:
    made = next(iter(ddl.row_triggers(ENROLL, 2))).sql
    assert problems(linter, made.replace("VALUES (", "VALUES ")) != []


def test_every_object_name_fits_the_oldest_version() -> None:
    for version in VERSIONS:
        for text in statements(version):
            for name in re.findall(r"\bVENUS_\w+", text):
                assert len(name.encode()) <= NAME_BYTES_MAX


@pytest.mark.parametrize("version", VERSIONS, ids=[v.name for v in VERSIONS])
def test_object_names_of_other_options_fit_too(version: Version) -> None:
    for text in inline_statements(version):
        assert all(len(name) <= NAME_BYTES_MAX for name in re.findall(r"\bVENUS_\w+", text))
    assert ("INVISIBLE" in "".join(inline_statements(version))) is version.invisible_identity


def test_no_bind_has_the_name_of_a_reserved_word() -> None:
    binds = {name.lower() for text in running() for name in re.findall(r"(?<![:\w]):([A-Za-z]\w*)", text)}
    assert len(binds) > 15
    assert binds & RESERVED == set()


def test_triggers_are_created_disabled_and_enabled_after_all_exist() -> None:
    text = statements(find_version("19c"))
    made = next(n for n, s in enumerate(text) if "VENUS_U_00002\n" in s)
    assert "\nDISABLE\nBEGIN" in text[made]
    assert text.index("ALTER TRIGGER VENUS_U_00002 ENABLE") > made
    assert text.index("ALTER TRIGGER VENUS_D_00002 ENABLE") < text.index(ddl.fence_block(ENROLL))


def test_the_longest_key_makes_no_line_that_sqlplus_cannot_read() -> None:
    names = [f"C{n:02}{'é' * 62}X" for n in range(32)]
    key = tuple(OracleKeyColumn(name=name, log_type="VARCHAR2(10 CHAR)", is_text=True) for name in names)
    made = list(ddl.row_triggers(replace(ENROLL, key=key), 2))
    steps = [InstallStep(table="APP.ENROLL", what=m.name, sql=m.sql) for m in made]
    text = build_script(steps, removal=False, user="APP", version="19c")
    assert [s for s in read(text).statements if "TRIGGER" in s] == [m.sql for m in made]
    assert "NLS_LANG=.AL32UTF8" in text


def test_the_stored_scripts_can_be_executed() -> None:
    for name in files():
        if name.startswith(("install-", "inline-")):
            assert len(read((FOLDER / name).read_text(encoding="utf-8")).statements) > 20, name


def test_the_script_reader_notices_what_sqlplus_would_refuse() -> None:
    for text in (
        "INSERT INTO T VALUES (:a);",
        "BEGIN\n  NULL;\nEND;",
        "SELECT 'a&b' FROM DUAL;",
        "SELECT 1 -\n 2 X;",
        "-" * 2500,
    ):
        with pytest.raises(AssertionError):
            read(text)


def test_no_sequence_is_ordered() -> None:
    assert all("CACHE 1000 NOORDER" in "\n".join(statements(version)) for version in VERSIONS)


def test_triggers_are_noneditionable_where_editions_exist() -> None:
    for version in VERSIONS:
        made = [text.split("TRIGGER")[0] for text in statements(version) if text.startswith("CREATE OR REPLACE")]
        spelled = {text for text in made if "VIEW" not in text}
        assert spelled == {"CREATE OR REPLACE " if version.name == "11.2" else "CREATE OR REPLACE NONEDITIONABLE "}


def test_the_script_names_the_tablespace_of_the_logs_and_the_grants() -> None:
    limits = LIMITED.log
    text = build_script([], removal=False, user="APP", version="19c")
    assert "VENUS_VALVE" not in text
    lines = describe_limits(limits, "APP")
    made = statements(find_version("19c"), LIMITED)
    assert any("QUOTA UNLIMITED ON VENUS_LOG" in line for line in lines)
    assert any("log_rows_max = 5000000 or log_bytes_max = 1073741824" in line for line in lines)
    assert sum('TABLESPACE "VENUS_LOG"' in s for s in made if s.startswith("CREATE TABLE VENUS_L_")) == 3
    assert any("DBMS_SCHEDULER.CREATE_JOB" in s for s in made)


def test_a_text_key_is_compared_binary() -> None:
    update = list(ddl.row_triggers(ENROLL, 2))[1].sql
    assert "OR SYS_CONTEXT('USERENV', 'NLS_SORT') <> 'BINARY' THEN" in update


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("11.2.0.4.0", "11.2"),
        ("12.1.0.2.0", "12.1"),
        ("12.2.0.1.0", "12.2"),
        ("19.3.0.0.0", "19c"),
        ("23.6.0.24.10", "23ai"),
        ("26.1.0.0.0", "23ai"),
    ],
)
def test_a_servers_version_selects_its_statements(text: str, name: str) -> None:
    found = version_of(text)
    assert found is not None
    assert found.name == name


def test_an_older_server_has_no_statements() -> None:
    assert version_of("10.2.0.5.0") is None
