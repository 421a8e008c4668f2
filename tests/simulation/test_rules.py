"""Each rule of the protocol taken out once: the simulation shows what breaks without it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulation.patching import edited
from tests.simulation.rules import RULES, Rule
from tests.simulation.search import first_violation, row, violation

#: Those whose absence has been seen to break something; the others wait for a sharper simulation.
SHOWN = [rule for rule in RULES if rule.seed >= 0]
DOCUMENT = Path(__file__).parents[2] / "docs" / "REPLICATION.md"


@pytest.mark.parametrize("rule", SHOWN, ids=lambda rule: rule.text)
def test_without_a_rule_an_invariant_breaks(rule: Rule) -> None:
    with edited(rule.edits):
        assert violation(rule.seed) == rule.invariant
    assert violation(rule.seed) is None, "the edit was not taken back"


@pytest.mark.slow
@pytest.mark.parametrize("rule", SHOWN, ids=lambda rule: rule.text)
def test_a_missing_rule_is_found_within_a_thousand_histories(rule: Rule) -> None:
    assert first_violation(rule, range(1000)) is not None


def test_the_document_lists_every_rule() -> None:
    lines = DOCUMENT.read_text().splitlines()
    table = lines.index("|---|---|---|") + 1

    assert lines[table : table + len(SHOWN)] == [row(rule) for rule in SHOWN]
    assert [line for line in lines[table + len(SHOWN) :] if line.startswith(("|", "-"))] == [
        f"- {rule.text}" for rule in RULES if rule.seed < 0
    ]
