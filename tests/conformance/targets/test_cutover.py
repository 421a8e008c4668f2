"""The contract that a cut-over needs of a target: the same for every kind that can be cut over; other kinds refuse."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.conformance.targets.playing import Stage
from tests.support.brokers.delivery import FakeDelivery
from tests.support.brokers.feed import INT, Change, column, items, make_referring_schema, put, section, table
from tests.support.waiting import eventually
from venus.adapters.cutover.certificate import TableHash
from venus.adapters.cutover.run import CutoverRequest, run_cutover, undo_target_cutover
from venus.adapters.dialects.contract import Numbering
from venus.adapters.targets.contract import UNSUPPORTED_TEXTS
from venus.adapters.targets.cutover_contract import CutoverTarget
from venus.errors import ConfigError, Refused
from venus.model import TableSchema

pytestmark = pytest.mark.integration

FOUND = {"sequence": 7, "offset": 11, "committed_changes": {"1": 10, "2": 1}, "foreign_keys": [], "tables": []}
NUMBERED = table(3, "numbered", column(1, "id", INT, identity=True), column(2, "label"))


def load(stage: Stage) -> Stage:
    """Load three tables; one of two rows of `others` refers to a row of `items`."""
    stage.feed.describe(items(), make_referring_schema(items(2, "others"), "amount", items()), NUMBERED)
    stage.feed.cut(
        *(put(i, f"label {i}", i) for i in range(10)), put(1, "refers", 1, table=2), put(41, "numbered", table=3)
    )
    stage.target.load()
    return stage


def cannot_be_cut_over(stage: Stage) -> bool:
    """Return whether this kind cannot be cut over; if so, check that it refuses in one line and opens no database."""
    target = stage.target
    if target.capabilities.cuts_over:
        return False
    says = f"^target {target.name} is {target.capabilities.kind}: {UNSUPPORTED_TEXTS['cuts_over']}$"
    with pytest.raises(ConfigError, match=says):
        target.open_cutover()
    for command in (
        lambda: run_cutover(stage.settings, target.name, CutoverRequest()),
        lambda: undo_target_cutover(stage.settings, target.name),
    ):
        with pytest.raises(ConfigError, match=says):
            command()
    assert "\n" not in UNSUPPORTED_TEXTS["cuts_over"]
    return True


def hash_of(target: CutoverTarget, schema: TableSchema) -> TableHash:
    """Return the hash of a table's rows at the target."""
    found = TableHash()
    with target.open_snapshot():
        target.read_rows(schema.table_id, found.add)
    return found


def model_hash(stage: Stage, schema: TableSchema) -> TableHash:
    """Return the hash of the same table's rows as they were written to the broker."""
    found = TableHash()
    rows = stage.feed.model[schema.table_id]
    written = section(schema, [Change(schema.table_id, key, row) for key, row in rows.items()])
    found.add(written.record_ids, written.rows)
    return found


def accept_everything(*_: object) -> None:
    """Accept everything: a check before the mark that raises nothing."""


def test_a_target_that_was_never_loaded_is_refused(stage: Stage) -> None:
    if cannot_be_cut_over(stage):
        return
    with stage.target.open_cutover() as target:
        assert target.read_mark() is None
        assert not target.read_view().loaded
        with pytest.raises(Refused, match=f"target {stage.target.name} has not been loaded yet"):
            target.prepare()


def test_rows_are_read_as_they_were_written(stage: Stage) -> None:
    if cannot_be_cut_over(stage):
        return
    load(stage)
    with stage.target.open_cutover() as target:
        target.prepare()
        found = {there.schema.name: there for there in target.read_tables()}
        assert set(found) == {"items", "others", "numbered"}
        assert hash_of(target, items()) == model_hash(stage, items())
        stage.place.damage(stage.settings, items())
        assert hash_of(target, items()).rows == 0


def test_one_reading_is_one_snapshot(stage: Stage) -> None:
    if cannot_be_cut_over(stage):
        return
    load(stage)
    with stage.target.open_cutover() as target:
        target.read_tables()
        first, again = TableHash(), TableHash()
        with target.open_snapshot():
            target.read_rows(1, first.add)
            stage.place.damage(stage.settings, items())
            target.read_rows(1, again.add)

    assert first == again == model_hash(stage, items())


def test_rows_are_converted_to_what_the_target_stores(stage: Stage) -> None:
    if cannot_be_cut_over(stage):
        return
    load(stage)
    written = section(items(), [put(1, "label 1", "+001"), put(2, "label 2", "2")])
    plain, converted = TableHash(), TableHash()
    plain.add(written.record_ids, written.rows)
    with stage.target.open_cutover() as target:
        target.read_tables()
        with target.open_row_converter(1) as converter:
            shown = converter.convert_rows(written, items())
            converted.add(shown.record_ids, shown.rows)
        assert hash_of(target, items()) == model_hash(stage, items()), "converting writes nothing into the table"

    wanted = section(items(), [put(1, "label 1", "1"), put(2, "label 2", "2")])
    assert plain != converted
    assert converted == TableHash(rows=2, total=_total(wanted.record_ids, wanted.rows))


