"""The comparison of a captured table in the dictionary with its registered version, and its consequences. Pure.

VENUS never blocks ordinary DDL of the application. This comparison detects and reports what the DDL breaks, and
`venus install-triggers` repairs it (VENUS 3.2: a table's description is sent with its rows).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from venus.adapters.dialects.halted_tables import is_unreadable, state_before_halt, unreadable_reason
from venus.adapters.dialects.oracle import registry
from venus.adapters.dialects.oracle.dictionary.tables import OracleTable, with_id
from venus.adapters.dialects.oracle.language import ddl, inline
from venus.adapters.dialects.oracle.language.ddl import CaptureStyle, KeyedTable, OracleOwnObject
from venus.adapters.dialects.oracle.registry import OracleRegistryEntry
from venus.adapters.dialects.type_changes import changed_key_column, has_changes_of_values
from venus.codec.schema import fingerprint

_MAKERS: dict[CaptureStyle, Callable[[KeyedTable, int], Iterator[OracleOwnObject]]] = {
    CaptureStyle.ROWS: ddl.row_triggers,
    CaptureStyle.INLINE: inline.inline_triggers,
}


def build_triggers(table: KeyedTable, table_id: int) -> list[OracleOwnObject]:
    """Return the disabled triggers of a captured table."""
    return list(_MAKERS[table.style](table, table_id))


#: The remedy if names are so long that the complete statement does not fit.
LACK_IN_SHORT = "a GRANT SELECT on it to VENUS's user"
#: The beginning of a trigger's body.
_START = re.compile(r"\b(?:DECLARE|BEGIN)\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class OracleInstalledTrigger:
    """A trigger in the dictionary."""

    enabled: bool
    valid: bool
    on: str  # OWNER.TABLE
    text: str

    def is_like(self, made: OracleOwnObject, on: str) -> bool:
        """Whether the trigger is enabled, valid, on this table and has the expected body."""
        return self.enabled and self.valid and self.on == on and _trigger_body(self.text) == _trigger_body(made.sql)


def _trigger_body(text: str) -> str:
    """Return the body of a trigger without line ends and without the final semicolon."""
    start = _START.search(text)
    return " ".join(text[start.start() if start else 0 :].split()).rstrip(";/ ")


@dataclass(frozen=True, slots=True, kw_only=True)
class OracleTableComparison:
    """The present state of a registered table."""

    captured: OracleRegistryEntry
    table: OracleTable | None  # the present table with its new version number; None: it cannot be read
    reason: str = ""  # why changes may have been missed, empty if none were
    missing: tuple[str, ...] = ()  # triggers
    #: The triggers no longer fit the key, and could fail the application's statements: remove them.
    drop_triggers: bool = False
    #: Rows may have other values than those that were shipped: read the table again.
    read_again: bool = False
    #: The remedy that makes the table readable again, empty if it is readable.
    grant: str = ""

    @property
    def place(self) -> tuple[str, str]:
        """Owner and name."""
        return self.captured.schema.namespace, self.captured.schema.name

    @property
    def is_paused(self) -> bool:
        """Whether an operator or an unfit row has paused the table."""
        return self.captured.table.state == registry.PAUSED

    @property
    def is_beginning(self) -> bool:
        """Whether a fill is about to read the whole table."""
        fill = self.captured.table.fill
        return not fill.done and not fill.cursor

    @property
    def is_new_version(self) -> bool:
        """Whether the columns of the table have changed."""
        return self.table is not None and self.table.schema.version != self.captured.schema.version

    @property
    def needs_fill(self) -> bool:
        """Whether existing rows have values that were never shipped."""
        if self.table is None:
            return False
        return has_changes_of_values(self.captured.schema, self.table.schema)

    @property
    def new_state(self) -> tuple[str, str] | None:
        """The new state and reason of a table that became unreadable or readable; None = unchanged."""
        known = self.captured.table
        if is_unreadable(known):
            state, reason = state_before_halt(known)
            before = replace(known, state=state, reason=reason)
        else:
            before = known
        if not self.grant:
            return (before.state, before.reason) if before is not known else None
        if before.state == registry.PAUSED:
            return None  # an operator or a row has paused it
        reason = unreadable_reason(before, self.grant)
        if len(reason) > registry.REASON_CHARS:  # the reason of an earlier RESYNC must not be cut off
            reason = unreadable_reason(before, LACK_IN_SHORT)
        reason = reason[: registry.REASON_CHARS]
        return None if reason == known.reason else (registry.PAUSED, reason)

    @property
    def has_changes(self) -> bool:
        """Whether the registry has to be changed."""
        wrong = bool(self.reason) and self.captured.table.state == "ACTIVE"
        return self.is_new_version or wrong or self.new_state is not None


def compare_table(
    captured: OracleRegistryEntry, found: OracleTable | None, present: Mapping[str, OracleInstalledTrigger]
) -> OracleTableComparison:
    """Compare a registered table with its present description."""
    known = captured.schema
    if found is None:
        return OracleTableComparison(
            captured=captured, table=None, reason="the table is gone: dropped or renamed at the source"
        )
    if found.refusals:
        return OracleTableComparison(
            captured=captured, table=None, reason=f"it can no longer be carried: {found.refusals[0]}"
        )
    found = with_id(found, known.table_id)
    numbers = {c.name: c.number for c in known.columns}
    if found.schema.key != known.key or any(name not in numbers for name in known.key):
        key = ", ".join(found.schema.key)
        reason = f"its key is now ({key}), was ({', '.join(known.key)}): uninstall and install again"
        return OracleTableComparison(captured=captured, table=None, reason=reason, drop_triggers=True)
    if column := changed_key_column(found.schema, known):
        reason = (
            f"key column {column} has another form now, which changes every row's identity: uninstall and install again"
        )
        return OracleTableComparison(captured=captured, table=None, reason=reason, drop_triggers=True)
    if fingerprint(found.schema) != fingerprint(known):
        found = replace(found, schema=replace(found.schema, version=known.version + 1))
    missing = tuple(made.name for made in find_wrong_triggers(found, present))
    reason = f"changes may have been missed, {', '.join(missing)} missing, disabled or altered" if missing else ""
    return OracleTableComparison(captured=captured, table=found, reason=reason, missing=missing)


def find_wrong_triggers(table: OracleTable, present: Mapping[str, OracleInstalledTrigger]) -> list[OracleOwnObject]:
    """Return the triggers that have to be created (again)."""
    on = f"{table.keyed.owner}.{table.keyed.name}"
    made = build_triggers(table.keyed, table.schema.table_id)
    return [m for m in made if (p := present.get(m.name)) is None or not p.is_like(m, on)]
