"""An adapter's report about its tables: shortened by the sender, and refused by the broker if it is too large."""

from __future__ import annotations

import pytest

from venus.broker.service.service_status import REPORTS_MAX, AdapterReports
from venus.errors import ProtocolError
from venus.rpc.conditions import (
    AdapterCondition,
    AdapterFigures,
    LastComparison,
    TableCondition,
    TableFillFigures,
    decode_comparison,
    encode_comparison,
    problems,
    source_condition,
    uncaptured_condition,
)
from venus.rpc.limits import REPORTED_ROW_COUNTS_MAX
from venus.rpc.reports import (
    NAME_CHARACTERS_MAX,
    REASON_CHARACTERS_MAX,
    SOURCE,
    TABLES_MAX,
    check,
    decode,
    encode,
    reported_problems,
)
from venus.text.alarm_rules import classify_sentence
from venus.wire import broker_pb2

SECOND_US = 1_000_000


def table(number: int = 1, **changes: object) -> TableCondition:
    return TableCondition(**{"table_id": number, "name": f"shop.t{number}", "state": "HALTED", **changes})  # type: ignore[arg-type]


def test_healthy_tables_are_left_out_and_those_that_need_an_operator_come_first() -> None:
    condition = AdapterCondition.of(
        [table(1, state="ACTIVE"), table(2, state="CATCHUP"), table(3), table(4, quarantined=2)]
    )

    assert [t.table_id for t in condition.tables] == [3, 4, 2]
    assert decode(encode(condition)) == condition


def test_uncaptured_tables_never_displace_halted_ones() -> None:
    many = [uncaptured_condition(f"app.a{n}", "") for n in range(TABLES_MAX + 5)]
    report = encode(AdapterCondition.of([*many, table(7)]))

    assert report.tables[0].name == "shop.t7"
    assert report.tables_left_out == 6


def test_a_predicate_of_a_table_is_shown_and_is_no_problem() -> None:
    some = [table(n, state="ACTIVE", rows="the rows where region = 'EU'") for n in range(TABLES_MAX + 5)]
    condition = AdapterCondition.of(some)

    report = encode(condition)

    check(report)
    assert [t.rows for t in decode(report).tables] == ["the rows where region = 'EU'"] * TABLES_MAX
    assert problems(decode(report)) == []


def test_a_report_is_never_larger_than_the_broker_accepts() -> None:
    long = "\x00line\nline " * 1000
    condition = AdapterCondition.of([table(n, name=f"{n}{long}", reason=long) for n in range(1, 1001)])

    report = encode(condition)

    check(report)
    assert len(report.tables) == TABLES_MAX
    assert report.tables_left_out == 1000 - TABLES_MAX
    assert report.ByteSize() < 256 * 1024
    assert f"source: {1000 - TABLES_MAX:,} more tables do not follow; `venus status` lists them" in problems(
        decode(report)
    )


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": ""},
        {"name": "x" * (NAME_CHARACTERS_MAX + 1)},
        {"name": "a\nb"},
        {"reason": "x" * (REASON_CHARACTERS_MAX + 1)},
        {"rows": "x" * (REASON_CHARACTERS_MAX + 1)},
        {"rows": "a\nb"},
        {"reason": "\x1b[31m"},
        {"state": ""},
        {"state": "halted"},
        {"state": "X" * 21},
    ],
)
def test_a_report_that_is_too_large_or_unreadable_is_refused_and_not_kept(wrong: dict[str, str]) -> None:
    report = broker_pb2.AdapterReport(
        tables=[broker_pb2.TableReport(**{"table_id": 1, "name": "t", "state": "HALTED", **wrong})]  # type: ignore[arg-type]
    )
    reports = AdapterReports()

    with pytest.raises(ProtocolError, match="table 1"):
        reports.record("b", SOURCE, report, 1)

    entry = broker_pb2.BusinessStatus(business="b")
    reports.add_to_status(entry, 1)
    assert not entry.alarms
    assert not entry.HasField("source")


