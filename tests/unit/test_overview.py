"""States that `venus status` calls unhealthy, and the part that it names (features 4, scenario 36)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from venus.adapters.targets.views import TargetTable, TargetView
from venus.cli.overview import (
    BrokerView,
    ConsumerView,
    FallBackView,
    HalfView,
    LeaseView,
    Overview,
    SourceTableView,
    SourceView,
)
from venus.cli.status import (
    build_target_row,
    format_log,
    format_mirror,
    format_overview,
    format_selections,
    source_position,
    verdict,
)
from venus.cli.traffic import MirrorView
from venus.model import LOG_ROWS_COUNTED_MAX
from venus.rpc.conditions import GONE, RESYNC_FAILED, uncaptured_condition

SOURCE = SourceView(tables=(SourceTableView(table_id=2, name="main.orders", state="ACTIVE"),))
CONSUMER = ConsumerView(group="main/a", acknowledged=9, connected=True, backlog_rows=0, backlog_bytes=0, oldest_s=0.0)
BROKER = BrokerView(known=True, producer="host:1", captured_age_s=4.0, consumers=(CONSUMER,))
TARGET = TargetView(
    name="a", group="main/a", loaded=True, tables=(TargetTable(table_id=2, name="main.orders", state="ACTIVE"),)
)
HEALTHY = Overview(business="main", heartbeat_s=5.0, source=SOURCE, broker=BROKER, targets=(TARGET,))


def with_table(state: str, reason: str = "") -> TargetView:
    return replace(TARGET, tables=(replace(TARGET.tables[0], state=state, reason=reason),))


def test_a_reason_with_a_remedy_gets_no_further_hint() -> None:
    reason = "its changes are gone; `venus resync main.orders --target a` makes it equal to the full data"
    (problem,) = replace(HEALTHY, targets=(with_table("HALTED", reason),)).problems

    assert problem.endswith(f"main.orders is HALTED ({reason})")


def test_the_backlog_of_held_tables_is_in_the_targets_row() -> None:
    held = replace(HEALTHY, broker=replace(BROKER, consumers=(replace(CONSUMER, held_bytes=3 << 30),)))

    assert str(build_target_row(held, TARGET)[-1]).endswith("kept for held tables")
    assert "held" not in str(build_target_row(HEALTHY, TARGET)[-1])


def test_the_time_of_the_last_full_scrub_is_shown() -> None:
    line = "the broker last read its whole store 12 s ago: no damage"
    assert line in format_overview(replace(HEALTHY, broker=replace(BROKER, scrub_age_s=12.0)))


def test_rare_comparisons_of_the_dictionary_and_long_logs_are_shown() -> None:
    line = "the source's dictionary is compared every 35 s: DDL and missing triggers are noticed that late"
    assert line in format_overview(replace(HEALTHY, broker=replace(BROKER, compares_every_s=35)))
    assert not any("is compared every" in str(part) for part in format_overview(HEALTHY))
    table = SourceTableView(table_id=1, name="public.t", state="ACTIVE", log_rows=LOG_ROWS_COUNTED_MAX)
    few = replace(table, log_rows=7)
    assert format_log(SourceView(tables=(table, few))) == "at least 100,007 rows in the log"
    assert format_log(SourceView(tables=(few,))) == "7 rows in the log"
    assert not [part for part in format_overview(HEALTHY) if "whole store" in str(part)]


def test_a_target_unknown_to_a_new_store_is_a_problem() -> None:
    forgotten = replace(HEALTHY, broker=replace(BROKER, consumers=(), next_offset=9))
    (problem,) = forgotten.problems
    assert problem.startswith("broker -> target a: the broker does not know this target and keeps nothing for it")
    ahead = replace(HEALTHY, broker=replace(BROKER, next_offset=9), targets=(replace(TARGET, offset=10),))
    (problem,) = ahead.problems
    assert "the target is at offset 10, the broker's queue ends at 9" in problem
    assert replace(ahead, broker=replace(BROKER, next_offset=10)).is_healthy


def test_a_table_that_is_not_captured_is_a_problem() -> None:
    found = (uncaptured_condition("main.later", ""), uncaptured_condition("main.log", "has no usable key"))
    later, log = replace(HEALTHY, source=replace(SOURCE, uncaptured=found)).problems

    assert later.startswith("source: main.later matches the patterns and is not captured: `venus install-triggers`")
    assert log.startswith("source: main.log matches the patterns and cannot be captured: has no usable key; `venus ")


def test_the_holder_of_a_snapshot_is_shown() -> None:
    lease = LeaseView(holder="load of main/a", offset=1200, left_s=3000)
    line = "a snapshot at offset 1,200 is kept for load of main/a, for another 50 min if it is not read"
    assert line in format_overview(replace(HEALTHY, broker=replace(BROKER, leases=(lease,))))


def test_a_source_missing_in_this_configuration_is_no_problem_while_the_broker_knows_the_business() -> None:
    elsewhere = replace(HEALTHY, source=SourceView(asked=False))
    assert elsewhere.problems == ()
    assert "not asked" in str(source_position(elsewhere.source))

    nowhere = replace(elsewhere, broker=BrokerView(), targets=())
    assert [problem for problem in nowhere.problems if "source.url is not set" in problem]


def test_a_healthy_pipeline_has_no_problem() -> None:
    assert HEALTHY.problems == ()
    assert HEALTHY.is_healthy


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (replace(HEALTHY, source=SourceView(error="gone")), "source: gone"),
        (replace(HEALTHY, source=SourceView()), "no table is captured"),
        (replace(HEALTHY, broker=BrokerView(error="gone")), "broker: gone"),
        (replace(HEALTHY, broker=BrokerView()), "broker: it does not know business main, although it had"),
        (replace(HEALTHY, broker=replace(BROKER, producer="")), "source -> broker: capture is not connected"),
        (replace(HEALTHY, broker=replace(BROKER, captured_age_s=90.0)), "nothing has been captured for 90 s"),
        (
            replace(HEALTHY, broker=replace(BROKER, captured_age_s=90.0, halves_total=1200)),
            "for 90 s; a large transaction is being read: 1,200 half messages so far",
        ),
        (replace(HEALTHY, broker=replace(BROKER, alarms=("look",))), "broker: look"),
        (
            replace(
                HEALTHY,
                broker=replace(
                    BROKER, halves=(HalfView(batch_no=7, rows=1, bytes=1, last_sequence=1, age_s=99, reviews=15),)
                ),
            ),
            "batch 7 is undecided for 99 s after 15 reviews",
        ),
        (
            replace(HEALTHY, broker=replace(BROKER, consumers=(replace(CONSUMER, connected=False),))),
            "broker -> target a: apply is not connected",
        ),
        (
            replace(HEALTHY, broker=replace(BROKER, consumers=(replace(CONSUMER, backlog_rows=5, oldest_s=99.0),))),
            "5 changes behind, the oldest 99 s",
        ),
        (replace(HEALTHY, targets=(replace(TARGET, loaded=False),)), "run `venus migrate --target a`"),
        (replace(HEALTHY, targets=(replace(TARGET, paused=True),)), "target a: paused"),
        (replace(HEALTHY, targets=(replace(TARGET, error="gone"),)), "target a: gone"),
        (replace(HEALTHY, targets=(with_table("HALTED", "a check"),)), "main.orders is HALTED (a check)"),
        (
            replace(HEALTHY, targets=(with_table("HALTED", f"{RESYNC_FAILED}why"),)),
            "main.orders is HALTED (resync failed: why); `venus resync main.orders --target a` tries again",
        ),
        (replace(HEALTHY, targets=(replace(TARGET, open_quarantine=3),)), "3 refused changes wait"),
        (
            replace(HEALTHY, source=SourceView(tables=(replace(SOURCE.tables[0], state="RESYNC"),))),
            "`venus resync main.orders` reads it again",
        ),
        (
            replace(
                HEALTHY,
                source=SourceView(tables=(replace(SOURCE.tables[0], state="RESYNC", reason=f"{GONE}: dropped"),)),
            ),
            "`venus uninstall-triggers main.orders` takes it out of capture",
        ),
        (
            replace(HEALTHY, source=SourceView(tables=(replace(SOURCE.tables[0], blocked_s=600.0),))),
            "main.orders waits for a transaction open for 600 s",
        ),
        (
            replace(
                HEALTHY,
                source=SourceView(tables=(replace(SOURCE.tables[0], blocked_s=600.0),), blocked_by="session 7"),
            ),
            "main.orders waits for a transaction open for 600 s; open: session 7",
        ),
    ],
)
def test_each_problem_is_named_with_its_part(found: Overview, says: str) -> None:
    assert not found.is_healthy
    assert any(says in problem for problem in found.problems), found.problems


def test_an_unfinished_switch_is_the_only_problem_of_the_parts_that_wait_for_it() -> None:
    waits = replace(HEALTHY, broker=replace(BROKER, producer=""), targets=(replace(TARGET, loaded=False),))
    switching = FallBackView(problem="the switch to main is not finished", waiting="a")
    assert len(waits.problems) == 2
    assert replace(waits, fall_back=switching).problems == (switching.problem,)
    away = replace(waits, targets=(replace(TARGET, error="gone"),), fall_back=switching)
    assert away.problems == (switching.problem, "target a: gone")


def test_an_idle_source_is_healthy_within_a_few_heartbeats() -> None:
    assert replace(HEALTHY, broker=replace(BROKER, captured_age_s=24.0)).is_healthy
    assert not replace(HEALTHY, broker=replace(BROKER, captured_age_s=26.0)).is_healthy


def test_capture_is_judged_by_the_brokers_clock() -> None:
    """The source's clock may be hours ahead, or behind."""
    works = replace(BROKER, captured_age_s=7200.0, committed_age_s=1.0, ship_s=7199.0)
    (problem,) = replace(HEALTHY, broker=works).problems
    assert "or that clock is behind the broker's" in problem
    dead = replace(BROKER, captured_age_s=0.0, committed_age_s=90.0, ship_s=-7200.0)
    (problem,) = replace(HEALTHY, broker=dead).problems
    assert problem.endswith("nothing has been captured for 90 s")
    (problem,) = replace(HEALTHY, broker=replace(dead, committed_age_s=1.0)).problems
    assert "the source's clock is 7,200 s ahead" in problem
    assert replace(HEALTHY, broker=replace(works, captured_age_s=20.0, ship_s=19.0)).is_healthy


