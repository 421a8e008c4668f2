"""How long the command waits for a table that leaves capture, and its output: pure except for a fake source."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from venus.adapters.dialects.contract import FillState, RegisteredTable, Source
from venus.adapters.dialects.registry_rules import halt_reason, state_before_halt
from venus.cli import release
from venus.model import Column, Kind, LogicalType, Sequence, TableSchema
from venus.rpc.conditions import AdapterCondition, TableCondition, problems, released_tables

SCHEMA = TableSchema(
    table_id=7,
    version=1,
    namespace="shop",
    name="orders",
    key=("a",),
    columns=(Column(name="a", number=1, type=LogicalType(kind=Kind.INT, length=8)),),
)


def table(state: str, reason: str = "") -> RegisteredTable:
    fill = FillState(table_id=7, sweep_from=Sequence(0), cursor=b"", rows_done=0, rows_estimate=0, done=False)
    return RegisteredTable(schema=SCHEMA, state=state, reason=reason, fill=fill)


@dataclass
class Log:
    """A source with one table, whose log has these numbers of changes, one for each look; the last number stays."""

    left: list[int]
    state: str = "RELEASING"
    names: list[str] = field(default_factory=lambda: ["shop.orders"])

    @property
    def registry(self) -> Log:
        return self

    dictionary = capture = registry

    def read_registered_tables(self) -> list[RegisteredTable]:
        return [table(self.state)]

    def read_table_names(self) -> list[str]:
        return self.names

    def read_backlog(self) -> dict[int, tuple[int, int]]:
        return {7: (self.left.pop(0) if len(self.left) > 1 else self.left[0], 0)}


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(release, "LOOK_S", 0.0)


def wait(log: Log, wait_s: float, *, captures: bool = True) -> tuple[int, list[str]]:
    said: list[str] = []
    found = release.wait_for_capture(cast(Source, log), [7], wait_s, lambda: captures, said.append)
    return found[7], said


def test_a_log_is_waited_for_until_it_is_empty() -> None:
    log = Log([3, 2, 1, 0])
    assert wait(log, 60.0) == (0, ["waiting up to 60 s for 3 changes to be captured"])


@pytest.mark.parametrize(
    ("log", "arguments"),
    [
        (Log([3]), {"wait_s": 0.0}),
        (Log([3]), {"wait_s": 0.05}),
        (Log([3]), {"wait_s": 3600.0, "captures": False}),
        (Log([3], state="PAUSED"), {"wait_s": 3600.0}),  # it has halted at a row
        (Log([3], names=[]), {"wait_s": 3600.0}),  # it was dropped
    ],
)
def test_a_log_that_capture_will_not_read_is_not_waited_for(log: Log, arguments: dict[str, Any]) -> None:
    assert wait(log, **arguments)[0] == 3


def test_a_table_that_halts_while_it_leaves_continues_to_leave() -> None:
    reason = halt_reason(table("RELEASING", "x"), "row a=1: it is too large")
    assert reason.startswith("cannot be carried: row a=1: it is too large")
    assert state_before_halt(table("PAUSED", reason))[0] == "RELEASING"
    assert state_before_halt(table("PAUSED", halt_reason(table("ACTIVE"), "no")))[0] == "ACTIVE"


def test_a_released_table_is_listed_and_is_no_problem() -> None:
    found = AdapterCondition.of(
        [
            TableCondition(table_id=7, name="shop.orders", state="RELEASED", reason="at three"),
            TableCondition(table_id=8, name="shop.lines", state="RELEASING", reason="triggers are gone"),
        ]
    )
    (sentence,) = released_tables(found)
    assert sentence.startswith("shop.orders is not captured any more (at three): ")
    (problem,) = problems(found)
    assert problem.startswith(
        "source: shop.lines is RELEASING (triggers are gone); `venus uninstall-triggers shop.lines`"
    )
