"""The size of a cut is limited and the next cut takes the rest; a cut without its undo data is retried smaller.

No change is lost or doubled.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from tests.support.oracle.standin import StandIn
from tests.support.oracle.workload import change_item, writers
from venus.adapters.dialects.contract import SnapshotLost
from venus.adapters.dialects.oracle.capture import cut
from venus.adapters.dialects.oracle.session import options
from venus.adapters.dialects.oracle.session.driver import OracleOptions
from venus.adapters.dialects.oracle.session.options import CutBounds, CutLimits
from venus.adapters.dialects.oracle.source import OracleSource
from venus.cli.prove.follower import Follower

pytestmark = pytest.mark.integration


@pytest.fixture
def bounded_source(standin: StandIn, monkeypatch: pytest.MonkeyPatch) -> Iterator[OracleSource]:
    """Open a source whose cuts take at most 40 log rows, or 15 of one statement."""
    for module in (options, cut):
        monkeypatch.setattr(module, "SLICE_ROWS", 15)
    with closing(OracleSource(standin, OracleOptions(limits=CutLimits(rows_max=40)))) as source:
        yield source


def make(application: Any, *names: str) -> None:
    for name in names:
        application.execute(f'CREATE TABLE "{name}" ("ID" NUMBER(9) PRIMARY KEY, "V" VARCHAR2(40))')


def rows_of_cut(follower: Follower) -> int:
    found = follower.cut()
    return 0 if found is None else sum(section.count for section in found.sections)


def table(application: Any, name: str) -> dict[tuple[str], str]:
    application.execute(f'SELECT "ID", "V" FROM "{name}"')
    return {(str(key),): value for key, value in application.fetchall()}


def test_a_large_backlog_becomes_several_cuts(bounded_source: OracleSource, application: Any) -> None:
    make(application, "ITEM", "OTHER")
    bounded_source.installer.install(["*"], [])
    follower = Follower(bounded_source)
    follower.drain()
    for name in ("ITEM", "OTHER"):
        for key in range(100):
            application.execute(f"""INSERT INTO "{name}" VALUES (%s, 'a')""", [key])
        application.execute(f"""UPDATE "{name}" SET "V" = 'b'""")
        application.execute(f'DELETE FROM "{name}" WHERE "ID" < 30')
    sizes = []
    while size := rows_of_cut(follower):
        sizes.append(size)
    assert max(sizes) <= 40
    assert len(sizes) > 10
    for name in ("ITEM", "OTHER"):
        got = {key: row["V"] for key, row in follower.rows(name).items()}
        assert got == table(application, name)
    assert {t.state for t in bounded_source.registry.read_registered_tables()} == {"ACTIVE"}


def test_a_truncate_before_the_end_of_a_backlog_is_not_taken_as_a_vanished_row(
    bounded_source: OracleSource, application: Any
) -> None:
    make(application, "ITEM")
    bounded_source.installer.install(["*"], [])
    follower = Follower(bounded_source)
    follower.drain()
    for key in range(100):
        application.execute("""INSERT INTO "ITEM" VALUES (%s, 'a')""", [key])
    application.execute('TRUNCATE TABLE "ITEM"')
    application.execute(
        "INSERT INTO VENUS_DDL (SEQ, EVENT, OBJ_OWNER, OBJ_NAME) VALUES (VENUS_SEQ.NEXTVAL, 'TRUNCATE', 'APP', 'ITEM')"
    )
    application.execute("""INSERT INTO "ITEM" VALUES (7, 'new')""")
    follower.drain()
    assert set(follower.rows("ITEM")) == {("7",)}
    assert {t.state for t in bounded_source.registry.read_registered_tables()} == {"ACTIVE"}


def test_a_busy_table_does_not_delay_the_others(bounded_source: OracleSource, application: Any) -> None:
    make(application, "BUSY", "QUIET")
    bounded_source.installer.install(["*"], [])
    follower = Follower(bounded_source)
    follower.drain()
    application.execute("""INSERT INTO "QUIET" VALUES (1, 'a')""")
    for turn in range(3):
        for key in range(60):
            application.execute("""INSERT INTO "BUSY" VALUES (%s, 'a')""", [turn * 100 + key])
        rows_of_cut(follower)
    assert set(follower.rows("QUIET")) == {("1",)}


@pytest.mark.parametrize("limits", [CutLimits(bytes_max=1), CutLimits(read_s=1e-9)])
def test_bytes_and_time_limit_a_cut_too(
    standin: StandIn, application: Any, monkeypatch: pytest.MonkeyPatch, limits: CutLimits
) -> None:
    for module in (options, cut):
        monkeypatch.setattr(module, "SLICE_ROWS", 15)
    make(application, "ITEM", "OTHER")
    with closing(OracleSource(standin, OracleOptions(limits=limits))) as source:
        source.installer.install(["*"], [])
        follower = Follower(source)
        follower.drain()
        for key in range(40):
            application.execute("""INSERT INTO "ITEM" VALUES (%s, 'a')""", [key])
            application.execute("""INSERT INTO "OTHER" VALUES (%s, 'a')""", [key])
        assert rows_of_cut(follower) == 15
        follower.drain()
        assert len(follower.rows("ITEM")) == len(follower.rows("OTHER")) == 40


def test_after_a_lost_snapshot_cuts_are_smaller_and_grow_again(
    bounded_source: OracleSource, application: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(application, "ITEM")
    bounded_source.installer.install(["*"], [])
    follower = Follower(bounded_source)
    follower.drain()
    for key in range(200):
        application.execute("""INSERT INTO "ITEM" VALUES (%s, 'a')""", [key])
    bounded_source.capture._bounds.rows = 400
    taken = bounded_source.capture.open_cut([])
    assert taken is not None

    def refuse_old_snapshot(*_: Any) -> Any:
        raise SnapshotLost("ORA-01555: snapshot too old")

    with monkeypatch.context() as patch:
        patch.setattr(bounded_source.database.reader, "stream", refuse_old_snapshot)
        with pytest.raises(SnapshotLost):
            list(taken.read_sections(rows_max=100, bytes_max=10_000))
    taken.rollback()
    assert bounded_source.capture._bounds.rows == 100
    assert rows_of_cut(follower) == 100
    assert bounded_source.capture._bounds.rows == 40  # the limits double, up to the settings
    follower.drain()
    assert len(follower.rows("ITEM")) == 200


def test_six_writers_and_bounded_cuts_lose_nothing(
    bounded_source: OracleSource, standin: StandIn, application: Any
) -> None:
    make(application, "ITEM")
    bounded_source.installer.install(["*"], [])
    follower = Follower(bounded_source)
    with writers(standin, change_item) as ended:
        while ended["commit"] < 300:
            follower.cut()
    follower.drain()
    got = {key: row["V"] for key, row in follower.rows("ITEM").items()}
    assert got == table(application, "ITEM")
    assert {t.state for t in bounded_source.registry.read_registered_tables()} == {"ACTIVE"}


def test_limits_shrink_to_a_minimum_and_grow_to_the_settings() -> None:
    found = CutBounds(CutLimits(rows_max=10_000))
    found.record_lost_snapshot(8_000)
    assert found.rows == 2_000
    for _ in range(5):
        found.record_lost_snapshot(found.rows)
    assert found.rows == options.ROWS_MIN
    for _ in range(10):
        found.record_success()
    assert found.rows == 10_000
    found.first_table = 3
    assert found.order_tables([1, 2, 3, 4]) == [3, 4, 1, 2]