def test_too_many_tables_are_refused() -> None:
    one = broker_pb2.TableReport(table_id=1, name="t", state="HALTED")
    with pytest.raises(ProtocolError, match="257 tables"):
        check(broker_pb2.AdapterReport(tables=[one] * (TABLES_MAX + 1)))


def status(*groups: str) -> broker_pb2.BusinessStatus:
    return broker_pb2.BusinessStatus(
        business="b", consumers=[broker_pb2.ConsumerStatus(group=group) for group in groups], alarms=["its own"]
    )


def test_reports_become_alarms_after_the_brokers_own() -> None:
    reports = AdapterReports()
    reports.record("b", SOURCE, encode(AdapterCondition.of([source_condition(1, "t", "RESYNC", "why")])), 5)
    reports.record("b", "b/eu", encode(AdapterCondition.of([], paused=True, quarantined=3)), 6)
    reports.record("other", SOURCE, encode(AdapterCondition(paused=True)), 7)
    entry = status("b/eu", "b/us")

    reports.add_to_status(entry, 10)

    assert list(entry.alarms) == [
        "its own",
        "source: t is RESYNC (why); `venus resync t` reads it again",
        "target eu: paused; `venus resume --target eu` resumes it",
        "target eu: 3 refused changes wait; see `venus quarantine list --target eu`",
    ]
    assert entry.reported_alarms == 3
    assert [c.HasField("reported") for c in entry.consumers] == [True, False]
    assert [group for group, _ in reported_problems(entry, 10)] == [SOURCE, "b/eu", "b/eu"]


def test_the_report_of_an_adapter_that_left_is_dated_until_it_is_repeated() -> None:
    reports = AdapterReports()
    report = encode(AdapterCondition.of([table()]))
    reports.record("b", "b/eu", report, 1 * SECOND_US)
    reports.record_disconnect("b", "b/eu", 5 * SECOND_US)
    reports.record_disconnect("b", "b/eu", 6 * SECOND_US)
    entry = status("b/eu")
    reports.add_to_status(entry, 65 * SECOND_US)

    assert "(as it was 60 s ago: its adapter has been away since)" in entry.alarms[-1]
    assert entry.consumers[0].reported.reported_at_us == SECOND_US

    reports.record("b", "b/eu", report, 70 * SECOND_US)
    entry = status("b/eu")
    reports.add_to_status(entry, 71 * SECOND_US)
    assert "ago" not in entry.alarms[-1]


def test_removed_groups_are_forgotten_and_a_new_one_is_not() -> None:
    reports = AdapterReports()
    paused = encode(AdapterCondition(paused=True))
    reports.record("b", "b/gone", paused, 1)
    reports.record_disconnect("b", "b/gone", 2)
    reports.record("b", "b/new", paused, 3)  # after the engine's part of the status was built
    reports.add_to_status(status(), 4)

    entry = status("b/gone", "b/new")
    reports.add_to_status(entry, 5)

    assert [c.HasField("reported") for c in entry.consumers] == [False, True]


def test_the_number_of_remembered_adapters_is_limited() -> None:
    reports = AdapterReports()
    for number in range(REPORTS_MAX + 1):
        reports.record(f"b{number}", SOURCE, encode(AdapterCondition(paused=True)), number)
    found = []
    for number in (0, 1, REPORTS_MAX):
        entry = broker_pb2.BusinessStatus(business=f"b{number}")
        reports.add_to_status(entry, 1)
        found.append(entry.HasField("source"))
    assert found == [False, True, True]
    reports.forget_business("b1")
    entry = broker_pb2.BusinessStatus(business="b1")
    reports.add_to_status(entry, 1)
    assert not entry.HasField("source")