def test_a_table_that_the_source_no_longer_knows_is_named() -> None:
    later = replace(TARGET.tables[0], table_id=3, name="main.later")
    found = replace(HEALTHY, targets=(replace(TARGET, tables=(*TARGET.tables, later)),))
    (said,) = found.release_notices
    assert said.startswith("main.later is not known to the source, which was restored to a time before its capture")
    assert not HEALTHY.release_notices
    assert not replace(found, source=SourceView()).release_notices
    assert not replace(found, source=SourceView(error="away")).release_notices


def test_a_table_that_catches_up_is_healthy() -> None:
    assert replace(HEALTHY, targets=(with_table("CATCHUP"),)).is_healthy


def test_a_paused_target_is_not_reported_twice() -> None:
    broker = replace(BROKER, consumers=(replace(CONSUMER, connected=False),))

    assert len(replace(HEALTHY, broker=broker, targets=(replace(TARGET, paused=True),)).problems) == 1


def test_a_target_that_was_cut_over_is_checked_for_late_writes_only() -> None:
    own = replace(TARGET, cut_over="2026-11-21 17:00:00 UTC", paused=True, committed_at_cut={2: 5})
    quiet = replace(HEALTHY, targets=(own,), broker=replace(BROKER, committed_changes={2: 5}))
    late = replace(quiet, broker=replace(quiet.broker, committed_changes={2: 8}))

    assert quiet.problems == ()
    assert verdict(quiet) == "OK: main is healthy, and every target was cut over"
    assert late.problems == (
        "target a: 3 changes of main.orders at the source since the cut-over (2026-11-21 17:00:00 UTC); "
        "they are not carried over",
    )


