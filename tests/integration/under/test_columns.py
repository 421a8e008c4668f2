"""A target whose columns are masked, dropped and renamed: loaded, followed, resynced, and its refusals."""

from __future__ import annotations

import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.brokers.feed import (
    INT,
    Feed,
    column,
    deletion,
    following,
    make_referring_schema,
    put,
    query,
    rows_at,
    settings_for,
    table,
    wait_until_caught_up,
)
from tests.support.brokers.real_broker import RealBroker
from tests.support.brokers.servers import business_status
from tests.support.masked_people import (
    ORDERS,
    PEOPLE,
    RULES,
    at_target,
    begin,
    expected_rows,
    is_equal,
    is_settled,
    text_at,
    with_options,
    write,
    write_key,
    write_people,
)
from tests.support.masked_values import SECRET, mask_by_hand
from tests.support.waiting import eventually
from venus.adapters.targets.postgresql.apply.staged_apply import StagedApply
from venus.adapters.targets.registry import open_target
from venus.adapters.targets.relational.apply_session import run_apply
from venus.adapters.targets.relational.control import read_progress, read_table_states, request_resync, resume
from venus.adapters.targets.relational.full_sync import full_sync
from venus.adapters.targets.relational.resync import Resyncs
from venus.adapters.targets.relational.states import TableState
from venus.config import Settings, SparkSettings
from venus.errors import ConfigError, Refused, WorkerLost
from venus.masking.syntax import ColumnRule
from venus.model import TableSchema
from venus.process.runners import LocalRunner
from venus.rpc import reports

pytestmark = pytest.mark.integration

#: Paths of rows into a target: in one round trip, or through staging tables in pieces.
WAYS: dict[str, dict[str, int]] = {"at once": {}, "staged": {"keyed_rows_max": 0, "cut_group_rows_max": 30}}


@pytest.fixture
def feed(real: RealBroker) -> Feed:
    return Feed(real)


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    return write_key(tmp_path / "masking.key", SECRET)


@pytest.mark.parametrize("way", WAYS)
def test_a_target_gets_masked_rows(database: str, feed: Feed, key_file: Path, way: str) -> None:
    settings = begin(feed, database, key_file, apply=WAYS[way])
    assert is_equal(database, settings, feed, RULES)
    with following(settings, "a"):
        write(feed, 12, seed=3)
        wait_until_caught_up(database, feed.broker)
    assert is_equal(database, settings, feed, RULES)
    assert len(rows_at(database, table(1, "people", column(1, "id")))) == len(feed.model[1]) > 40
    joined = "SELECT count(*) FROM shop.orders o JOIN shop.people p ON p.id = o.who"
    orders = [row for row in feed.model[2].values() if (row[0],) in feed.model[1]]
    assert query(database, joined) == [(len(orders),)]  # joins still work
    assert read_progress(settings, "a").unaccounted == 0
    assert "plain" not in text_at(database)
    assert SECRET.decode() not in text_at(database)


class LostRunner:
    """A runner whose workers die before they load a split."""

    def run(self, function: Any, tasks: Any) -> Any:
        raise WorkerLost


def test_the_plan_of_an_interrupted_load_has_no_plain_keys(database: str, feed: Feed, key_file: Path) -> None:
    settings = write_people(feed, database, key_file)
    with pytest.raises(WorkerLost):
        full_sync(settings, "a", runner=LostRunner())
    ((plan,),) = query(database, "SELECT snapshot FROM venus.load_job")
    assert b"people" in bytes(plan), "it is there to be looked at"
    assert b"plain" not in bytes(plan)

    notes: list[str] = []
    full_sync(settings, "a", lambda found: notes.append(found.note))

    assert any("begins again: a key is masked" in note for note in notes)
    assert is_equal(database, settings, feed, RULES)