def test_a_table_that_halted_is_distinguished_from_one_that_was_paused() -> None:
    found = problems(
        AdapterCondition.of(
            [
                source_condition(1, "a", "PAUSED", "paused by an operator"),
                source_condition(2, "b", "PAUSED", "cannot be carried: row 5"),
            ]
        )
    )

    assert found == [
        "source: a is PAUSED (paused by an operator); `venus resume a` resumes it",
        "source: b is HALTED (cannot be carried: row 5); correct the row; it is retried automatically; or exclude its"
        " column in [source.columns]",
    ]


COMPARED = LastComparison(ended_at_us=SECOND_US, verdict="different", leg="ends", tables=2, rows=7, different=1)
FIGURES = AdapterFigures(
    place="shop at db.example:5432",
    rows={1: 3_000_000, 2: 0},
    counted_at_us=SECOND_US,
    fills=(TableFillFigures(table_id=2, name="shop.t2", rows=5, rows_expected=10),),
    compared=COMPARED,
)


def test_figures_of_the_database_are_sent_with_the_condition() -> None:
    condition = AdapterCondition.of([table(3)], figures=FIGURES)

    report = encode(condition)

    check(report)
    assert decode(report) == condition
    assert not encode(AdapterCondition()).HasField("figures")
    assert decode_comparison(encode_comparison(COMPARED)) == COMPARED
    assert decode_comparison(None) is None


def test_figures_are_never_more_than_the_broker_accepts() -> None:
    fill = TableFillFigures(table_id=1, name="x" * 1_000, rows=0, rows_expected=0)
    large = AdapterFigures(place="p\n" * 500, rows=dict.fromkeys(range(5_000), 1), fills=(fill,) * 1_000)

    report = encode(AdapterCondition(figures=large))

    check(report)
    assert len(report.figures.rows) == REPORTED_ROW_COUNTS_MAX
    assert len(report.figures.fills) == TABLES_MAX


@pytest.mark.parametrize(
    "figures",
    [
        broker_pb2.AdapterFigures(place="a\nb"),
        broker_pb2.AdapterFigures(place="p" * (NAME_CHARACTERS_MAX + 1)),
        broker_pb2.AdapterFigures(rows=[broker_pb2.TableRowCount()] * (REPORTED_ROW_COUNTS_MAX + 1)),
        broker_pb2.AdapterFigures(fills=[broker_pb2.TableFill(name="t")] * (TABLES_MAX + 1)),
        broker_pb2.AdapterFigures(fills=[broker_pb2.TableFill(name="\x1b[31m")]),
        broker_pb2.AdapterFigures(compared=broker_pb2.Comparison(verdict="fine")),
        broker_pb2.AdapterFigures(compared=broker_pb2.Comparison(verdict="same", leg="\x00")),
    ],
)
def test_impossible_figures_are_refused(figures: broker_pb2.AdapterFigures) -> None:
    with pytest.raises(ProtocolError):
        check(broker_pb2.AdapterReport(figures=figures))


def test_the_refused_row_of_a_halted_table_is_one_problem() -> None:
    halted = AdapterCondition.of([table(1, quarantined=1)], quarantined=1)
    assert len(problems(halted, "eu")) == 1
    more = AdapterCondition.of([table(1, quarantined=1), table(2, state="ACTIVE", quarantined=2)], quarantined=3)
    assert problems(more, "eu")[1:] == ["target eu: 2 refused changes wait; see `venus quarantine list --target eu`"]


def test_rows_that_differed_in_the_last_comparison_are_a_problem_until_repaired() -> None:
    (text,) = problems(AdapterCondition(figures=FIGURES), "eu")
    assert text.startswith("target eu: the last comparison found 1 row different; `venus verify --target eu --repair`")
    assert classify_sentence(text)[0].name == "compared_different"
    same = AdapterFigures(compared=LastComparison(ended_at_us=1, verdict="same"))
    assert problems(AdapterCondition(figures=same), "eu") == []
