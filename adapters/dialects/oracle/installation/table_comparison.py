"""Detection of changes to a captured table: comparison with its registered version, and the recorded DDL. Pure.

VENUS never blocks ordinary DDL of the application. The comparison detects and reports what the DDL breaks, and `venus
install-triggers` repairs it (VENUS 3.2: a table's description is sent with its rows). The DDL trigger records
statements. Statements that keep rows, values and triggers are harmless. If a statement is not certainly harmless,
VENUS reads the table again.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from venus.adapters.dialects.canonical_text import changed_key_column, has_changes_of_values
from venus.adapters.dialects.oracle import registry
from venus.adapters.dialects.oracle.dictionary.tables import OracleTable, with_id
from venus.adapters.dialects.oracle.language import ddl, inline
from venus.adapters.dialects.oracle.language.ddl import CaptureStyle, KeyedTable, OracleOwnObject
from venus.adapters.dialects.oracle.registry import OracleRegistryEntry
from venus.adapters.dialects.registry_rules import is_unreadable, state_before_halt, unreadable_reason
from venus.codec.schema import fingerprint

_MAKERS: dict[CaptureStyle, Callable[[KeyedTable, int], Iterator[OracleOwnObject]]] = {
    CaptureStyle.ROWS: ddl.row_triggers,
    CaptureStyle.INLINE: inline.inline_triggers,
}


def build_triggers(table: KeyedTable, table_id: int) -> list[OracleOwnObject]:
    """Return the triggers of a captured table as they are created: disabled."""
    return list(_MAKERS[table.style](table, table_id))


#: The remedy if names are so long that the complete statement does not fit.
LACK_IN_SHORT = "a GRANT SELECT on it to VENUS's user"
#: The beginning of a trigger's body.
_START = re.compile(r"\b(?:DECLARE|BEGIN)\b")
#: The condition of a trigger in a database that may follow another one (triggers.sql, quiet).
_QUIET = re.compile(
    r"BEGIN IF COALESCE\(SYS_CONTEXT\('USERENV', 'CLIENT_INFO'\), '-'\) <> 'VENUS [^']+' THEN (.*) END IF; END"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OracleInstalledTrigger:
    """A trigger in the dictionary."""

    enabled: bool
    #: An invalid trigger compiles when it fires next, unless it has just been created.
    valid: bool
    on: str  # OWNER.TABLE
    text: str

    def is_like(self, made: OracleOwnObject, on: str) -> bool:
        """Whether the trigger is enabled, on this table, and logs the application's changes as `made` does."""
        body = _trigger_body(self.text)
        if quiet := _QUIET.fullmatch(body):
            body = f"BEGIN {quiet[1]} END"
        return self.enabled and self.on == on and body == _trigger_body(made.sql)

    def is_quiet(self, made: OracleOwnObject, on: str) -> bool:
        """Whether the trigger is enabled, valid and exactly `made`, which ignores changes that VENUS applies."""
        return self.enabled and self.valid and self.on == on and _trigger_body(self.text) == _trigger_body(made.sql)


def _trigger_body(text: str) -> str:
    """Return the body of a trigger without line ends and without the final semicolon."""
    start = _START.search(text)
    return " ".join(text[start.start() if start else 0 :].split()).rstrip(";/ ")


@dataclass(frozen=True, slots=True, kw_only=True)
class OracleTableComparison:
    """The comparison of a registered table with the dictionary: what has changed, and what follows."""

    captured: OracleRegistryEntry
    table: OracleTable | None  # the present table with its new version number; None: it cannot be read
    reason: str = ""  # why changes may have been missed, empty if none were
    missing: tuple[str, ...] = ()  # triggers
    #: The triggers no longer fit the key and have to be removed, as the application's statements could fail.
    drop_triggers: bool = False
    #: Rows may have other values than those that were shipped, so the table has to be read again.
    read_again: bool = False
    #: Rows may have vanished or appeared with a partition, so the table has to be compared with the full data.
    has_lost_rows: bool = False
    #: The remedy that makes the table readable again, empty if it is readable.
    grant: str = ""

    @property
    def place(self) -> tuple[str, str]:
        """Owner and name of the table."""
        return self.captured.schema.namespace, self.captured.schema.name

    @property
    def is_paused(self) -> bool:
        """Whether an operator or an unfit row has paused the table."""
        return self.captured.table.state == registry.PAUSED

    @property
    def is_beginning(self) -> bool:
        """Whether a fill is about to read the whole table."""
        fill = self.captured.table.fill
        return not fill.done and not fill.cursor and not self.captured.table.is_compared

    @property
    def can_compare(self) -> bool:
        """Whether every row was shipped before, so that a comparison with the full data finds what was lost since."""
        known = self.captured.table
        return known.state == registry.ACTIVE and (known.fill.done or known.is_compared)

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
        """Whether this comparison requires a change of the registry."""
        wrong = bool(self.reason) and self.captured.table.state == "ACTIVE"
        return self.is_new_version or wrong or self.new_state is not None


def compare_table(
    captured: OracleRegistryEntry, found: OracleTable | None, present: Mapping[str, OracleInstalledTrigger]
) -> OracleTableComparison:
    """Compare a registered table with the table and the triggers that the dictionary shows now."""
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


def find_wrong_triggers(
    table: OracleTable, present: Mapping[str, OracleInstalledTrigger], *, valid: bool = False
) -> list[OracleOwnObject]:
    """Return the triggers that have to be created or replaced; `valid`: including those that do not compile."""
    on = f"{table.keyed.owner}.{table.keyed.name}"
    made = build_triggers(table.keyed, table.schema.table_id)
    return [m for m in made if (p := present.get(m.name)) is None or not p.is_like(m, on) or (valid and not p.valid)]


