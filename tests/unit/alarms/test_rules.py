"""Every sentence about an operator's task matches a rule, and stays the same alarm when its figures change."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from venus import broker
from venus.adapters.targets.switching import SideRecord, SideState, describe_switch, switch_command
from venus.broker.machine.loss import divergence_message
from venus.broker.mirrors import upstream_selection
from venus.broker.mirrors.mirror_status import mirror_alarms
from venus.broker.mirrors.topology_position import (
    SetPosition,
    find_absent_labels,
    find_missing_labels,
    find_missing_rows,
    find_unmatched_predicates,
)
from venus.broker.mirrors.upstream_selection import build_away_alarm
from venus.broker.pipeline.group import halt_reason
from venus.broker.replicas.replication_status import loss_alarms
from venus.broker.replicas.replication_status import replication_alarms as replication_alarms
from venus.broker.store.files import full_disk_message
from venus.model import Column, Kind, LogicalType, TableSchema
from venus.network.directory import ReportedSet, SetDirectory
from venus.network.row_filters import RowFilter
from venus.network.topology import Tier
from venus.replication.messages import Reinstall
from venus.replication.records import Leadership, LossWindow, Member
from venus.rpc import conditions
from venus.rpc.conditions import (
    AdapterCondition,
    TableCondition,
    problems,
    switch_conditions,
    unaccounted_problem,
)
from venus.text import alarm_rules
from venus.text.alarm_rules import NAMES, OTHER, RULES, classify_sentence, find_commands, hop_of
from venus.wire import broker_pb2

ACCESS = SetPosition(set="lyon", tier="access", level=2, labels=frozenset({"us"}))
EU = (RowFilter(table="orders", predicate="a = 1"),)
ORDERS = TableSchema(
    table_id=1,
    version=1,
    namespace="shop",
    name="orders",
    key=("a",),
    columns=(Column(name="a", number=1, type=LogicalType(kind=Kind.INT, length=8)),),
)
AWAY = upstream_selection.AwayFromNearest(
    at="south", nearest="north", since=0.0, kind=upstream_selection.FitnessKind.SILENT, why="no", checked_at=0.0
)
ABOVE = broker_pb2.NetworkStatus(set="europe", tier="tandem", level=1, labels=["eu"])


def directory_problems() -> list[str]:
    """Return the directory's problems about a second set with its own name."""
    own = ReportedSet(name="lyon", set_id="a", tier=Tier.ACCESS, level=2, addresses=("a:1",))
    found = SetDirectory()
    found.record_own(own)
    found.on_answer([replace(own, set_id="b", addresses=("b:1",))], 0.0)
    return found.problems(0.0)


def of_table(state: str, target: str = "", reason: str = "") -> list[str]:
    return problems(
        AdapterCondition.of([TableCondition(table_id=1, name="app.a b", state=state, reason=reason)]), target
    )


@pytest.mark.parametrize(
    ("said", "rule", "subject", "hop"),
    [
        (of_table("HALTED"), "table_halted", "source: app.a b", "source"),
        (of_table("RESYNC", "eu"), "table_halted", "target eu: app.a b", "target"),
        (of_table("HALTED", "eu", "row 5: app.b is PAUSED"), "table_halted", "target eu: app.a b", "target"),
        (of_table("ACTIVE", "eu", "resync failed: x; y"), "resync_failed", "target eu: app.a b", "target"),
        (of_table("RELEASING"), "table_releasing", "source: app.a b", "source"),
        (of_table("NOT_CAPTURED"), "table_not_captured", "source: app.a b", "source"),
        (of_table("NOT_CAPTURED", reason="it is HALTED"), "table_not_captured", "source: app.a b", "source"),
        (of_table("PAUSED", "eu"), "table_paused", "target eu: app.a b", "target"),
        (problems(AdapterCondition(paused=True), "eu"), "paused", "target eu", "target"),
        (problems(AdapterCondition(left_out=1200)), "tables_many", "source", "source"),
        (problems(AdapterCondition(quarantined=1200), "eu"), "quarantine", "target eu", "target"),
        ([unaccounted_problem(1200, "eu")], "unaccounted", "target eu", "target"),
        ([unaccounted_problem(1, "eu")], "unaccounted", "target eu", "target"),
        ([unaccounted_problem(-3, "eu")], "unaccounted", "target eu", "target"),
    ],
)
def test_reports_of_adapters_match_a_rule(said: list[str], rule: str, subject: str, hop: str) -> None:
    (sentence,) = said
    found, about = classify_sentence(sentence)

    assert (found.name, about, hop_of(found, sentence)) == (rule, subject, hop)


