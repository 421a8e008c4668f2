"""Tables at the source that the patterns choose and that are not captured: a cut-over would go through without them.

Each of them forbids it, unless the operator leaves it out by name; the certificate then lists it. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from venus.adapters.dialects.contract import UncapturedTable
from venus.adapters.targets.cutting import Block
from venus.conditions import MATCHES
from venus.errors import ConfigError
from venus.suggest import nearest

OPTION = "--leave-out"


def choose_left_out(uncaptured: Iterable[UncapturedTable], names: Sequence[str]) -> list[UncapturedTable]:
    """Return the tables that these names mean, with or without their namespace.

    Raises ConfigError for a name that means none or several: what is captured is never left out.
    """
    uncaptured = list(uncaptured)
    known = [table.name for table in uncaptured]
    found = {}
    for name in names:
        meant = [t for t in uncaptured if name in (t.name, t.name.rpartition(".")[2])]
        meant = [t for t in meant if t.name == name] or meant
        if len(meant) > 1:
            several = " or ".join(t.name for t in meant)
            raise ConfigError(f"{OPTION} {name}: it matches more than one table: write {several}")
        if not meant:
            hint = f"not captured: {', '.join(known[:12])}" if known else "every table that matches is captured"
            raise ConfigError(
                f"{OPTION} {name}: no such table is left to capture{nearest(name, known, in_full=True)}", hint=hint
            )
        found[meant[0].name] = meant[0]
    return list(found.values())


def uncaptured_blocks(uncaptured: Iterable[UncapturedTable], left_out: Iterable[UncapturedTable]) -> list[Block]:
    """Return a block for each table that is neither captured nor left out."""
    names = {table.name for table in left_out}
    return [_block(table) for table in uncaptured if table.name not in names]


def _block(table: UncapturedTable) -> Block:
    without = f"to go without it: {OPTION} {table.name}"
    if table.obstacle:
        what = f"{table.name} {MATCHES} cannot be captured: {table.obstacle}"
        return Block(what=what, remedy=f"venus check says what to do, then venus install-triggers; {without}")
    return Block(what=f"{table.name} {MATCHES} is not captured", remedy=f"venus install-triggers; {without}")


def left_out_document(left_out: Iterable[UncapturedTable], released: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the tables for the certificate; `released`: those that were taken out of capture, with the reason."""
    return [
        *({"table": t.name, "reason": t.obstacle or "not captured"} for t in left_out),
        *({"table": name, "reason": f"not captured any more ({why})"} for name, why in sorted(released.items())),
    ]


def left_out_lines(found: Sequence[dict[str, Any]]) -> list[str]:
    """Return the tables of a certificate for people; nothing if there are none."""
    if not found:
        return []
    head = f"tables left out by the operator, neither captured nor compared: {len(found)}"
    return ["", head, *(f"  ! {table['table']}: {table['reason']}" for table in found)]
