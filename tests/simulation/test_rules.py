"""Each rule of the protocol is removed once: the simulation shows which invariant breaks."""

from __future__ import annotations

import pytest

from tests.simulation.patching import apply_edits, function_of
from tests.simulation.rules import RULES, Rule
from tests.simulation.search import first_violation, violation


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.text)
def test_without_a_rule_an_invariant_breaks(rule: Rule) -> None:
    with apply_edits(rule.edits):
        assert violation(rule.seed) == rule.invariant


def test_an_edit_is_reverted() -> None:
    (edit,) = RULES[0].edits
    before = function_of(edit.where).__code__
    with apply_edits(RULES[0].edits):
        assert function_of(edit.where).__code__ is not before
    assert function_of(edit.where).__code__ is before


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.text)
def test_a_missing_rule_is_found_within_two_thousand_histories(rule: Rule) -> None:
    assert first_violation(rule, range(2000)) is not None
