"""The labels of an enum: statements that turn a target's labels into those of the source (VENUS 3.4). Pure.

PostgreSQL can rename and add labels, but neither drop nor move them. A label that is renamed at the source keeps its
place, so it is renamed here, too, in the transaction of the rows with its new name and before them. An added label has
to be durable before a row can have it. For any other change (a type that was recreated in another order), the operator
gets statements, and a resync then replaces the rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from venus.adapters.targets.postgresql.naming import quote_literal


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelChange:
    """The statements for one type. `settled` means that they lead to the source's labels in its order."""

    added: tuple[str, ...] = ()
    renamed: tuple[str, ...] = ()
    settled: bool = True


def plan_label_change(
    type_sql: str, wanted: Sequence[str], there: Sequence[str], known: Sequence[str] = ()
) -> LabelChange:
    """Return the change from the labels `there` to those of the source; `known` = the previous version's. Pure."""
    names = {
        was: now for was, now in _find_renames(known or there, wanted).items() if was in there and now not in there
    }
    here = [names.get(label, label) for label in there]
    renamed = tuple(_rename(type_sql, was, now) for was, now in names.items())
    if is_within(wanted, here):
        return LabelChange(renamed=renamed)
    common = [label for label in wanted if label in here]
    if not is_within(common, here):
        return LabelChange(settled=False)
    return LabelChange(added=tuple(_add_statements(type_sql, wanted, here, names)), renamed=renamed)


def is_within(wanted: Sequence[str], there: Sequence[str]) -> bool:
    """Return whether all these labels are there, in this order."""
    rest = iter(there)
    return all(label in rest for label in wanted)


def statements_by_position(type_sql: str, wanted: Sequence[str], there: Sequence[str]) -> list[str]:
    """Return statements that turn any labels into those of the source, place by place; rows must come again. Pure."""
    moves = {was: now for was, now in zip(there, wanted, strict=False) if was != now}
    spare = [label for label in there[len(wanted) :] if label in wanted]
    aside = {was: f"{was}_before" for was in (*moves, *spare) if was in wanted}
    statements = [_rename(type_sql, was, new) for was, new in aside.items()]
    statements += [_rename(type_sql, aside.get(was, was), now) for was, now in moves.items()]
    return statements + [_add(type_sql, label, "") for label in wanted[len(there) :]]


def _find_renames(known: Sequence[str], wanted: Sequence[str]) -> Mapping[str, str]:
    """Return the renamed labels, if a renaming explains all differences: as many labels, each in its old place."""
    pairs = {was: now for was, now in zip(known, wanted, strict=False) if was != now}
    if len(known) != len(wanted) or any(was in wanted or now in known for was, now in pairs.items()):
        return {}
    return pairs


def _add_statements(type_sql: str, wanted: Sequence[str], here: Sequence[str], names: Mapping[str, str]) -> list[str]:
    """Return statements that add the missing labels; a neighbour that is renamed later still has its old name."""
    former = {now: was for was, now in names.items()}
    found = []
    for n, label in enumerate(wanted):
        if label in here:
            continue
        if n:
            place = f"AFTER {quote_literal(former.get(wanted[n - 1], wanted[n - 1]))}"
        else:
            place = f"BEFORE {quote_literal(former.get(here[0], here[0]))}" if here else ""
        found.append(_add(type_sql, label, place))
    return found


def _add(type_sql: str, label: str, place: str) -> str:
    return f"ALTER TYPE {type_sql} ADD VALUE IF NOT EXISTS {quote_literal(label)} {place}".rstrip()


def _rename(type_sql: str, was: str, now: str) -> str:
    return f"ALTER TYPE {type_sql} RENAME VALUE {quote_literal(was)} TO {quote_literal(now)}"