def test_reports_of_replicas_match_a_rule() -> None:
    status = broker_pb2.ReplicationStatus(trouble="cannot follow b2: its log differs", refusal="one of two is there")
    status.replicas.add(broker="b2")
    status.replicas.add(broker="b3", alive=True)
    said = replication_alarms(status, leads=True)
    status.leader = "b1"
    said += replication_alarms(status, leads=True)

    names = [classify_sentence(sentence)[0].name for sentence in said]

    assert OTHER not in names
    assert set(names) == {"replica_installed", "no_leader", "not_writable", "replica_gone", "replica_late"}


@pytest.mark.parametrize(
    ("sentences", "rule", "subject"),
    [
        (["set home does not answer for 7 s, the local data of main is served: no"], "mirror_cut_off", "home"),
        (["the set above does not answer for 7 s: no"], "mirror_cut_off", ""),
        ([build_away_alarm(AWAY, "main, stock", 75.0)], "mirror_away", "north"),
        (
            ["the promotion of this set to the home (home term 2) may have lost offsets 3 to 5 (1 change in batches)"],
            "changes_lost",
            "2",
        ),
        (["this set was promoted and is the home of main, though [cluster] upstream still"], "home_promoted", ""),
        (["this home was replaced: set second at b:1 has become it"], "home_replaced", ""),
        (["set hq at a:1 is a home of main as well: it cannot be asked to step down: no"], "two_homes", "main"),
        (["a broker at a:1 answers, and may take writes as the former home: denied"], "two_homes", "a:1"),
        (mirror_alarms(broker_pb2.MirrorStatus(state="waiting", set="home", reason="no")), "mirror_waits", ""),
        (mirror_alarms(broker_pb2.MirrorStatus(state="refused", set="home", reason="no")), "mirror_refused", ""),
        (
            ["this set mirrors nothing new: eu has no role consumer(mirror/eu, *) at the set above"],
            "mirror_refused",
            "",
        ),
        (["this set mirrors nothing: the sets are in a loop: a -> a"], "mirror_refused", ""),
        (mirror_alarms(broker_pb2.MirrorStatus(state="filling", reason="trimmed")), "mirror_filled", ""),
        (directory_problems(), "sets_contradict", "lyon"),
        (find_absent_labels({"eu": ["ordres"]}, ["eu"], [], []), "label_absent", "eu names ordres"),
        (find_missing_labels(ACCESS, ABOVE), "label_short", "lyon"),
        (find_unmatched_predicates({"shop": EU}, {}, "hq"), "predicate_absent", "shop"),
        (find_unmatched_predicates({"shop": EU}, {"shop": {"items"}}, "hq"), "predicate_absent", "shop"),
        (find_missing_rows((), EU, [ORDERS], "lyon", "hq"), "predicate_short", "lyon"),
        (
            ["table shop.orders is no longer mirrored: its predicate (a = 1) does not fit version 2: character 1"],
            "mirror_table_refused",
            "shop.orders",
        ),
        (find_missing_labels(replace(ACCESS, labels=frozenset()), ABOVE), "label_short", "lyon"),
    ],
)
def test_reports_of_mirrors_match_a_rule(sentences: list[str], rule: str, subject: str) -> None:
    (sentence,) = sentences
    found, about = classify_sentence(sentence)

    assert (found.name, about, hop_of(found, sentence)) == (rule, subject, "broker")


def test_reports_of_losses_and_stopped_replicas_match_a_rule() -> None:
    known = Leadership(
        business="main",
        term=7,
        leader=None,
        in_sync=frozenset(),
        unclean_terms=(6, 7),
        losses=(LossWindow(term=6, first_offset=10, end_offset=28, rows=15),),
    )
    stopped = Reinstall(leader=Member(broker="b2", store="s"), reason="its log has others from 7 on", diverged=True)
    said = [*loss_alarms(known), halt_reason(17, ValueError("no")), divergence_message(stopped)]

    assert [(classify_sentence(sentence)[0].name, classify_sentence(sentence)[1]) for sentence in said] == [
        ("changes_lost", "6"),
        ("changes_lost", "7"),
        ("replica_stopped", ""),
        ("replica_stopped", "b2"),
    ]
    assert find_commands(said[0]) == ["venus verify --repair"]
    installed = "main is being installed again: cannot follow b2: its log starts at 7; 12 records received"
    assert classify_sentence(installed)[0].name == "replica_installed"
    record = "a record of the coordinator cannot be used: /venus/x/brokers/b cannot be used: it is not JSON; let all"
    assert classify_sentence(record) == (classify_sentence(record)[0], "/venus/x/brokers/b")
    assert classify_sentence(record)[0].name == "coordinator_record"


