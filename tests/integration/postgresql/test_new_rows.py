"""A large cut marks its new rows, so that a target need not look for them first."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.integration.postgresql.conftest import Sql, Start
from venus.adapters.dialects.contract import Cut
from venus.cli.prove.follower import Follower
from venus.codec.batch import TableChanges
from venus.codec.columns import keys_to_columns
from venus.codec.row_bytes import Layout

pytestmark = pytest.mark.integration

Open = Callable[[], Cut]


@pytest.fixture
def follower(sql: Sql, capture: Start) -> Follower:
    sql("CREATE TABLE big (id int PRIMARY KEY, v text)")
    sql("INSERT INTO big SELECT i, 'old' FROM generate_series(1, 6000) i")
    made = capture()
    made.drain()
    return made


@pytest.fixture
def sections(follower: Follower) -> Iterator[Callable[[], list[TableChanges]]]:
    cuts: list[Cut] = []

    def read() -> list[TableChanges]:
        cut = follower.source.capture.open_cut([])
        assert cut is not None
        cuts.append(cut)
        return list(cut.read_sections(rows_max=10_000, bytes_max=8 << 20))

    yield read
    for cut in cuts:
        cut.rollback()


def keys(follower: Follower, found: list[TableChanges], *, new: bool) -> set[int]:
    """Return the keys in sections that are, or are not, marked as new."""
    (schema,) = [c.schema for c in follower.source.registry.read_registered_tables() if c.schema.name == "big"]
    layout = Layout.of(schema)
    return {
        int(str(key))
        for section in found
        if section.inserts_only == new
        for key in keys_to_columns(section.record_ids, layout)[0]
    }


def test_only_rows_inserted_in_the_cut_are_marked_as_new(
    sql: Sql, follower: Follower, sections: Callable[[], list[TableChanges]]
) -> None:
    sql(
        "BEGIN; UPDATE big SET v = 'changed' WHERE id <= 1500; DELETE FROM big WHERE id > 5500; "
        "INSERT INTO big SELECT i, 'new' FROM generate_series(6001, 8000) i; "
        "UPDATE big SET v = 'new and changed' WHERE id = 6001; "
        "INSERT INTO big VALUES (6000, 'back'); COMMIT"
    )
    found = sections()
    assert keys(follower, found, new=True) == set(range(6002, 8001))
    assert keys(follower, found, new=False) == {*range(1, 1501), *range(5501, 6001), 6001}
    assert not any(s.is_deleted.any() for s in found if s.inserts_only)


def test_alternating_new_and_old_rows_are_not_split_into_many_sections(
    sql: Sql, follower: Follower, sections: Callable[[], list[TableChanges]]
) -> None:
    # each pair is adjacent in the table, and is read in this order
    sql(
        "CREATE OR REPLACE PROCEDURE pairs() LANGUAGE plpgsql AS $$ BEGIN FOR i IN 1..1500 LOOP "
        "INSERT INTO big VALUES (10000 + i, 'new'); UPDATE big SET v = 'changed' WHERE id = i; END LOOP; END $$"
    )
    sql("CALL pairs()")
    found = sections()
    assert len(found) < 10
    assert keys(follower, found, new=True) | keys(follower, found, new=False) == {*range(1, 1501), *range(10001, 11501)}


def test_a_cut_of_old_rows_marks_none(sql: Sql, follower: Follower, sections: Callable[[], list[TableChanges]]) -> None:
    sql("UPDATE big SET v = 'changed' WHERE id <= 3000")
    assert not any(s.inserts_only for s in sections())
