"""Compares a captured table in the dictionary with its registered version, and says what has to happen. Pure.

Ordinary DDL of the application is never hindered: what it breaks is noticed here, said, and mended by
`venus install-triggers` (VENUS 3.2: a table's description travels with its rows).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from venus.adapters.dialects.halting import is_unreadable, state_before, unreadable_reason
from venus.adapters.dialects.keyforms import another_form, has_other_values
from venus.adapters.dialects.oracle import ddl, inline, names, registry
from venus.adapters.dialects.oracle.ddl import Keyed, Made, Style
from venus.adapters.dialects.oracle.registry import Captured
from venus.adapters.dialects.oracle.tables import Table, with_id
from venus.codec.schema import fingerprint

_MAKERS: dict[Style, Callable[[Keyed, int], Iterator[Made]]] = {
    Style.ROWS: ddl.triggers,
    Style.COMPOUND: ddl.compound_triggers,
    Style.INLINE: inline.triggers,
}


def triggers(table: Keyed, table_id: int) -> list[Made]:
    """Return the triggers of a captured table, disabled."""
    return list(_MAKERS[table.style](table, table_id))


def as_installed(table: Keyed, table_id: int, present: Collection[str]) -> Keyed:
    """Return the table as it is captured: a compound trigger that is there stays what captures it."""
    if table.style is Style.ROWS and names.trigger(names.COMPOUND_LETTER, table_id) in present:
        return replace(table, style=Style.COMPOUND)
    return table


#: Where names are so long that the statement has no room.
LACK_IN_SHORT = "a GRANT SELECT on it to VENUS's user"
#: What a trigger's body begins with.
_START = re.compile(r"\b(?:COMPOUND TRIGGER|DECLARE|BEGIN)\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class Present:
    """A trigger as the dictionary has it."""

    enabled: bool
    valid: bool
    on: str  # OWNER.TABLE
    text: str

    def is_like(self, made: Made, on: str) -> bool:
        """Whether it does what it has to."""
        return self.enabled and self.valid and self.on == on and _body(self.text) == _body(made.sql)


def _body(text: str) -> str:
    """Return what a trigger does, without its head, its line ends and the final semicolon."""
    start = _START.search(text)
    return " ".join(text[start.start() if start else 0 :].split()).rstrip(";/ ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """How a registered table stands."""

    captured: Captured
    table: Table | None  # as it is now, with the version that it has to have; None: it cannot be read
    reason: str = ""  # why changes may have been missed, empty if none were
    missing: tuple[str, ...] = ()  # triggers
    #: Its triggers do not fit its key any more, and could fail the application's statements.
    silence: bool = False
    #: Whether rows that are there may have other values than were shipped.
    again: bool = False
    #: What has to happen so that it may be read again, empty if it may be.
    lack: str = ""

    @property
    def place(self) -> tuple[str, str]:
        """Owner and name."""
        return self.captured.schema.namespace, self.captured.schema.name

    @property
    def is_paused(self) -> bool:
        """Whether somebody, or a row that did not fit, holds it."""
        return self.captured.table.state == registry.PAUSED

    @property
    def begins(self) -> bool:
        """Whether the whole table is about to be read."""
        fill = self.captured.table.fill
        return not fill.done and not fill.cursor

    @property
    def is_new_version(self) -> bool:
        """Whether rows of the table now look different."""
        return self.table is not None and self.table.schema.version != self.captured.schema.version

    @property
    def needs_fill(self) -> bool:
        """Whether rows that are there already have values that were never shipped."""
        if self.table is None:
            return False
        return has_other_values(self.captured.schema, self.table.schema)

    @property
    def standing(self) -> tuple[str, str] | None:
        """State and reason of a table that may not be read any more, or may be again; None = as they are."""
        known = self.captured.table
        if is_unreadable(known):
            state, reason = state_before(known)
            before = replace(known, state=state, reason=reason)
        else:
            before = known
        if not self.lack:
            return (before.state, before.reason) if before is not known else None
        if before.state == registry.PAUSED:
            return None  # by an operator, or a row
        reason = unreadable_reason(before, self.lack)
        if len(reason) > registry.REASON_CHARS:  # what it has missed before must stay
            reason = unreadable_reason(before, LACK_IN_SHORT)
        reason = reason[: registry.REASON_CHARS]
        return None if reason == known.reason else (registry.PAUSED, reason)

    @property
    def differs(self) -> bool:
        """Whether anything has to be stored."""
        wrong = bool(self.reason) and self.captured.table.state == "ACTIVE"
        return self.is_new_version or wrong or self.standing is not None


def compare(captured: Captured, found: Table | None, present: Mapping[str, Present]) -> Comparison:
    """Say how a registered table stands."""
    known = captured.schema
    if found is None:
        return Comparison(captured=captured, table=None, reason="the table is gone: dropped or renamed at the source")
    if found.refused:
        return Comparison(captured=captured, table=None, reason=f"it cannot be carried any more: {found.refused[0]}")
    found = with_id(found, known.table_id)
    numbers = {c.name: c.number for c in known.columns}
    if found.schema.key != known.key or any(name not in numbers for name in known.key):
        key = ", ".join(found.schema.key)
        reason = f"its key is now ({key}), was ({', '.join(known.key)}): uninstall and install again"
        return Comparison(captured=captured, table=None, reason=reason, silence=True)
    if column := another_form(found.schema, known):
        reason = (
            f"key column {column} has another form now, and with it every row's identity: uninstall and install again"
        )
        return Comparison(captured=captured, table=None, reason=reason, silence=True)
    if fingerprint(found.schema) != fingerprint(known):
        found = replace(found, schema=replace(found.schema, version=known.version + 1))
    missing = tuple(made.name for made in wrong_triggers(found, present))
    reason = f"changes may have been missed, {', '.join(missing)} not there, disabled or altered" if missing else ""
    return Comparison(captured=captured, table=found, reason=reason, missing=missing)


def wrong_triggers(table: Table, present: Mapping[str, Present]) -> list[Made]:
    """Return the triggers that have to be made (again)."""
    on = f"{table.keyed.owner}.{table.keyed.name}"
    made = triggers(as_installed(table.keyed, table.schema.table_id, present), table.schema.table_id)
    return [m for m in made if (p := present.get(m.name)) is None or not p.is_like(m, on)]