def test_an_error_about_a_part_of_the_configuration_keeps_its_name() -> None:
    wrong = TargetView(name="a", group="main/a", error="targets.a.url: mysql is not a target that VENUS knows")

    assert "target a: targets.a.url: mysql is not" in str(replace(HEALTHY, targets=(wrong,)).problems)


def test_a_tables_predicate_is_shown_with_the_progress_of_its_change() -> None:
    def lines(**table: object) -> list[str]:
        changed = replace(TARGET.tables[0], **table)  # type: ignore[arg-type]
        found = replace(HEALTHY, targets=(replace(TARGET, tables=(changed,)),))
        assert found.is_healthy
        return format_selections(found)

    where = "target a: main.orders gets the rows where region = 'EU'"
    assert lines() == []
    assert lines(predicate="region = 'EU'") == [where]
    assert lines(predicate="region = 'EU'", predicate_before="") == [
        f"{where}; previously every row, the difference is being added and removed"
    ]
    assert lines(predicate="region = 'EU'", rows_brought=1200, rows_removed=3) == [
        f"{where}; the last change of that added 1,200 rows and removed 3"
    ]
    assert lines(predicate="region = 'EU'", columns="email (hmac); masking key 1a2b3c4d") == [
        where,
        "target a: main.orders gets these columns changed: email (hmac); masking key 1a2b3c4d",
    ]
    assert lines(rows_brought=5) == [
        "target a: main.orders gets every row; the last change of that added 5 rows and removed 0"
    ]
    assert lines(predicate_configured="region = 'US'") == [
        "target a: main.orders gets every row; configured is the rows where region = 'US', "
        "which `venus sync` applies at its start"
    ]


