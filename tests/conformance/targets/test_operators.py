"""Operators' commands at a target: view, pause, resume, resync, check; a kind that lacks one refuses it in words."""

from __future__ import annotations

import dataclasses
import re
import threading
import time
from contextlib import closing
from dataclasses import replace

import grpc
import pytest

from tests.conformance.targets.places import ORACLE, TargetPlace
from tests.conformance.targets.playing import Stage
from tests.support.brokers.delivery import FakeDelivery
from tests.support.brokers.feed import INT, Change, column, deletion, items, put, table
from tests.support.waiting import eventually
from venus.adapters.dialects.verify_contract import Slice, Subject, key_forms
from venus.adapters.targets.contract import UNSUPPORTED_TEXTS, TargetCapabilities, require_capability
from venus.adapters.targets.registry import KINDS, open_target
from venus.codec.columns import keys_to_columns
from venus.codec.row_bytes import Layout
from venus.config import Settings, TargetSettings
from venus.errors import ConfigError, Refused
from venus.model import Kind, LogicalType
from venus.process.runners import LocalRunner
from venus.rpc.conditions import LastComparison

pytestmark = pytest.mark.integration

CAPABILITIES = [f.name for f in dataclasses.fields(TargetCapabilities) if f.name != "kind"]


def load(stage: Stage) -> Stage:
    """Load two tables."""
    stage.feed.describe(items(), items(2, "others"))
    stage.feed.cut(*(put(i, f"label {i}", i) for i in range(10)), put(1, "other", 1, table=2))
    stage.target.load()
    return stage


# -- look --------------------------------------------------------------------------------------------------------------


def test_look_says_what_is_true_before_and_after(stage: Stage, broker: FakeDelivery) -> None:
    empty = stage.target.read_view()
    load(stage)
    at_the_cut = stage.target.read_view()
    stage.feed.cut(put(1, "new", 1), put(2, "new", 2))
    behind = stage.target.read_view()
    stage.follow_to_end()
    after = stage.target.read_view()

    assert (empty.name, empty.loaded, empty.error, empty.tables) == (stage.place.name, False, "", ())
    assert (at_the_cut.loaded, at_the_cut.offset, at_the_cut.paused) == (True, 11, False)
    assert [(t.name, t.state, t.rows_applied) for t in at_the_cut.tables] == [
        ("shop.items", "ACTIVE", 0),
        ("shop.others", "ACTIVE", 0),
    ]
    assert (behind.offset, behind.applied_sequence) == (at_the_cut.offset, at_the_cut.applied_sequence)
    assert (after.offset, after.applied_sequence) == (broker.next_offset, stage.feed.sequence - 1)
    assert (stage.table("shop.items").rows_applied, stage.table("shop.others").rows_applied) == (2, 0)
    assert after.applied_age_s is not None
    assert 0 <= after.applied_age_s < 60
    assert (after.unaccounted_rows, after.open_quarantine, after.error) == (0, 0, "")
    assert after.group == f"main/{stage.place.name}"


def test_an_unreadable_target_is_reported_in_the_view_and_by_the_check(
    place: TargetPlace, broker: FakeDelivery
) -> None:
    target = open_target(place.unreachable(broker.address), place.name)

    seen, found = target.read_view(), target.check([items()])

    assert seen.error
    assert not seen.loaded
    assert [f.message for f in found if f.where == f"target {place.name}" and seen.error in f.message]


def test_check_reports_that_a_target_can_hold_the_tables(stage: Stage) -> None:
    found = stage.target.check([items()])

    assert found
    assert not [f for f in found if f.blocks]
    stage.target.require_fit([items()])
    assert not stage.target.read_view().loaded, "checking changes nothing"


# -- pause, resume, resync ---------------------------------------------------------------------------------------------