def _total(*rows: Any) -> int:
    found = TableHash()
    found.add(*rows)
    return found.total


def test_references_are_checked_row_by_row(stage: Stage) -> None:
    if cannot_be_cut_over(stage):
        return
    load(stage)
    with stage.target.open_cutover() as target:
        target.read_tables()
        (whole,) = target.check_references()
        stage.place.damage(stage.settings, items())
        (broken,) = target.check_references()

    assert (whole.name, whole.orphans) == ("others_fk", 0)
    assert (broken.name, broken.orphans) == ("others_fk", 1)
    assert broken.example


def test_counters_continue_behind_the_rows_and_behind_the_source_and_may_be_set_again(stage: Stage) -> None:
    if cannot_be_cut_over(stage):
        return
    load(stage)
    drawn = Numbering(namespace="shop", table="numbered", column="id", next_value=90)
    with stage.target.open_cutover() as target:
        target.read_tables()
        by_rows = target.set_counters([])
        by_source = target.set_counters([drawn])
        again = target.set_counters([drawn])

    assert [c.next_value for c in by_rows] == [42]
    assert [c.next_value for c in by_source] == [90]
    assert again == by_source


def test_a_refused_mark_changes_nothing(stage: Stage, broker: FakeDelivery) -> None:
    if cannot_be_cut_over(stage):
        return
    load(stage)

    def refuse_tables(tables: object) -> None:
        raise Refused("something has moved")

    with stage.target.open_cutover() as target:
        target.prepare()
        with pytest.raises(Refused, match="something has moved"):
            target.put_mark(FOUND, refuse_tables)
        assert target.read_mark() is None
    stage.feed.cut(put(1, "continues", 1))
    stage.follow_to_end()
    stage.compare_tables()


def test_the_check_before_the_mark_sees_all_that_was_applied(stage: Stage) -> None:
    if cannot_be_cut_over(stage):
        return
    load(stage)
    seen: dict[str, int] = {}
    with stage.target.open_cutover() as target:
        target.prepare()
        stage.feed.cut(put(1, "late", 1), put(2, "late", 2))
        stage.follow_to_end()
        target.put_mark(FOUND, lambda tables: seen.update((t.name, t.rows_applied) for t in tables))

    assert seen == {"shop.items": 2, "shop.others": 0, "shop.numbered": 0}


def test_venus_writes_nothing_after_the_mark_until_it_is_removed(stage: Stage, broker: FakeDelivery) -> None:
    if cannot_be_cut_over(stage):
        return
    load(stage)
    with stage.target.open_cutover() as target:
        target.prepare()
        target.read_tables()
        target.put_mark(FOUND, accept_everything)
        killed = target.read_mark()
        assert target.enforce((), []) == []
        assert target.enforce((), []) == [], "a killed process does it again"
        target.finish_mark(FOUND | {"warnings": []})
        done = target.read_mark()
    at = stage.target.read_view()
    stage.feed.cut(put(1, "must not arrive", 1))
    with stage.follow_in_thread() as reports:
        eventually(lambda: bool(reports), "the loop")
        refused = [
            _refusal(lambda: stage.target.load()),
            _refusal(lambda: stage.target.resume(None)),
            _refusal(lambda: stage.target.resync(None)),
        ]
    behind = stage.target.read_view()
    with stage.target.open_cutover() as target:
        target.read_tables()
        target.relax((), [])
        target.remove_mark()
        assert target.read_mark() is None

    assert killed is not None
    assert (killed.done, killed.sequence, killed.offset, killed.certificate) == (False, 7, 11, FOUND)
    assert done is not None
    assert (done.done, done.marked_at, done.certificate["warnings"]) == (True, killed.marked_at, [])
    assert at.cut_over
    assert at.committed_at_cut == {1: 10, 2: 1}
    assert behind.offset == at.offset
    assert all("the application's own" in text for text in refused)
    stage.follow_to_end()
    stage.compare_tables()


def _refusal(command: Any) -> str:
    with pytest.raises(Refused) as refused:
        command()
    return str(refused.value)


def test_a_comparison_uses_the_new_version_of_a_table(stage: Stage) -> None:
    if cannot_be_cut_over(stage):
        return
    load(stage)
    wider = replace(items(), version=2, columns=(*items().columns, column(4, "extra")))
    stage.feed.describe(wider)
    stage.feed.model[1] = {key: (*row, None) for key, row in stage.feed.model[1].items()}
    stage.feed.cut(put(1, "label", 1, "more"))
    stage.follow_to_end()
    with stage.target.open_cutover() as target:
        found = {there.schema.name: there.schema.version for there in target.read_tables()}
        assert found == {"items": 2, "others": 1, "numbered": 1}
        assert hash_of(target, wider) == model_hash(stage, wider)