def test_a_mirror_that_is_cut_off_does_not_claim_to_be_up_to_date() -> None:
    view = MirrorView(
        path=("home", "eu"),
        state="cut off",
        reason="no answer",
        since_s=12.0,
        address="",
        lag=0,
        lag_s=0.0,
        hop_s=0.0,
        hop_mean_s=0.0,
        hop_deviation_s=0.0,
        bytes=2048,
        rows=0,
        rows_expected=0,
    )

    assert format_mirror(view) == (
        "mirror of home -> eu: cut off for 12 s; it was level then; 2.0 KiB pulled: no answer"
    )
    assert "it is level" in format_mirror(replace(view, state="following"))
    away = replace(view, state="following", nearest="north", away_s=75.0, not_back="it does not answer: no")
    assert format_mirror(away).endswith(
        "pulled: no answer; not from set north, the nearest, for 75 s: it does not answer: no"
    )
    some = format_mirror(replace(view, only=("orders", "items"), where=("orders where a = 1", "items where b = 2")))
    assert some.startswith(
        "mirror of orders, items of home -> eu (only rows of orders where a = 1; of items where b = 2): cut off"
    )


def test_a_set_that_pulls_from_here_is_listed_and_missed_as_a_set() -> None:
    lyon = replace(CONSUMER, group="mirror/lyon", acknowledged=990)
    below = replace(HEALTHY, broker=replace(BROKER, consumers=(CONSUMER, lyon)))
    assert below.is_healthy
    assert "set lyon below: offset 990, level" in format_overview(below)

    away = replace(lyon, connected=False, backlog_rows=551, oldest_s=75.0)
    missed = replace(HEALTHY, broker=replace(BROKER, consumers=(CONSUMER, away)))
    assert missed.problems == (
        "broker -> set lyon: it does not pull, 551 changes behind, the oldest 75 s; "
        "the queue is kept for it: is its broker running, and the line up?",
    )
    assert "set lyon below: offset 990, 551 changes behind, 75 s; it does not pull" in format_overview(missed)
