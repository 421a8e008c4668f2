"""Labels of an enum: renamed and added ones, and the effect of the printed statements."""

from __future__ import annotations

import random
import re

import pytest

from venus.adapters.targets.postgresql.schema.own_types import is_within, plan_label_change, statements_by_position

_RENAME = re.compile(r"ALTER TYPE t RENAME VALUE '(.+)' TO '(.+)'")
_ADD = re.compile(r"ALTER TYPE t ADD VALUE IF NOT EXISTS '(\w+)'(?: (AFTER|BEFORE) '(\w+)')?")


def run(labels: list[str], *statements: str) -> list[str]:
    """Execute the statements as PostgreSQL would."""
    labels = list(labels)
    for text in statements:
        if renamed := _RENAME.fullmatch(text):
            assert renamed[2] not in labels, text
            labels[labels.index(renamed[1])] = renamed[2]
        elif added := _ADD.fullmatch(text):
            assert added[1] not in labels, text
            place = labels.index(added[3]) + (added[2] == "AFTER") if added[2] else len(labels)
            labels.insert(place, added[1])
        else:
            raise AssertionError(text)
    return labels


@pytest.mark.parametrize(
    ("known", "wanted", "there", "after"),
    [
        ("ab", "ab", "ab", "ab"),
        ("ab", "ac", "ab", "ac"),  # renamed
        ("ab", "ac", "ac", "ac"),  # by another table's version, or by a user
        ("ab", "cd", "ab", "cd"),
        ("ab", "ac", "abx", "acx"),  # more labels here
        ("ab", "axb", "ab", "axb"),  # added
        ("ab", "xab", "ab", "xab"),
        ("ab", "ac", "ad", "acd"),  # a later version has renamed it here
        ("ab", "axc", "ab", "axcb"),  # a renaming that looks like a new type
        ("abc", "acd", "abc", "abcd"),  # the type was created again without one label and with another
        ("abc", "ac", "abc", "abc"),
        ("", "ac", "ab", "ac"),
    ],
)
def test_labels_are_followed(known: str, wanted: str, there: str, after: str) -> None:
    change = plan_label_change("t", tuple(wanted), tuple(there), tuple(known))
    assert change.settled
    assert run(list(there), *change.added, *change.renamed) == list(after)


@pytest.mark.parametrize(("known", "wanted"), [("ab", "ba"), ("abc", "cxa")])
def test_another_order_is_not_followed(known: str, wanted: str) -> None:
    assert not plan_label_change("t", tuple(wanted), tuple(known), tuple(known)).settled


def test_printed_statements_make_any_labels_equal_to_the_sources() -> None:
    chance = random.Random(7)
    for _ in range(500):
        there, wanted = (chance.sample("abcdefg", chance.randint(1, 7)) for _ in range(2))
        after = run(there, *statements_by_position("t", wanted, there))
        assert is_within(wanted, after), (there, wanted)
        assert after[: len(wanted)] == wanted
