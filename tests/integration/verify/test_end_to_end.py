"""`venus verify` over a whole running pipeline, for each dialect."""

from __future__ import annotations

import pytest

from tests.integration.verify.conftest import VerifiedSource
from tests.support.pipelines.end_to_end import difference_keys, values
from venus.adapters.verify.findings import ComparisonVerdict
from venus.adapters.verify.repair import run_repair

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

DAMAGE = (
    "DELETE FROM item WHERE id = 70",
    "UPDATE item SET name = 'changed', note = NULL WHERE id = 77",
    "INSERT INTO item (id, name) VALUES (-5, 'ghost')",
    "UPDATE item SET at = at + interval '1 microsecond' WHERE id = 84",
    "UPDATE word SET n = n + 1 WHERE w LIKE 'wörd 5 %'",
    "DELETE FROM line WHERE no = 3 AND pos = 'p1'",
)
APPLY = {
    ("item", ("70",), "missing", "apply"),
    ("item", ("77",), "different", "apply"),
    ("item", ("-5",), "extra", "apply"),
    ("item", ("84",), "different", "apply"),
    ("word", ("wörd 5 🍀 ünï.",), "different", "apply"),
    ("line", ("3", "p1"), "missing", "apply"),
}
CAPTURE = {
    ("item", ("91",), "different", "capture"),
    ("item", ("98",), "extra", "capture"),
    ("item", ("1",), "missing", "capture"),
    ("word", ("new",), "missing", "capture"),
}

#: Changes of a planted difference before its repair: the row is deleted, inserted, or changed once more.
MEANWHILE = (
    "DELETE FROM item WHERE id = 77",
    "INSERT INTO item (id, name) VALUES (-5, 'real')",
    "UPDATE item SET name = 'newer' WHERE id = 91",
)


def damage(sample: VerifiedSource) -> None:
    """Write differences to the target, and to the source without its triggers."""
    schema = sample.e2e.settings.targets["main"].schema_ or "public"
    namespace = {"mysql": sample.place.namespace}.get(sample.place.dialect, schema)
    sample.e2e.at_target(f'SET search_path = "{namespace}"', *DAMAGE)
    sample.bypass(
        "UPDATE item SET price = 1 WHERE id = 91",
        "DELETE FROM item WHERE id = 98",
        "INSERT INTO item (id, name) VALUES (1, 'bypass')",
        "INSERT INTO word (w, n) VALUES ('new', 1)",
    )


def test_planted_differences_are_found_exactly_and_repaired(sample: VerifiedSource) -> None:
    e2e = sample.e2e
    for options in ({}, {"leg": "all"}, {"mode": "scan"}, {"digest": "sha256"}):
        same = e2e.verify(**options)
        assert same.verdict is ComparisonVerdict.SAME, (options, same.differences, same.undecided_rows)
        assert {t.rows for t in same.tables} == {600}
    assert "checksums by target" in {t.table.partition(".")[2]: t.method for t in same.tables}["word"]

    damage(sample)

    ends = e2e.verify()
    assert difference_keys(ends) == APPLY | CAPTURE
    assert ends.verdict is ComparisonVerdict.DIFFERENT
    assert not ends.undecided_rows
    changed = values(ends, "item", ["77"])
    assert changed["name"]["target"] == "changed"
    assert changed["name"]["source"] == changed["name"]["full data"] == "O'Brien11" or changed["name"]["source"] is None
    assert values(ends, "item", ["84"]).keys() == {"at"}
    assert values(ends, "item", ["91"])["price"] == {"source": "1.00", "full data": "13.13", "target": "13.13"} or (
        values(ends, "item", ["91"])["price"]["source"] == "1.00"
    )
    assert difference_keys(e2e.verify(leg="target")) == APPLY
    assert difference_keys(e2e.verify(leg="source")) == CAPTURE
    assert difference_keys(e2e.verify(leg="all", mode="scan")) == APPLY | CAPTURE

    sample.bypass(*MEANWHILE)
    done = run_repair(e2e.settings, "main", ends, wait_s=60)
    assert done.left == []
    assert done.repaired == len(APPLY | CAPTURE)
    for leg in ("ends", "all"):
        again = e2e.verify(leg=leg)
        assert again.verdict is ComparisonVerdict.SAME, (again.differences, again.undecided_rows)