#: Owner and name of a table.
TableName = tuple[str, str]

#: The trigger records only this many characters of a statement (own.sql); the rest of it is unknown.
TEXT_BYTES = 1500

_IGNORED = re.compile(r"/\*.*?\*/|--[^\n]*|'(?:[^']|'')*'", re.DOTALL)
_HEAD = re.compile(
    r'\s*ALTER\s+TABLE\s+(?:IF\s+EXISTS\s+)?(?:"[^"]+"|[\w$#]+)(?:\s*\.\s*(?:"[^"]+"|[\w$#]+))?\s*(.*)', re.DOTALL
)
#: Rows vanish or appear without a trigger. INCLUDING ROWS deletes the rows that a maintenance operation excludes.
_HARMFUL = re.compile(r"\b(?:DROP|TRUNCATE|EXCHANGE)\s+(?:SUB)?PARTITIONS?\b|\bINCLUDING\s+ROWS\b")
#: This clause touches no row, regardless of the text after it.
_ADDS = re.compile(r"ADD\b")
_HARMLESS = re.compile(
    r"MODIFY\b|RENAME\b|MOVE\b|SPLIT\b|MERGE\b|COALESCE\b|SET\b|ENABLE\b|DISABLE\b|SHRINK\b|ALLOCATE\b|DEALLOCATE\b"
    r"|(?:NO)?(?:PARALLEL|LOGGING|CACHE|COMPRESS|MONITORING)\b|ROW\b|INITRANS\b|PCTFREE\b|PCTUSED\b|STORAGE\b|READ\b"
    r"|DROP\s*(?:\(|(?:COLUMN|CONSTRAINT|PRIMARY|UNIQUE|UNUSED|SUPPLEMENTAL)\b)"
    r"|(?:NO\s+)?(?:INMEMORY|FLASHBACK\s+ARCHIVE)\b|RESULT_CACHE\b"
)
#: Rows move to other segments, or segments get other names.
_REPLACES = re.compile(
    r"MOVE\b|SPLIT\b|MERGE\b|COALESCE\b|(?:ADD|RENAME)\s+(?:SUB)?PARTITION\b|MODIFY\b.*\b(?:SUB)?PARTITION\b", re.DOTALL
)
#: A dropped column can be added again with other values. These clauses cannot be combined with others.
_DROPS_VALUES = re.compile(r"DROP\s*(?:\(|COLUMN\b)|SET\s+UNUSED\b")
_SILENCES = re.compile(r"\bDISABLE\s+ALL\s+TRIGGERS\b")


def keeps_rows(text: str) -> bool:
    """Whether an ALTER TABLE with this text certainly kept every row in its table and added none."""
    clauses = _clauses(text)
    if _HARMFUL.search(clauses):
        return False
    if _ADDS.match(clauses):
        return True
    return bool(_HARMLESS.match(clauses)) and len(text.encode()) < TEXT_BYTES


def keeps_values(text: str) -> bool:
    """Whether an ALTER TABLE with this text certainly kept the values of columns with an unchanged declaration."""
    return keeps_rows(text) and not _DROPS_VALUES.match(_clauses(text))


def replaces_segments(text: str) -> bool:
    """Whether an ALTER TABLE with this text moves the same rows to other segments."""
    return keeps_rows(text) and bool(_REPLACES.match(_clauses(text)))


def disables_triggers(text: str) -> bool:
    """Whether an ALTER TABLE with this text has disabled the triggers."""
    return bool(_SILENCES.search(_clauses(text)))


def _clauses(text: str) -> str:
    """Return the text after the table's name, without comments and literals; empty if it is not an ALTER TABLE."""
    found = _HEAD.fullmatch(_IGNORED.sub(" ", text.replace("\x00", "").upper()))
    return found[1] if found else ""


@dataclass(frozen=True, slots=True)
class DdlRecords:
    """The statements that the DDL trigger has recorded in VENUS_DDL, by table."""

    altered: Mapping[TableName, list[str]]  # by statements with these texts
    truncated: frozenset[TableName]

    @classmethod
    def from_rows(cls, noted: Iterable[tuple[Any, ...]]) -> DdlRecords:
        """Parse the rows of VENUS_DDL."""
        altered: dict[TableName, list[str]] = defaultdict(list)
        truncated = set()
        for _, event, owner, name, text in noted:
            if event == "ALTER":
                altered[owner, name].append(text or "")
            elif event == "TRUNCATE":
                truncated.add((owner, name))
        return cls(altered, frozenset(truncated))

    def explains_segments(self, place: TableName) -> bool:
        """Whether recorded statements, which VENUS handles anyway, explain the new segments of a table."""
        return place in self.truncated or any(map(replaces_segments, self.altered.get(place, ())))

    def explains_definition(self, place: TableName) -> bool:
        """Whether recorded statements that change no value explain the new definition of a table."""
        return bool(self.altered.get(place)) and not self.may_change_values(place)

    def may_lose_rows(self, place: TableName) -> bool:
        """Whether recorded statements may have added or removed rows of a partitioned table."""
        return not all(map(keeps_rows, self.altered.get(place, ())))

    def may_change_values(self, place: TableName) -> bool:
        """Whether recorded statements may have changed values of a table."""
        return not all(map(keeps_values, self.altered.get(place, ())))

    def has_disabling_statement(self, place: TableName) -> bool:
        """Whether a recorded statement has disabled a table's triggers."""
        return any(map(disables_triggers, self.altered.get(place, ())))
