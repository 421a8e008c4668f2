"""Thousands of histories of switches; if any one of the rules is removed, a history breaks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.simulation.patching import SourceEdit, apply_edits
from tests.simulation.switches.databases import Mechanisms
from tests.simulation.switches.world import World, first_violation

_SWITCH = "venus.adapters.cutover.switch:Switch"

#: Name of each rule, and the edit that removes it.
EDITS = {
    "the former owner follows from the cut at which the new one was opened": (
        SourceEdit(
            where=f"{_SWITCH}._start_following",
            old="self.run_step(self.owner, lambda: self.owner.follow(record, start))",
            new="from dataclasses import replace\n"
            "    start = replace(start, offset=len(self.world.broker.queue))\n"
            "    self.owner.follow(replace(record, offset=start.offset), start)",
        ),
    ),
    "only one process switches": (SourceEdit(where=f"{_SWITCH}.reopen", old="session.lock_switch()", new="pass"),),
    "the former owner stays closed once the new one is open": (
        SourceEdit(where=f"{_SWITCH}.reopen_on_failure", old="if self.step in (Step.STOP, Step.OPEN):", new="if True:"),
        SourceEdit(where=f"{_SWITCH}.reopen", old="if step not in (Step.STOP, Step.OPEN):", new="if False:"),
    ),
}


def test_no_history_breaks_an_invariant() -> None:
    assert first_violation(Mechanisms(), range(300)) == ""


@pytest.mark.slow
def test_thousands_of_histories_hold() -> None:
    assert first_violation(Mechanisms(), range(300, 12_000)) == ""


def test_histories_contain_many_switches() -> None:
    counts = []
    for seed in range(40):
        world = World(seed)
        world.run()
        counts.append(world.switches)
    assert max(counts) >= 6
    assert sum(counts) >= 80


@pytest.mark.parametrize("rule", Mechanisms.__dataclass_fields__)
def test_without_a_rule_a_history_breaks(rule: str) -> None:
    assert first_violation(replace(Mechanisms(), **{rule: False}), range(400)) != ""


@pytest.mark.parametrize("rule", EDITS)
def test_without_a_rule_of_the_switch_a_history_breaks(rule: str) -> None:
    with apply_edits(EDITS[rule]):
        assert first_violation(Mechanisms(), range(400)) != ""