def test_micro_batches_are_masked_too(database: str, feed: Feed, key_file: Path) -> None:
    settings = begin(feed, database, key_file)
    settings = settings.model_copy(update={"spark": SparkSettings(stage_rows_min=1)})
    feed.cut(*(put(f"plain{n}", f"plain{n}@5", "a plain note", "2001-12-31", "plain") for n in range(40, 80)))
    feed.cut(deletion("plain1"), put("plain2", "plain2@5", None, None, None))
    applies = StagedApply(settings, "a", LocalRunner(2), threading.Event())
    applies.start()
    applies.apply_up_to(feed.broker.next_offset)
    applies.close()
    assert (applies.staged > 0, applies.ordinary) == (True, 0)
    assert is_equal(database, settings, feed, RULES)
    assert "plain" not in text_at(database)


CHANGES: dict[str, dict[str, Any]] = {
    "another mask": {"people.born": "null"},
    "a dropped column": {"people.born": "drop"},
    "another name": {"people.label": {"mask": "hmac", "rename": "mail"}},
    "a column comes back": {"people.note": {"text": "###"}},
    "another name of the key": {"people.id": {"mask": "hmac", "rename": "code"}},
    "a plain key": {"people.id": "keep", "orders.person": {"rename": "who"}},
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_changed_rule_resyncs_its_table_from_the_broker(
    database: str, feed: Feed, key_file: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = begin(feed, database, key_file)
    rules = RULES | CHANGES[what]
    changed = with_options(settings, columns=rules)
    before = text_at(database).count("***")
    write(feed, 2, seed=2)
    if what == "another mask":  # killed before the rows are replaced

        def stop_here(*_: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(Resyncs, "_replace", stop_here)
            with pytest.raises(KeyboardInterrupt):
                run_apply(changed, "a", threading.Event())
        state = table_state(changed, "shop.people")
        assert (state.state, "the rules for its columns have changed" in state.reason) == ("HALTED", True)
        assert text_at(database).count("***") >= before  # readers still have their rows meanwhile
    with following(changed, "a"):
        write(feed, 4, seed=3)
        eventually(partial(is_settled, changed), "the resync")
        write(feed, 2, seed=4)
        wait_until_caught_up(database, feed.broker)
        eventually(partial(is_settled, changed), "the tables to follow")
    assert is_equal(database, changed, feed, rules)
    assert read_progress(changed, "a").unaccounted == 0
    if what == "a dropped column":
        assert not query(
            database,
            "SELECT FROM pg_attribute WHERE attname = 'born' AND NOT attisdropped AND"
            " attrelid = 'shop.people'::regclass",
        )
    with following(changed, "a"):
        write(feed, 2, seed=6)
        wait_until_caught_up(database, feed.broker)
    assert is_equal(database, changed, feed, rules)


def test_another_key_resyncs_the_tables_that_use_it(database: str, feed: Feed, key_file: Path, tmp_path: Path) -> None:
    settings = begin(feed, database, key_file)
    other = write_key(tmp_path / "other.key", b"x" * 40)
    changed = with_options(settings, masking_key_file=str(other))
    with following(changed, "a"):
        eventually(partial(is_settled, changed), "the resync")
        write(feed, 3, seed=3)
        wait_until_caught_up(database, feed.broker)
        eventually(partial(is_settled, changed), "the resync")
    assert is_equal(database, changed, feed, RULES, b"x" * 40)


def test_two_targets_have_separate_keys(
    database: str, second_database: str, feed: Feed, key_file: Path, tmp_path: Path
) -> None:
    settings = begin(feed, database, key_file)
    other = write_key(tmp_path / "other.key", b"y" * 40)
    second = settings_for(feed.broker.address, {"a": second_database}, columns=RULES, masking_key_file=str(other))
    full_sync(second, "a")
    assert is_equal(second_database, second, feed, RULES, b"y" * 40)
    ids = [set(rows_at(url, table(1, "people", column(1, "id")))) for url in (database, second_database)]
    assert not ids[0] & ids[1]
    assert is_equal(database, settings, feed, RULES)


def add_column_to_schema(schema: TableSchema) -> TableSchema:
    return replace(schema, version=schema.version + 1, columns=(*schema.columns, column(9, "phone")))


@pytest.mark.parametrize("new_columns", ["carry", "drop", "halt"])
def test_a_new_column_is_treated_as_configured(database: str, feed: Feed, key_file: Path, new_columns: str) -> None:
    settings = begin(feed, database, key_file, new_columns=new_columns)
    feed.describe(add_column_to_schema(PEOPLE))
    feed.model[1] = {key: (*row, None) for key, row in feed.model[1].items()}
    rules = RULES | ({} if new_columns == "carry" else {"people.phone": "drop"})
    with following(settings, "a"):
        feed.cut(put("plain1", "plain1@1", None, None, "plain", "plain phone"))
        feed.cut(put(777, "plain2", "plain", table=2))
        wait_until_caught_up(database, feed.broker)
    states = {t.source_name: t for t in read_table_states(settings, "a")}
    assert states["shop.orders"].state == "ACTIVE"
    if new_columns == "halt":
        assert states["shop.people"].state == "HALTED"
        assert "the source has added phone, and new_columns of [targets.a] is halt" in states["shop.people"].reason
        assert '("people.phone" = "keep", "drop" or a mask)' in states["shop.people"].reason
        with following(settings, "a"):  # still the same after a restart
            feed.cut(put(778, "plain2", "plain", table=2))
            wait_until_caught_up(database, feed.broker)
        assert table_state(settings, "shop.people").state == "HALTED"
        rules = RULES | {"people.phone": {"truncate": 3}}
        settings = with_options(settings, columns=rules)
        with following(settings, "a"):
            eventually(partial(is_settled, settings), "the table to follow")
    assert states["shop.people"].state == "ACTIVE" or new_columns == "halt"
    assert at_target(database, with_options(settings, columns=rules), feed.schemas[1]) == expected_rows(
        feed, feed.schemas[1], rules
    )
    assert "plain phone" not in text_at(database) or new_columns == "carry"


def test_a_column_that_is_renamed_at_the_source_stays_masked(database: str, feed: Feed, key_file: Path) -> None:
    settings = begin(feed, database, key_file)
    columns = [replace(c, name={"label": "mail", "note": "remark"}.get(c.name, c.name)) for c in PEOPLE.columns]
    renamed = replace(PEOPLE, version=2, columns=tuple(columns), indexes=())
    feed.describe(renamed)
    with following(settings, "a"):
        write(feed, 3, seed=3)
        wait_until_caught_up(database, feed.broker)
    assert all(t.state == "ACTIVE" for t in read_table_states(settings, "a"))
    rules = RULES | {"people.mail": "hmac", "people.remark": "drop"}
    names = [c.name for c in columns if c.name != "remark"]
    there = rows_at(database, replace(renamed, columns=tuple(c for c in columns if c.name in names)))
    assert there == expected_rows(feed, renamed, rules)
    assert "plain" not in text_at(database)
    with pytest.raises(ConfigError, match=r"targets\.a\.columns\.people\.label: shop\.people has no column label"):
        run_apply(settings, "a", threading.Event())  # the rule must be renamed before any row is read


def test_a_rule_for_a_dropped_column_does_not_stop_the_target(database: str, feed: Feed, key_file: Path) -> None:
    rules = {name: rule for name, rule in RULES.items() if name != "people.note"} | {"*.note": "drop"}
    settings = begin(feed, database, key_file, columns=rules)
    columns = tuple(c for c in PEOPLE.columns if c.name not in ("note", "tag"))
    narrow = replace(PEOPLE, version=2, columns=columns, indexes=())
    feed.describe(narrow)
    with following(settings, "a"):
        feed.cut(put("plain9", "plain9@9", "2020-05-06"))
        wait_until_caught_up(database, feed.broker)
    before = query(database, "SELECT xmin::text FROM shop.people ORDER BY id")
    with following(settings, "a"):  # the target starts with a rule for a column that is gone
        wait_until_caught_up(database, feed.broker)
        feed.cut(put("plain8", "plain8@8", "2020-05-07"))
        wait_until_caught_up(database, feed.broker)
        assert all(t.state == "ACTIVE" for t in read_table_states(settings, "a"))
    after = query(database, "SELECT xmin::text FROM shop.people ORDER BY id")
    assert len([row for row in after if row not in before]) == 1, "no other row was read again"
    assert "plain" not in text_at(database)
    wrong = with_options(settings, columns=rules | {"people.tags": "drop"})
    with pytest.raises(ConfigError, match=r"targets\.a\.columns\.people\.tags: shop\.people has no column tags"):
        run_apply(wrong, "a", threading.Event())


@pytest.mark.parametrize("on_error", ["quarantine", "halt"])
def test_a_refused_row_waits_masked(
    database: str, feed: Feed, key_file: Path, caplog: pytest.LogCaptureFixture, on_error: str
) -> None:
    settings = begin(feed, database, key_file, on_error=on_error)
    query(database, "ALTER TABLE shop.people ADD CONSTRAINT late CHECK (born < '2000-01-02') NOT VALID")
    with following(settings, "a"):
        feed.cut(put("plain7", "plain7@7", None, "2020-05-06", "plain"), put("plain8", "plain8@8", None, None, "plain"))
        feed.cut(put("plain7", "plain7@9", None, "2020-05-07", "plain"))
        wait_until_caught_up(database, feed.broker)
    waiting = open_target(settings, "a").open_quarantine().list()
    masked = mask_by_hand(ColumnRule(mask="hmac"), "text", "plain7")
    assert [masked in row.key for row in waiting] == [True] * (2 if on_error == "quarantine" else 1)
    assert "plain" not in text_at(database) + caplog.text + str(waiting)
    query(database, "ALTER TABLE shop.people DROP CONSTRAINT late")
    open_target(settings, "a").open_quarantine().retry()
    with following(settings, "a"):
        eventually(partial(is_settled, settings), "the table to follow")
    assert is_equal(database, settings, feed, RULES)


def test_a_predicate_selects_by_plain_values(database: str, feed: Feed, key_file: Path) -> None:
    settings = begin(feed, database, key_file, where={"people": "tag = 'plain1'"})
    with following(settings, "a"):
        write(feed, 4, seed=3)
        wait_until_caught_up(database, feed.broker)
    feed.model[1] = {key: row for key, row in feed.model[1].items() if row[3] == "plain1"}
    assert feed.model[1]
    assert is_equal(database, settings, feed, RULES)


def test_invalid_rules_are_refused_before_any_row_is_written(
    database: str, feed: Feed, key_file: Path, tmp_path: Path
) -> None:
    feed.describe(PEOPLE, ORDERS)
    feed.cut(put("plain1", None, None, None, None))
    open_file = write_key(tmp_path / "open.key", SECRET)
    open_file.chmod(0o604)
    cases: list[tuple[dict[str, Any], str]] = [
        ({"masking_key_file": str(open_file)}, "targets.a.masking_key_file .* can be read by others"),
        ({"masking_key_file": str(tmp_path / "none")}, "targets.a.masking_key_file .*: no such file"),
        (
            {"masking_key_file": str(write_key(tmp_path / "short.key", b"short"))},
            "has 5 bytes: a key needs at least 16",
        ),
        ({"masking_key_file": ""}, "targets.a.masking_key_file is not set"),
        ({"columns": {"people.mail": "hmac"}}, "targets.a.columns.people.mail: shop.people has no column mail"),
        ({"columns": {"people.id": {"constant": "x"}}}, "targets.a.columns.people.id: .* only hmac"),
    ]
    for options, message in cases:
        given = {"columns": RULES, "masking_key_file": str(key_file)} | options
        settings = settings_for(feed.broker.address, {"a": database}, **given)
        with pytest.raises(ConfigError, match=message) as refused:
            full_sync(settings, "a")
        assert "\n" not in str(refused.value)
    assert not query(database, "SELECT FROM pg_tables WHERE schemaname = 'shop'")
    found = open_target(settings, "a").check([PEOPLE, ORDERS])
    assert [f.blocks for f in found] == [True]


def is_halted(settings: Settings, name: str, reason: str) -> bool:
    found = table_state(settings, name)
    return found.state == "HALTED" and found.reason.startswith(reason)


def test_a_new_table_that_contradicts_the_rules_halts_alone(database: str, feed: Feed, key_file: Path) -> None:
    settings = begin(feed, database, key_file)
    late = make_referring_schema(table(3, "late", column(1, "id", INT), column(2, "person")), "person", PEOPLE)
    twin = replace(table(4, "people", column(1, "id"), column(2, "label")), namespace="hr")
    feed.describe(late, twin)
    reason = "targets.a.columns.people.id: foreign key late_fk of shop.late refers to shop.people, and the columns at"
    for round_number in range(2):  # still the same after a restart
        with following(settings, "a"):
            feed.cut(put(1 + round_number, "plain1", table=3), put("plain1", "plain", table=4))
            write(feed, 2, seed=2 + round_number)
            wait_until_caught_up(database, feed.broker)
        states = {t.source_name: t for t in read_table_states(settings, "a")}
        assert [t.source_name for t in states.values() if t.state == "HALTED"] == ["shop.late", "hr.people"]
        assert reason in states["shop.late"].reason
        assert "more than one table has this name: write" in states["hr.people"].reason
        assert "\n" not in states["shop.late"].reason + states["hr.people"].reason
        assert not query(database, "SELECT FROM pg_tables WHERE tablename = 'late' OR schemaname = 'hr'")
        eventually(lambda: f"late is HALTED ({reason}" in page_text(feed), "the report to the broker")
        assert "id (hmac), label (hmac), note (drop), born (year), tag (text); masking key" in page_text(feed)
    for command in (resume, request_resync):  # none of these commands writes plain rows
        command(settings, "a", ["shop.late"] if command is resume else "shop.late")  # type: ignore[arg-type]
        begins = "resync failed: " + reason if command is request_resync else reason
        with following(settings, "a"):
            eventually(partial(is_halted, settings, "shop.late", begins), "the halt")
    rules = {name.replace("people.", "shop.people."): rule for name, rule in RULES.items()}
    rules |= {"late.person": "hmac", "hr.people.id": "hmac", "hr.people.label": "null"}
    fitting = with_options(settings, columns=rules)
    with following(fitting, "a"):
        eventually(partial(is_settled, fitting), "the tables to follow")
        feed.cut(put(9, "plain9", table=3))
        wait_until_caught_up(database, feed.broker)
    masked = partial(mask_by_hand, ColumnRule(mask="hmac"), "text")
    assert rows_at(database, late) == {key: (masked(row[0]),) for key, row in feed.model[3].items()}
    assert rows_at(database, twin, "hr") == {(masked(key[0]),): (None,) for key in feed.model[4]}
    assert read_progress(fitting, "a").unaccounted == 0
    assert "plain" not in text_at(database)


def page_text(feed: Feed) -> str:
    found = business_status(feed.broker.address)
    return f"{list(reports.reported_problems(found, 0))}{found.consumers[0].reported.report.tables}"


def table_state(settings: Settings, name: str) -> TableState:
    return next(t for t in read_table_states(settings, "a") if t.source_name == name)


def test_a_masked_target_cannot_be_cut_over(database: str, feed: Feed, key_file: Path) -> None:
    settings = begin(feed, database, key_file)
    with pytest.raises(Refused, match="target a cannot be cut over: columns are masked, dropped or renamed there"):
        open_target(settings, "a").open_cutover()
    plain = with_options(settings, columns={})  # the new rule is not in force yet
    with pytest.raises(Refused, match=r"shop\.people"):
        open_target(plain, "a").open_cutover()


def test_ddl_shows_the_table_with_its_masked_columns(database: str, feed: Feed, key_file: Path) -> None:
    given: dict[str, Any] = {"columns": RULES, "masking_key_file": str(key_file)}
    settings = settings_for(feed.broker.address, {"a": database}, **given)
    text = open_target(settings, "a").build_ddl([PEOPLE, ORDERS], [], []).text
    assert '"who"' in text
    assert '"note"' not in text
