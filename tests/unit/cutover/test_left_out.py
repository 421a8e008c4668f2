"""A table that is not captured forbids a cut-over unless it is excluded by name, and the certificate then lists it."""

from __future__ import annotations

import pytest

from venus.adapters.cutover import certificate
from venus.adapters.cutover.certificate import choose_left_out, find_uncaptured_table_obstacles, left_out_document
from venus.adapters.cutover.readiness import relevant_alarms
from venus.adapters.dialects.contract import UncapturedTable
from venus.errors import ConfigError
from venus.rpc.conditions import AdapterCondition, problems, source_condition, uncaptured_condition
from venus.rpc.reports import encode
from venus.wire import broker_pb2

LATER = UncapturedTable(name="shop.later")
KEYLESS = UncapturedTable(name="shop.keyless", obstacle="has no usable key")
OTHER = UncapturedTable(name="staff.later")
HEAD = {
    "venus": "1",
    "kind": "certificate",
    "target": "a",
    "business": "main",
    "made_at": "now",
    "made_by": "me",
    "source_url": "s",
    "target_url": "t",
    "sequence": 1,
    "offset": 2,
}


def test_each_uncaptured_table_is_an_obstacle_with_both_remedies() -> None:
    later, keyless = (block.line for block in find_uncaptured_table_obstacles([LATER, KEYLESS], []))

    assert later == (
        "shop.later matches the patterns and is not captured: venus install-triggers; to go without it: "
        "--leave-out shop.later"
    )
    assert keyless.startswith("shop.keyless matches the patterns and cannot be captured: has no usable key: ")
    assert keyless.endswith("--leave-out shop.keyless")


def test_a_table_excluded_by_name_is_no_obstacle() -> None:
    uncaptured = [LATER, KEYLESS]

    left_out = choose_left_out(uncaptured, ("later", "shop.later"))

    assert left_out == [LATER]
    assert [b.what.partition(" ")[0] for b in find_uncaptured_table_obstacles(uncaptured, left_out)] == ["shop.keyless"]
    assert find_uncaptured_table_obstacles(uncaptured, choose_left_out(uncaptured, ("shop.later", "keyless"))) == []


@pytest.mark.parametrize(
    ("uncaptured", "name", "said"),
    [
        ([LATER, OTHER], "later", "write shop.later or staff.later"),
        ([LATER], "shop.latr", r"no such table is left to capture \(did you mean shop.later\?\)"),
        ([], "shop.orders", "no such table is left to capture"),
        ([LATER], "*", "no such table is left to capture"),
    ],
)
def test_a_name_that_matches_no_table_or_several_is_refused(
    uncaptured: list[UncapturedTable], name: str, said: str
) -> None:
    with pytest.raises(ConfigError, match=f"--leave-out .*{said}"):
        choose_left_out(uncaptured, (name,))


def test_the_certificate_lists_the_excluded_tables() -> None:
    def build_document(left_out: list[UncapturedTable], **released: str) -> dict[str, object]:
        return certificate.to_document(
            head=HEAD,
            tables=[],
            foreign_keys=[],
            counters=[],
            left_out=[],
            tables_left_out=left_out_document(left_out, released),
        )

    found = build_document([LATER, KEYLESS])

    assert found["tables_left_out"] == [
        {"table": "shop.later", "reason": "not captured"},
        {"table": "shop.keyless", "reason": "has no usable key"},
    ]
    text = certificate.to_text(found)
    assert "tables left out by the operator, neither captured nor compared: 2\n  ! shop.later: not captured" in text
    assert "tables left out" not in certificate.to_text(build_document([]))
    assert build_document([], orders="by an operator")["tables_left_out"] == [
        {"table": "orders", "reason": "not captured any more (by an operator)"}
    ]
    older = build_document([])
    del older["tables_left_out"]  # as an older version wrote it at the target
    assert "tables left out" not in certificate.to_text(older)


def test_an_alarm_about_excluded_tables_forbids_nothing_after_the_check() -> None:
    condition = AdapterCondition.of(
        [
            source_condition(1, "shop.orders", "RESYNC", "why"),
            uncaptured_condition("shop.later", ""),
            uncaptured_condition("shop.keyless", "has no usable key"),
        ]
    )
    said = problems(condition)
    assert len(said) == 3
    status = broker_pb2.BusinessStatus(
        business="main", source=broker_pb2.Reported(report=encode(condition)), alarms=said
    )

    assert relevant_alarms("main/a", status) == [said[0]]