def test_a_target_is_paused_and_continues_with_nothing_lost(stage: Stage, broker: FakeDelivery) -> None:
    load(stage)
    at = broker.next_offset
    with stage.follow_in_thread() as reports:
        eventually(lambda: bool(reports), "the loop")
        done = stage.target.pause(None, "a test")
        eventually(lambda: stage.target.read_view().paused, "the pause")
        seen = len(reports)
        eventually(lambda: len(reports) >= seen + 2, "the loop to have had a turn since")
        stage.feed.cut(put(1, "while paused", 1))
        time.sleep(1.0)
        paused = stage.target.read_view()
    with stage.follow_in_thread():  # a new process stays paused
        time.sleep(1.0)
        restarted = stage.target.read_view()
        resumed = stage.target.resume(None)
        stage.wait_until_applied(broker.next_offset)

    assert (done.table, set(done.states)) == (None, {"shop.items", "shop.others"})
    assert (paused.offset, restarted.offset, restarted.paused) == (at, at, True)
    assert set(resumed.states.values()) == {"ACTIVE"}
    assert not stage.target.read_view().paused
    stage.compare_tables()


def test_one_table_is_paused_while_the_others_continue(stage: Stage, broker: FakeDelivery) -> None:
    target = load(stage).target
    if not target.capabilities.pauses_tables:
        with pytest.raises(ConfigError, match="it can be paused as a whole only") as refused:
            target.pause("items", "a test")
        assert refused.value.hint == f"venus pause --target {target.name}"
        assert not target.read_view().paused, "refused, and nothing was done"
        return
    done = target.pause("items", "a test")
    with stage.follow_in_thread():
        stage.feed.cut(put(1, "waits", 1), put(1, "continues", 1, table=2))
        stage.wait_until_applied(broker.next_offset)
        waiting = stage.place.rows(stage.settings, items())[("1",)]
        others = stage.place.rows(stage.settings, items(2, "others"))[("1",)]
        held = stage.table("shop.items")
        target.resume("shop.items")
        eventually(lambda: stage.table("shop.items").state == "ACTIVE", "the catching up")

    assert (done.table, done.states["shop.items"], done.states["shop.others"]) == ("shop.items", "PAUSED", "ACTIVE")
    assert (waiting, others) == (("label 1", "1"), ("continues", "1"))
    assert (held.state, held.reason, held.held_from, held.held) == ("PAUSED", "a test", 11, 1)
    stage.compare_tables()


@pytest.mark.parametrize("name", ["shop.items", "items"])
def test_a_resync_makes_a_table_equal_to_the_full_data(name: str, stage: Stage, broker: FakeDelivery) -> None:
    load(stage)
    stage.place.damage(stage.settings, items())
    damaged = stage.place.rows(stage.settings, items())
    asked = stage.target.resync(name)
    resyncing = stage.table("shop.items").state
    with stage.follow_in_thread():
        eventually(lambda: stage.table("shop.items").state == "ACTIVE", "the resync")
        stage.feed.cut(put(99, "behind", 1))
        stage.wait_until_applied(broker.next_offset)

    assert damaged == {}
    assert asked.table == "shop.items"
    assert resyncing == "RESYNCING"
    stage.compare_tables()


def test_a_resync_keeps_what_has_changed_meanwhile(stage: Stage, broker: FakeDelivery) -> None:
    """The rows of the snapshot arrive after newer changes, which came after its cut."""
    if not stage.target.capabilities.verifies:
        return
    load(stage)
    stage.place.damage(stage.settings, items())

    def change_after_snapshot() -> None:
        broker.after_snapshot = lambda: None
        stage.feed.cut(put(1, "newer", 1), deletion(2), put(50, "new", 1))
        stage.wait_until_applied(broker.next_offset)

    broker.after_snapshot = change_after_snapshot
    stage.target.resync("items")
    with stage.follow_in_thread():
        eventually(lambda: stage.table("shop.items").state == "ACTIVE", "the resync")

    stage.compare_tables()


def test_a_resync_gives_older_rows_the_default_of_a_new_column(stage: Stage, broker: FakeDelivery) -> None:
    if not stage.target.capabilities.verifies:
        return
    load(stage)
    old = items()
    stage.feed.describe(replace(old, version=2, columns=(*old.columns, column(4, "n", INT, default_sql="7"))))
    stage.feed.model[1] = {key: (*row, "7") for key, row in stage.feed.model[1].items()}
    stage.feed.cut(put(1, "label", 1, 8))
    stage.follow_to_end()
    stage.target.resync("items")
    with stage.follow_in_thread():
        eventually(lambda: stage.table("shop.items").state == "ACTIVE", "the resync")

    stage.compare_tables()


