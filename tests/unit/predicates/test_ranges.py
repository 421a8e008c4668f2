"""The canonical form: one for all texts with the same meaning, and itself a text with that meaning."""

from __future__ import annotations

import random

import pytest

from tests.support.predicates.generators import SCHEMA, random_predicate
from venus.predicates.ranges import compile_predicate, is_same
from venus.predicates.syntax import PredicateRefused, parse, to_sql


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        (
            "REGION='EU'  AND (amount between 1 and 5.50) and 3 < Amount",
            '"amount" > 3 and "amount" <= 5.5 and "region" = \'EU\'',
        ),
        ("number in (3, 2, 1, 3) and number > 1", '"number" in (2, 3)'),
        ("amount >= 5 and amount <= 5.0", '"amount" = 5'),
        ("amount > 1 and amount >= 1 and amount > 0", '"amount" > 1'),
        ("amount is not null and amount < +1e3", '"amount" < 1000'),
        ("amount is not null", '"amount" is not null'),
        ("amount > -0.0", '"amount" > 0'),
        ("seen >= timestamptz '2026-01-01T02:00+02:00'", "\"seen\" >= '2026-01-01 00:00:00+00'"),
        ("placed = '2026-01-01'", "\"placed\" = '2026-01-01 00:00:00'"),
        ("clock < '12:30:00.500'", "\"clock\" < '12:30:00.5'"),
        ("mark = 'A0000000000000000000000000000000'", "\"mark\" = 'a0000000-0000-0000-0000-000000000000'"),
        ("code = 'a '", "\"code\" = 'a'"),
        ("good = true", '"good" = true'),
        ("region = 'it''s'", "\"region\" = 'it''s'"),
    ],
)
def test_equal_predicates_have_one_canonical_form(text: str, canonical: str) -> None:
    found = compile_predicate(text, SCHEMA)

    assert found.canonical == canonical
    assert compile_predicate(found.canonical, SCHEMA).digest == found.digest
    assert is_same(text, canonical, [SCHEMA])


def test_the_canonical_form_has_its_own_meaning() -> None:
    rng = random.Random(12)
    refused = 0
    for _ in range(800):
        text = random_predicate(rng)
        try:
            found = compile_predicate(text, SCHEMA)
        except PredicateRefused:
            refused += 1
            continue
        assert compile_predicate(found.canonical, SCHEMA) == found
        assert compile_predicate(to_sql(parse(text)), SCHEMA) == found
    assert refused < 200


def test_other_ranges_have_other_names() -> None:
    texts = ["amount > 1", "amount >= 1", "amount = 1", "amount < 1", "free > 1", "amount > 1 and free > 1"]

    assert len({compile_predicate(text, SCHEMA).digest for text in texts}) == len(texts)
    assert not is_same("amount > 1", "amount >= 1", [SCHEMA])
    assert not is_same("amount > 1", "", [SCHEMA])
    assert not is_same("gone > 1", "amount > 1", [SCHEMA])
    assert is_same("gone > 1", "gone > 1", [SCHEMA])
