"""A row that cannot travel halts its table: none of its cut is shipped, other tables continue, nothing is lost."""

from __future__ import annotations

from dataclasses import replace

import pytest

from venus.adapters.dialects import rows as limits
from venus.adapters.dialects.contract import RegisteredTable, Source, TableHalted
from venus.adapters.dialects.proving_contract import Application, Place
from venus.cli.prove.follower import FollowedCut, Follower
from venus.errors import Fenced
from venus.model import Sequence

#: A limit in place of the size of a message (`tests/unit/dialects/test_rows.py`), which would take hundreds of MB to
#: test.
ROW_BYTES_MAX, SECTION_BYTES = 300_000, 250_000
#: A size above the limit of a row; the contents do not matter.
LARGE = b"x" * (ROW_BYTES_MAX + 1000)
FEW = {"rows_max": 5}


class SmallRows(Follower):
    """Follower whose sections are smaller than the largest row, like those of the product."""

    def drain(self, **limits: int) -> list[FollowedCut]:
        return super().drain(**({"bytes_max": SECTION_BYTES} | limits))


@pytest.fixture(autouse=True)
def _small_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower the limit for the size of a row."""
    monkeypatch.setattr(limits, "ROW_BYTES_MAX", ROW_BYTES_MAX)


@pytest.fixture
def docs(place: Place, app: Application, source: Source) -> Follower:
    """Capture three empty tables."""
    t = place.types
    for name in ("doc", "scan", "item"):
        app.execute(f"CREATE TABLE {name} (id {t['int']} NOT NULL PRIMARY KEY, body {t['blob']})")
    app.commit()
    source.installer.install(["*"], [])
    follower = SmallRows(source)
    follower.drain()
    return follower


def insert(app: Application, table: str, first: int, count: int, body: bytes = b"small") -> None:
    """Insert rows with this body, numbered from `first` on, without a commit."""
    for i in range(first, first + count):
        app.execute(f"INSERT INTO {table} VALUES (?, ?)", i, body)


def correct(app: Application, table: str, row: int) -> None:
    """Give a row a body that is small enough to be carried."""
    app.execute(f"UPDATE {table} SET body = ? WHERE id = ?", b"less", row)
    app.commit()


def find_registered(source: Source, name: str) -> RegisteredTable:
    """Return a captured table from the registry."""
    return next(t for t in source.registry.read_registered_tables() if t.schema.name == name)


def keys(follower: Follower, name: str) -> set[int]:
    """Return the keys of the captured rows of a table."""
    return {int(str(key)) for (key,) in follower.rows(name)}


@pytest.mark.usefixtures("docs")
def test_rows_that_would_halt_a_table_are_counted(app: Application, source: Source) -> None:
    assert source.installer.find_large_rows(["doc", "item"], []) == []
    insert(app, "doc", 1, 2, LARGE)
    insert(app, "doc", 3, 3)
    insert(app, "item", 1, 2)
    app.commit()
    (found,) = source.installer.find_large_rows(["doc", "item"], [])
    assert found.where.lower().endswith(".doc")
    assert found.message.lower().startswith("column body: 2 of 5 rows have more than ")
    assert not found.blocks


@pytest.mark.parametrize("unfit", [0, 33, 60])
def test_nothing_is_seen_of_the_transaction_that_halts_its_table(app: Application, docs: Follower, unfit: int) -> None:
    written = set(range(61)) - {unfit}
    for row in written:
        insert(app, "doc", row, 1)
    insert(app, "doc", unfit, 1, LARGE)
    insert(app, "item", 1, 12)
    app.commit()
    written.add(unfit)
    docs.drain(**FEW)
    assert keys(docs, "doc") == set(), "half a transaction of a table that has halted"
    assert keys(docs, "item") == set(range(1, 13)), "the others continue"
    table = find_registered(docs.source, "doc")
    assert table.state == "PAUSED"
    assert table.reason.startswith("cannot be carried: row ")
    assert docs.source.capture.read_backlog()[docs.table_id("doc")][0] == len(written), "its log rows stay"

    correct(app, "doc", unfit)
    docs.source.capture.refresh_schemas()
    docs.drain(**FEW)
    assert find_registered(docs.source, "doc").state == "ACTIVE"
    assert keys(docs, "doc") == written
    assert docs.source.capture.read_backlog()[docs.table_id("doc")][0] == 0


def test_several_tables_of_one_cut_halt_and_continue_one_by_one(app: Application, docs: Follower) -> None:
    for name in ("doc", "scan", "item"):
        insert(app, name, 1, 12)
    for name in ("doc", "scan"):
        insert(app, name, 20, 1, LARGE)
    app.commit()
    docs.drain(**FEW)
    assert [keys(docs, name) for name in ("doc", "scan")] == [set(), set()]
    assert keys(docs, "item") == set(range(1, 13))
    correct(app, "scan", 20)
    docs.source.capture.refresh_schemas()
    docs.drain(**FEW)
    assert keys(docs, "scan") == {*range(1, 13), 20}
    assert (keys(docs, "doc"), find_registered(docs.source, "doc").state) == (set(), "PAUSED")
    correct(app, "doc", 20)
    docs.source.capture.refresh_schemas()
    docs.drain(**FEW)
    assert keys(docs, "doc") == {*range(1, 13), 20}


def test_a_table_that_has_halted_is_read_first_and_waits_if_nothing_was_written_to_it(
    app: Application, docs: Follower
) -> None:
    insert(app, "scan", 1, 1, LARGE)
    app.commit()
    docs.drain()
    docs.source.capture.refresh_schemas()
    assert find_registered(docs.source, "scan").state == "PAUSED", "nothing was corrected"
    insert(app, "scan", 2, 1)
    insert(app, "doc", 1, 1)
    app.commit()
    docs.source.capture.refresh_schemas()
    assert find_registered(docs.source, "scan").state == "ACTIVE"
    cut = docs.open([])
    assert cut is not None
    with pytest.raises(TableHalted, match="scan: row"):
        next(iter(cut.read_sections(rows_max=1, bytes_max=SECTION_BYTES)))
    cut.rollback()
    docs.drain()
    assert keys(docs, "doc") == {1}


def test_another_process_finds_what_waits_and_tries_it_again(place: Place, app: Application, docs: Follower) -> None:
    insert(app, "doc", 1, 12)
    insert(app, "doc", 20, 1, LARGE)
    app.commit()
    docs.drain(**FEW)
    correct(app, "doc", 20)
    other = place.open()
    try:
        successor = SmallRows(other)
        assert find_registered(other, "doc").state == "PAUSED"
        other.capture.refresh_schemas()
        successor.drain(**FEW)
        assert keys(successor, "doc") == {*range(1, 13), 20}
    finally:
        other.close()


def test_an_instance_that_has_been_fenced_halts_nothing(place: Place, app: Application, docs: Follower) -> None:
    other = place.open()
    try:
        SmallRows(other)
        with pytest.raises(Fenced):
            docs.source.registry.halt(docs.epoch, docs.table_id("doc"), "row id=1: too large")
        assert find_registered(other, "doc").state == "ACTIVE"
    finally:
        other.close()


def test_a_table_that_had_missed_changes_still_has_when_it_continues(app: Application, docs: Follower) -> None:
    table_id = docs.table_id("doc")
    docs.source.registry.set_table_state(table_id, "RESYNC", "its trigger was gone")
    insert(app, "doc", 1, 12)
    insert(app, "doc", 20, 1, LARGE)
    app.commit()
    docs.drain(**FEW)
    assert find_registered(docs.source, "doc").state == "PAUSED"
    assert "its trigger was gone" in find_registered(docs.source, "doc").reason
    correct(app, "doc", 20)
    docs.source.capture.refresh_schemas()
    table = find_registered(docs.source, "doc")
    assert (table.state, table.reason) == ("RESYNC", "its trigger was gone")
    docs.drain(**FEW)
    assert keys(docs, "doc") == {*range(1, 13), 20}


def test_a_table_that_an_operator_has_paused_keeps_its_reason(docs: Follower) -> None:
    table_id = docs.table_id("doc")
    docs.source.registry.set_table_state(table_id, "PAUSED", "by hand")
    docs.source.registry.halt(docs.epoch, table_id, "row id=1: too large")
    docs.source.capture.refresh_schemas()
    table = find_registered(docs.source, "doc")
    assert (table.state, table.reason) == ("PAUSED", "by hand")


@pytest.mark.parametrize("swept", [False, True])
def test_a_fill_that_halts_keeps_its_place_and_takes_its_chunk_back(
    app: Application, docs: Follower, swept: bool
) -> None:
    insert(app, "doc", 1, 30)
    app.commit()
    docs.drain()
    if not swept:
        docs.tables[docs.table_id("doc")].clear()
    docs.source.capture.restart_fill(docs.table_id("doc"))
    assert docs.cut(fill_rows=10) is not None
    app.execute("UPDATE doc SET body = ? WHERE id = ?", LARGE, 25)
    insert(app, "doc", 40, 1)
    insert(app, "item", 1, 1)
    app.commit()
    docs.drain(fill_rows=10)
    table = find_registered(docs.source, "doc")
    assert (table.state, table.fill.rows_done, table.fill.done) == ("PAUSED", 10, False)
    assert (40 in keys(docs, "doc"), keys(docs, "item")) == (False, {1})
    correct(app, "doc", 25)
    docs.source.capture.refresh_schemas()
    docs.drain(fill_rows=10)
    assert keys(docs, "doc") == {*range(1, 31), 40}
    assert find_registered(docs.source, "doc").fill.done


def test_a_sweep_that_halts_in_its_first_chunk_has_not_begun(app: Application, docs: Follower) -> None:
    insert(app, "doc", 1, 3)
    app.commit()
    docs.drain()
    docs.source.registry.set_table_state(docs.table_id("doc"), "PAUSED", "while a row grows")
    app.execute("UPDATE doc SET body = ? WHERE id = ?", LARGE, 2)
    app.commit()
    docs.source.capture.restart_fill(docs.table_id("doc"))
    before = find_registered(docs.source, "doc").fill
    fill = replace(before, sweep_from=Sequence(before.sweep_from or 1))
    docs.source.registry.set_table_state(docs.table_id("doc"), "ACTIVE", "")
    cut = docs.open([fill])
    assert cut is not None
    with pytest.raises(TableHalted):
        docs.read(cut, [fill], rows_max=5, bytes_max=SECTION_BYTES, fill_rows=10)
    cut.rollback()
    assert find_registered(docs.source, "doc").fill == before