def test_every_table_is_resynced_at_once(stage: Stage) -> None:
    load(stage)
    for schema in (items(), items(2, "others")):
        stage.place.damage(stage.settings, schema)
    stage.target.resync(None)
    with stage.follow_in_thread():
        eventually(lambda: {t.state for t in stage.target.read_view().tables} == {"ACTIVE"}, "the resyncs")

    stage.compare_tables()


@pytest.mark.parametrize("command", ["pause", "resume", "resync"])
def test_a_missing_table_is_refused_by_name(command: str, stage: Stage) -> None:
    target = load(stage).target
    arguments = ("shop.item", "a test") if command == "pause" else ("shop.item",)

    with pytest.raises(ConfigError, match=r"has no table 'shop.item' \(did you mean shop.items\?\)") as refused:
        getattr(target, command)(*arguments)

    assert refused.value.hint == "its tables: shop.items, shop.others"


@pytest.mark.parametrize("command", ["pause", "resync"])
def test_commands_need_a_target_that_was_loaded(command: str, stage: Stage) -> None:
    arguments = (None, "a test") if command == "pause" else (None,)

    with pytest.raises(Refused, match=f"target {stage.place.name} has not been loaded yet"):
        getattr(stage.target, command)(*arguments)


# -- rows that are refused ---------------------------------------------------------------------------------------------


def test_a_table_that_halts_does_not_stop_the_others(stage: Stage, broker: FakeDelivery) -> None:
    target = load(stage).target
    if not target.capabilities.quarantines:
        with pytest.raises(ConfigError, match=UNSUPPORTED_TEXTS["quarantines"]):
            target.open_quarantine()
        return
    stage.place.refuse(items(), "bad")
    with stage.follow_in_thread():
        stage.feed.cut(put(1, "bad", 1), put(2, "fine", 2), put(1, "continues", 1, table=2))
        stage.wait_until_applied(broker.next_offset)
        halted = stage.table("shop.items")
        (row,) = target.open_quarantine().list()
        others = stage.place.rows(stage.settings, items(2, "others"))
        stage.place.accept(items())
        report = target.open_quarantine().retry([row.id])
        eventually(lambda: stage.table("shop.items").state == "ACTIVE", "the catching up")

    assert (halted.state, others) == ("HALTED", stage.feed.model[2])
    assert "refuses" in halted.reason
    assert (row.table, row.key, report.resumed) == ("shop.items", '{"id": "1"}', ("shop.items",))
    stage.compare_tables()


# -- capabilities ------------------------------------------------------------------------------------------------------


def capability_errors(stage: Stage) -> dict[str, object]:
    """Return the error of each operation for which the target lacks the capability, by capability."""
    target = stage.target
    return {
        "pauses_tables": lambda: target.pause("items", ""),
        "quarantines": target.open_quarantine,
        "prints_ddl": lambda: target.build_ddl([items()], [], []),
        "follows_by_runner": lambda: target.open_scaled_apply(LocalRunner(1), threading.Event()),
        "verifies": target.open_reader,
    }


def test_a_target_refuses_in_words_what_it_cannot_do(stage: Stage) -> None:
    asked = capability_errors(load(stage))
    for capability in CAPABILITIES:
        if getattr(stage.target.capabilities, capability):
            require_capability(stage.target, capability)
            continue
        says = f"target {stage.place.name} is {stage.target.capabilities.kind}: {UNSUPPORTED_TEXTS[capability]}"
        with pytest.raises(ConfigError, match=f"^{re.escape(says)}$"):
            require_capability(stage.target, capability)
        if capability in asked:
            with pytest.raises(ConfigError, match=says):
                asked[capability]()  # type: ignore[operator]