@pytest.mark.parametrize("ship_s", [-7200.0, 7200.0])
def test_clocks_that_differ_match_a_rule(ship_s: float) -> None:
    sentence = conditions.clock_problem(ship_s, 60.0)
    found, about = classify_sentence(sentence)

    assert (found.name, about, hop_of(found, sentence)) == ("clocks_differ", "", "source")
    assert conditions.clock_problem(ship_s / 200, 60.0) == ""


def test_a_degraded_lane_matches_a_rule_and_is_one_alarm_for_each_lane() -> None:
    said = "lane {} (details) is degraded since 2026-11-22 12:00:00 UTC: CPU is at 95 %, the limit is 90 %"
    assert [(rule.name, lane) for rule, lane in (classify_sentence(said.format(n)) for n in (4, 3))] == [
        ("lane_degraded", "4"),
        ("lane_degraded", "3"),
    ]


def test_a_full_disk_matches_a_rule_and_names_the_remedy() -> None:
    said = full_disk_message(Path("/srv/venus"), 3 << 20, 512 << 20)

    assert said.startswith("too little free space: /srv/venus has only 3 MiB free, 512 MiB are needed: ")
    assert "free some space there" in said
    assert classify_sentence(said)[0].name == "disk_space"
    assert f" {Path.cwd()}/data has only " in full_disk_message(Path("data"), 3 << 20, 512 << 20), (
        "it is another machine's folder"
    )


def test_figures_do_not_make_another_alarm() -> None:
    early, late = (
        "half message 7 has been undecided for 61 s (1 of them)",
        "half message 7 has been undecided for 90 s",
    )
    assert classify_sentence(early) == classify_sentence(late)
    assert classify_sentence("something new has 5 of 1,200") == classify_sentence("something new has 17 of 2,400.5")
    assert classify_sentence("something new has 5")[0].name == OTHER


def test_every_state_that_needs_an_operator_is_a_kind_of_alarm() -> None:
    for state in conditions.HELD_STATES:
        (sentence,) = of_table(state)
        assert classify_sentence(sentence)[0].name != OTHER


@pytest.mark.parametrize("states", [("CLOSED", "FOLLOWING"), ("STOPPED", "FOLLOWING"), ("STOPPED", "OPEN")])
@pytest.mark.parametrize("names", [("@source", "main"), ("main", "@source")])
def test_an_unfinished_switch_is_a_kind_of_alarm(names: tuple[str, str], states: tuple[str, str]) -> None:
    records = {
        name: SideRecord(business="shop", name=name, peer=peer, state=SideState(state), switch=1)
        for name, peer, state in zip(names, reversed(names), states, strict=True)
    }
    _, advice = describe_switch(records)
    for target in ("", "main"):
        (sentence,) = problems(AdapterCondition(tables=switch_conditions(advice)), target)
        assert classify_sentence(sentence)[0].name == "switch_unfinished"
        assert find_commands(sentence)[0] == switch_command(names[1])
    assert problems(AdapterCondition(tables=switch_conditions(""))) == []


def test_commands_to_type_are_extracted_from_the_sentence() -> None:
    (sentence,) = of_table("RESYNC", "eu")
    assert find_commands(sentence) == ["venus resync app.a b --target eu"]


def test_rules_have_unique_names() -> None:
    assert len(set(NAMES)) == len(RULES) + 1
    assert all(alarm_rules.min_duration_s(name) >= 0 for name in NAMES)


def test_every_sentence_of_a_broker_matches_a_rule() -> None:
    """Every literal that the broker appends to alarms, with figures and names filled in."""
    folder = Path(broker.__file__).parent
    code = "".join(path.read_text() for path in folder.rglob("*.py"))
    literals = re.findall(r'alarms\.append\(\s*f?"((?:[^"\\]|\\.)+)"', code)
    said = [re.sub(r"\{[^}]*\}", "7", literal) for literal in literals]

    assert len(said) >= 9
    assert [sentence for sentence in said if classify_sentence(sentence)[0].name == OTHER] == []
