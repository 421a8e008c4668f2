"""Columns that are masked, dropped and renamed: the same at every kind of target."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.targets.playing import Stage
from tests.support.brokers.feed import INT, Feed, column, deletion, put, table
from tests.support.masked_values import SECRET, mask_by_hand
from tests.support.waiting import eventually
from venus.adapters.targets.columns import TargetColumns
from venus.errors import ConfigError, Refused
from venus.masking.functions import MaskingKey
from venus.masking.syntax import ColumnRule
from venus.model import Kind, LogicalType, TableSchema
from venus.rpc.conditions import problems

pytestmark = pytest.mark.integration

PEOPLE = table(
    1, "people", column(1, "id"), column(2, "mail"), column(3, "note"), column(4, "visits", INT), column(5, "tag")
)
RULES: dict[str, Any] = {
    "people.id": "hmac",
    "people.mail": {"mask": "hmac", "rename": "address"},
    "people.note": "drop",
    "people.visits": {"constant": 7},
    "people.tag": {"truncate": 2},
}
HMAC, YEAR = ColumnRule(mask="hmac"), ColumnRule(mask="year")


def mask_columns(stage: Stage, tmp_path: Path, **options: Any) -> Stage:
    """Return the same stage with rules for columns."""
    key_file = tmp_path / "masking.key"
    key_file.write_bytes(SECRET)
    key_file.chmod(0o600)
    return stage.configure(**({"columns": RULES, "masking_key_file": str(key_file)} | options))


def target_schema(stage: Stage) -> TableSchema:
    (schema,) = TargetColumns(stage.settings, stage.place.name).project_all([PEOPLE])
    return schema


def expected_rows(feed: Feed) -> dict[Any, Any]:
    return {
        (mask_by_hand(HMAC, "text", key[0]),): (mask_by_hand(HMAC, "text", mail), "7", tag if tag is None else tag[:2])
        for key, (mail, _, _, tag) in feed.model[1].items()
    }


def start(stage: Stage) -> None:
    stage.feed.describe(PEOPLE)
    stage.feed.cut(*(put(f"plain{n}", f"plain{n}@x", "a plain note", n, None if n % 3 else "plain") for n in range(30)))
    stage.target.load()


def test_masked_rows_arrive_and_later_deletions_find_them(stage: Stage, tmp_path: Path) -> None:
    stage = mask_columns(stage, tmp_path)
    start(stage)
    assert stage.place.rows(stage.settings, target_schema(stage)) == expected_rows(stage.feed)
    with stage.follow_in_thread():
        stage.feed.cut(
            put("plain1", None, None, None, None), deletion("plain2"), put("new", "plain", "note", 1, "\u00e4\u4e2dx")
        )
        stage.feed.cut(deletion("plain3"), put("plain333", "plain3@x", None, 3, "plain"))  # the update changes the key
        stage.feed.cut(put("plain2", "again", None, 1, ""), deletion("new"), put("plain4", "x", "y", 2, "z"))
        stage.wait_until_applied(stage.feed.broker.next_offset)
    assert stage.place.rows(stage.settings, target_schema(stage)) == expected_rows(stage.feed)
    assert stage.target.read_view().unaccounted_rows == 0


CHANGES: dict[str, dict[str, Any]] = {
    "another mask": {"people.tag": "null"},
    "another name of the key": {"people.id": {"mask": "hmac", "rename": "code"}, "people.tag": "null"},
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_changed_rule_is_followed_or_refused(real_stage: Stage, tmp_path: Path, what: str) -> None:
    stage = mask_columns(real_stage, tmp_path)
    start(stage)
    changed = mask_columns(stage, tmp_path, columns=RULES | CHANGES[what])
    if not changed.target.capabilities.pauses_tables:
        with pytest.raises(Refused, match="whose files keep the former values"):
            changed.target.follow(threading.Event())
        with pytest.raises(Refused, match="whose files keep the former values"):
            changed.target.load()
        stage.follow_to_end()
        return
    with changed.follow_in_thread():
        eventually(lambda: has_followed(changed), lambda: str(changed.target.read_view().tables))
        stage.feed.cut(put("plain5", "x", "y", 2, "z"), deletion("plain6"))
        changed.wait_until_applied(stage.feed.broker.next_offset)
    rows = {key: (mail, visits, None) for key, (mail, visits, _) in expected_rows(stage.feed).items()}
    assert changed.place.rows(changed.settings, target_schema(changed)) == rows
    assert changed.target.read_view().unaccounted_rows == 0
    assert changed.target.resync("shop.people").table == "shop.people"  # and once more, with the column names of now
    with changed.follow_in_thread():
        eventually(lambda: changed.table("shop.people").state == "ACTIVE", "the second resync")
        stage.feed.cut(put("plain7", "x", "y", 2, "z"), deletion("plain8"))
        changed.wait_until_applied(stage.feed.broker.next_offset)
    assert len(changed.place.rows(changed.settings, target_schema(changed))) == len(stage.feed.model[1])


def has_followed(stage: Stage) -> bool:
    """Return whether the table has the columns that its rules give it, and has applied everything."""
    view = stage.table("shop.people")
    return view.state == "ACTIVE" and "tag (null)" in view.columns


DATE = LogicalType(kind=Kind.DATE)
LATE = table(2, "late", column(1, "id"), column(2, "mail"), column(3, "visits", DATE))
EVERYWHERE = {name: rule for name, rule in RULES.items() if name != "people.visits"} | {"*.visits": {"constant": 7}}


def test_a_new_table_that_contradicts_the_rules_halts_alone(real_stage: Stage, tmp_path: Path) -> None:
    stage = mask_columns(real_stage, tmp_path, columns=EVERYWHERE)
    start(stage)
    with stage.follow_in_thread():
        stage.feed.describe(LATE)
        stage.feed.cut(put("plain1", "plain", "2001-02-03", table=2), put("plain2", "x", "y", 2, "z"))
        stage.feed.cut(put("plain2", "plain", "2001-02-04", table=2), deletion("plain3"))
        stage.wait_until_applied(stage.feed.broker.next_offset)
    for again in (False, True):  # still the same after a restart
        with stage.follow_in_thread():
            stage.feed.cut(put("plain4", "x", "y", 2, "z"), put("plain3", None, f"2001-02-0{5 + again}", table=2))
            stage.wait_until_applied(stage.feed.broker.next_offset)
        late, view = stage.table("shop.late"), stage.target.read_view()
        assert (late.state, late.held, view.unaccounted_rows) == ("HALTED", 3 + again, 0)
        assert "columns.*.visits: shop.late.visits is date, and '7' is no such value; change [targets." in late.reason
        (problem,) = problems(view.condition, "a")
        assert problem.startswith("target a: shop.late is HALTED (")
        people = stage.place.rows(stage.settings, target_schema(stage))
        assert people == expected_rows(stage.feed)
    rules = RULES | {"late.visits": "year", "late.mail": "hmac"}
    fitting = mask_columns(stage, tmp_path, columns=rules)
    with fitting.follow_in_thread():
        eventually(lambda: fitting.table("shop.late").state == "ACTIVE", "the table to follow")
        stage.feed.cut(put("plain5", "plain", "2003-04-05", table=2))
        fitting.wait_until_applied(stage.feed.broker.next_offset)
    projected = TargetColumns(fitting.settings, fitting.place.name).project_all([PEOPLE, LATE])[1]
    assert fitting.place.rows(fitting.settings, projected) == {
        key: (mask_by_hand(HMAC, "text", mail), mask_by_hand(YEAR, "date", born))
        for key, (mail, born) in stage.feed.model[2].items()
    }
    assert fitting.target.read_view().unaccounted_rows == 0


#: The same people later: two columns are renamed, one is dropped, and a new one matches a rule for every table.
LATER = replace(
    PEOPLE,
    version=2,
    columns=(column(1, "id"), column(2, "email"), column(3, "remark"), column(5, "tag"), column(6, "phone")),
)
PHONES = table(2, "phones", column(1, "id"), column(2, "phone"))
PHONE: dict[str, Any] = {"*.phone": {"truncate": 3}}


def test_columns_that_the_source_alters_stay_masked(stage: Stage, tmp_path: Path) -> None:
    stage = mask_columns(stage, tmp_path, columns=RULES | PHONE)
    stage.feed.describe(PHONES)
    start(stage)
    columns = TargetColumns(stage.settings, stage.place.name)
    schema = columns.follow(columns.project_all([PEOPLE, PHONES])[0], LATER)
    assert [c.name for c in schema.columns] == ["id", "address", "tag", "phone"]
    stage.feed.model[1] = {key: (mail, note, tag, None) for key, (mail, note, _, tag) in stage.feed.model[1].items()}
    stage.feed.describe(LATER)
    with stage.follow_in_thread():
        stage.feed.cut(put("plain1", "plain@x", "a plain note", "plain", "plain phone"), deletion("plain2"))
        stage.wait_until_applied(stage.feed.broker.next_offset)
    rules = {name: rule for name, rule in RULES.items() if name != "people.visits"}
    rules = {name.replace("mail", "email").replace("note", "remark"): rule for name, rule in rules.items()}
    stage = mask_columns(stage, tmp_path, columns=rules | PHONE)
    with stage.follow_in_thread():
        stage.feed.cut(
            put("plain3", "plain3@x", "a plain note", None, "plain"), put("plain", None, None, "plain", None)
        )
        stage.wait_until_applied(stage.feed.broker.next_offset)
    assert stage.place.rows(stage.settings, schema) == {
        (mask_by_hand(HMAC, "text", key[0]),): (mask_by_hand(HMAC, "text", mail), tag and tag[:2], phone and phone[:3])
        for key, (mail, _, tag, phone) in stage.feed.model[1].items()
    }
    shown = "id (hmac), email (hmac, renamed to address), remark (drop), tag (truncate), phone (truncate); masking key"
    assert stage.table("shop.people").columns.startswith(shown)
    assert stage.table("shop.people").state == "ACTIVE"


PATIENTS = table(3, "patients", column(1, "id"), column(2, "label"), column(3, "mail"))


@pytest.mark.parametrize("on_error", ["quarantine", "halt"])
def test_a_refused_row_waits_masked(stage: Stage, tmp_path: Path, on_error: str) -> None:
    if not stage.target.capabilities.quarantines:
        return
    rules = {"patients.id": "hmac", "patients.label": {"truncate": 2}, "patients.mail": "hmac"}
    stage = mask_columns(stage, tmp_path, columns=rules, on_error=on_error)
    stage.feed.describe(PATIENTS)
    stage.feed.cut(put("plain1", "fine plain", "plain@1", table=3))
    stage.target.load()
    stage.place.refuse(PATIENTS, "pl")
    with stage.follow_in_thread():
        stage.feed.cut(put("plain2", "plain", "plain@2", table=3), put("plain3", "fine", "plain@3", table=3))
        stage.wait_until_applied(stage.feed.broker.next_offset)
        (row,) = stage.target.open_quarantine().list()
        (table_view,) = [t for t in stage.target.read_view().tables if t.name == "shop.patients"]
        stage.place.accept(PATIENTS)
        stage.target.open_quarantine().retry([row.id])
        eventually(lambda: stage.table("shop.patients").state == "ACTIVE", "the table to follow")
    masked = mask_by_hand(HMAC, "text", "plain2")
    assert masked is not None
    assert masked in row.key
    assert "plain" not in f"{row} {table_view}"
    schema = TargetColumns(stage.settings, stage.place.name).project_all([PATIENTS])[0]
    assert stage.place.rows(stage.settings, schema) == {
        (mask_by_hand(HMAC, "text", key[0]),): (label and label[:2], mask_by_hand(HMAC, "text", mail))
        for key, (label, mail) in stage.feed.model[3].items()
    }


def test_status_names_the_columns_and_the_key_but_no_value(stage: Stage, tmp_path: Path) -> None:
    stage = mask_columns(stage, tmp_path)
    start(stage)
    shown = stage.table("shop.people").columns
    key_id = MaskingKey(SECRET).key_id
    assert shown == (
        "id (hmac), mail (hmac, renamed to address), note (drop), visits (constant), tag (truncate); masking key "
        + key_id
    )
    (condition,) = stage.target.read_view().condition.tables
    assert (condition.columns, condition.state) == (shown, "ACTIVE")


def test_column_rules_that_a_kind_cannot_apply_are_refused(stage: Stage, tmp_path: Path) -> None:
    if stage.target.capabilities.pauses_tables:
        assert mask_columns(stage, tmp_path, new_columns="halt").target.capabilities.masks
    else:
        with pytest.raises(ConfigError, match="it can be paused as a whole only"):
            mask_columns(stage, tmp_path, new_columns="halt")


def test_a_rule_that_matches_no_table_is_found_by_the_check(stage: Stage, tmp_path: Path) -> None:
    stage = mask_columns(stage, tmp_path, columns={"people.visits": "hmac"})
    (found,) = [f for f in stage.target.check([PEOPLE]) if f.blocks]
    assert "columns.people.visits: shop.people.visits is neither text, uuid nor binary" in found.message