def test_ddl_is_printed_by_targets_that_have_ddl(stage: Stage) -> None:
    if stage.target.capabilities.prints_ddl:
        found = stage.target.build_ddl([items()], [], [])
        assert any("CREATE TABLE" in statement for statement in found.statements)
        assert all(statement in found.text for statement in found.statements)


# -- the registry ------------------------------------------------------------------------------------------------------


def test_the_kind_of_a_target_is_its_scheme() -> None:
    assert set(KINDS) == {"mariadb", "mysql", "oracle", "parquet", "postgresql", "sqlite"}


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("mssql://root:secret@host/db", "targets.a.url: mssql is not a target that VENUS knows"),
        ("nothing", "targets.a.url is not the URL of a target"),
        ("postgresql:secret", "targets.a.url is not a database URL"),
    ],
)
def test_a_url_of_no_kind_of_target_is_refused_and_not_repeated(url: str, says: str) -> None:
    settings = Settings(targets={"a": TargetSettings.model_validate({"url": url})})

    with pytest.raises(ConfigError) as refused:
        open_target(settings, "a")

    assert says in str(refused.value)
    assert "secret" not in f"{refused.value} {refused.value.hint}"


# -- commands beside changes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["postgresql", "mariadb", "sqlite", ORACLE], indirect=True)
def test_a_command_between_changes_leaves_apply_connected(
    stage: Stage, broker: FakeDelivery, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[int] = []
    refuse = FakeDelivery._refuse

    def note_stream(self: FakeDelivery, context: grpc.ServicerContext, offset: int, epoch: int) -> None:
        opened.append(offset)
        refuse(self, context, offset, epoch)

    load(stage)
    monkeypatch.setattr(FakeDelivery, "_refuse", note_stream)
    with stage.follow_in_thread():
        for number in range(20):
            stage.target.record_comparison(LastComparison(ended_at_us=number, verdict="same"))
            stage.feed.cut(put(number, f"label {number}", number))
            stage.wait_until_applied(broker.next_offset)

    assert len(opened) == 1
    stage.compare_tables()
    assert stage.target.read_view().unaccounted_rows == 0


# -- verification ------------------------------------------------------------------------------------------------------


def test_a_row_is_found_by_its_key_as_the_target_stores_it(stage: Stage) -> None:
    """A comparison asks for the keys 1.5 and ab; a target may store 1.50, and ab with trailing blanks."""
    if not stage.target.capabilities.verifies:
        return
    code, amount = LogicalType(kind=Kind.CHAR, length=5), LogicalType(kind=Kind.DECIMAL)
    priced = table(1, "priced", column(1, "code", code), column(2, "amount", amount), key=("code", "amount"))
    keys = [("ab   ", "1.50"), ("ab   ", "150"), ("     ", "0.0")]
    stage.feed.describe(priced)
    stage.feed.cut(*(Change(1, key, ()) for key in keys))
    stage.target.load()
    subject, columns = Subject(schema=priced), [list(column) for column in zip(*keys, strict=True)]
    with closing(stage.target.open_reader()) as reader:
        reader.begin(subject)
        found = [section.record_ids for section in reader.find_rows(subject, key_forms(columns, priced))]
        reader.end()
    read = [keys_to_columns(ids, Layout.of(priced)) for ids in found]  # an Oracle stores numbers without trailing zeros
    forms = [form for part in read for form in key_forms(part, priced)]
    assert sorted(forms) == sorted(key_forms(columns, priced))
    assert {code for part in read for code in part[0]} == {"ab   ", "     "}


def test_a_comparison_reads_rows_and_position_in_one_snapshot(stage: Stage) -> None:
    if not stage.target.capabilities.verifies:
        return
    load(stage)
    subject = Subject(schema=items())
    with closing(stage.target.open_reader()) as reader:
        reader.begin(subject)
        reached = reader.read_reached_offset(subject)
        before = [section.count for section in reader.scan(subject, Slice(), None)]
        stage.feed.cut(put(77, "newer", 1))
        stage.follow_to_end()
        assert [section.count for section in reader.scan(subject, Slice(), None)] == before
        assert reader.read_reached_offset(subject) == reached
        reader.begin(subject)
        assert reader.read_reached_offset(subject) != reached
        reader.end()
