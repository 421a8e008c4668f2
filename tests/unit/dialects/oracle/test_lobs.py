"""Reading LOBs, on a double of the driver that follows its documentation (api_manual/lob.html)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.support.oracle import double
from tests.support.oracle.double import Answer, Lob, Module, error
from tests.support.oracle.scripts import make_full_table
from venus.adapters.dialects.contract import SnapshotLost
from venus.adapters.dialects.oracle.dictionary.reader import OracleDictionary
from venus.adapters.dialects.oracle.dictionary.tables import ListedTable, OracleTable, build_table
from venus.adapters.dialects.oracle.installation.check import check
from venus.adapters.dialects.oracle.rows import OracleAccess, build_access, regroup_rows
from venus.adapters.dialects.oracle.session import lobs
from venus.adapters.dialects.oracle.session.connection import OracleSession
from venus.adapters.dialects.oracle.session.driver import ModuleDriver, OracleOptions
from venus.adapters.dialects.oracle.session.options import find_version
from venus.adapters.dialects.registry_rules import UnfitRow
from venus.adapters.dialects.rows import ROW_BYTES_MAX
from venus.errors import SourceError

PIECE = lobs.PIECE_UNITS // 8132 * 8132


@pytest.fixture
def module() -> Module:
    return Module()


@pytest.fixture
def session(module: Module) -> OracleSession:
    return OracleSession(ModuleDriver("db/shop", double.Error, module, module.connect))


def document() -> OracleTable:
    """Return a table with a key, a CLOB and a BLOB."""
    rows: list[tuple[object, ...]] = [
        ("ID", "NUMBER", None, 22, 0, None, 10, 0, "N", None),
        ("NOTE", "CLOB", None, 4000, 0, None, None, None, "Y", None),
        ("SCAN", "BLOB", None, 4000, 0, None, None, None, "Y", None),
    ]
    return build_table(ListedTable(owner="APP", name="DOC", partitioned=False, rows=0), rows, [("DOC_PK", "P", "ID")])


def fetch_values(
    module: Module, session: OracleSession, access: OracleAccess, *rows: list[Any]
) -> list[tuple[Any, ...]]:
    """Fetch rows (id, note, scan) in the form that the driver returns for the query of changes."""
    names = ["V1", "V2", "V3", "V4", "V5", "VENUS_LENGTH_2", "VENUS_LOB_2", "VENUS_LENGTH_3", "VENUS_LOB_3"]
    types = [double.NUMBER, double.CLOB, double.BLOB, double.NUMBER, double.NUMBER]
    types += [double.NUMBER, double.CLOB, double.NUMBER, double.BLOB]
    module.answers["SELECT "] = [Answer(names=names, types=types, rows=[_as_stored(*row) for row in rows])]
    pieces = session.stream(access.changes_sql, {"hi": 1}, access.piece)
    return [
        row for part in regroup_rows(pieces, access, session.read_lob, rows_max=100, bytes_max=1 << 20) for row in part
    ]


def _as_stored(number: str, note: Any, scan: Any) -> list[Any]:
    row: list[Any] = [number]
    beside: list[Any] = []
    for lob in (note, scan):
        lob = Lob(lob) if isinstance(lob, str | bytes) else lob
        row.append(lob.content if lob is not None and lob.size() <= lobs.INLINE_UNITS else None)
        beside += [None, None] if lob is None else [str(lob.size()), lob]
    return [*row, "1", "0", *beside]


def test_small_lobs_arrive_with_their_row_without_a_read(module: Module, session: OracleSession) -> None:
    note, scan = Lob("größe"), Lob(b"\x00\xff")
    assert fetch_values(module, session, build_access(document()), ["1", note, scan]) == [
        (1, "größe", b"\x00\xff", 1, 0)
    ]
    assert note.read_at == scan.read_at == []


def test_a_large_lob_is_read_in_pieces(module: Module, session: OracleSession) -> None:
    scan = Lob(bytes(range(256)) * (10 << 12))
    ((*_, found, _, _),) = fetch_values(module, session, build_access(document()), ["1", None, scan])
    assert found == scan.content
    assert [offset for offset, _ in scan.read_at] == list(range(1, scan.size() + 1, PIECE))
    assert all(amount <= PIECE for _, amount in scan.read_at)


@pytest.mark.parametrize("replaces", [False, True], ids=["a split raises", "a split gives U+FFFD"])
@pytest.mark.parametrize("before", [0, 1])
def test_a_character_of_two_units_is_never_split(
    before: int, replaces: bool, module: Module, session: OracleSession
) -> None:
    text = "a" * before + "🙂" * PIECE + "\ufffd" * 3 + "é"
    note = Lob(text, replaces=replaces)
    ((_, found, *_),) = fetch_values(module, session, build_access(document()), ["1", note, None])
    assert found == text
    assert note.size() == before + 2 * PIECE + 4


def test_an_empty_lob_is_not_null(module: Module, session: OracleSession) -> None:
    rows = fetch_values(module, session, build_access(document()), ["1", "", b""], ["2", None, None])
    assert [row[1:3] for row in rows] == [("", b""), (None, None)]


def test_a_lob_too_large_for_a_message_is_refused_before_it_is_read(module: Module, session: OracleSession) -> None:
    half = b"x" * (ROW_BYTES_MAX // 2 + 1)
    note, scan = Lob(half.decode()), Lob(half)
    with pytest.raises(UnfitRow, match=r"row ID=7: 15\.0 MiB, a row can have 15 MiB"):
        fetch_values(module, session, build_access(document()), ["7", note, scan])
    assert note.read_at == scan.read_at == []


def test_a_row_that_is_too_large_in_utf_8_is_refused_too(module: Module, session: OracleSession) -> None:
    access = build_access(document())
    rows = fetch_values(module, session, access, ["7", "€" * (ROW_BYTES_MAX // 3 + 1), None])
    with pytest.raises(UnfitRow, match="row ID=7"):
        list(access.build_sections(rows, bytes_max=1 << 20))


@pytest.mark.parametrize("code", ["ORA-22922", "ORA-22924", "ORA-01555"])
def test_a_lob_that_was_deleted_meanwhile_reopens_the_snapshot(
    code: str, module: Module, session: OracleSession
) -> None:
    scan = Lob(b"x" * (3 * PIECE), error=error(code, "nonexistent LOB value"))
    with pytest.raises(SnapshotLost, match=code) as raised:
        fetch_values(module, session, build_access(document()), ["1", None, scan])
    assert raised.value.retryable


def test_a_lob_that_ends_early_is_not_taken_as_complete() -> None:
    with pytest.raises(SourceError, match="a LOB of length 20 ended at 10"):
        lobs.read_lob(Lob(b"x" * 10), 20)


def test_portions_count_the_size_of_a_lob_before_it_is_read(module: Module, session: OracleSession) -> None:
    access = build_access(document())
    scans = [Lob(b"x" * (1 << 20)) for _ in range(3)]
    names = ["V1", "V2", "V3", "V4", "V5", "VENUS_LENGTH_2", "VENUS_LOB_2", "VENUS_LENGTH_3", "VENUS_LOB_3"]
    types = [double.NUMBER, double.CLOB, double.BLOB, double.NUMBER, double.NUMBER]
    types += [double.NUMBER, double.CLOB, double.NUMBER, double.BLOB]
    rows = [_as_stored(str(n), None, scan) for n, scan in enumerate(scans)]
    module.answers["SELECT "] = [Answer(names=names, types=types, rows=rows)]
    pieces = session.stream(access.changes_sql, {"hi": 1}, access.piece)
    first = next(regroup_rows(pieces, access, session.read_lob, rows_max=100, bytes_max=1 << 20))
    assert len(first) == 1
    assert scans[1].read_at == []


def test_a_table_without_lobs_requests_none() -> None:
    table = make_full_table()
    kept = [n for n in table.readings if not table.readings[n].mapping.located]
    columns = tuple(c for c in table.schema.columns if c.name in kept)
    sql = build_access(replace(table, schema=replace(table.schema, columns=columns))).changes_sql
    assert "DBMS_LOB" not in sql


def test_the_grants_missing_in_hardened_databases_are_named(module: Module, session: OracleSession) -> None:
    module.answers["SELECT OBJECT_NAME FROM ALL_OBJECTS"] = [Answer(types=[double.VARCHAR], rows=[["DBMS_STATS"]])]
    dictionary = OracleDictionary(session, find_version("19c"), "VENUS", ["APP"])
    found = [
        f for f in check(session, dictionary, find_version("19c"), OracleOptions(), ["*"], []) if "EXECUTE" in f.message
    ]
    assert [(f.where, f.remedy, f.blocks) for f in found] == [
        ("privileges", 'GRANT EXECUTE ON SYS.DBMS_LOB TO "VENUS";', True),
        ("privileges", 'GRANT EXECUTE ON SYS.DBMS_UTILITY TO "VENUS";', True),
    ]
