"""VENUS's objects in the dictionary, renamed ones included, and the statement that frees the space of the logs.

After FLASHBACK TABLE TO BEFORE DROP, the triggers of a table keep their recycle bin names; after a redefinition, they
have the names of the interim table's triggers. Renamed triggers still write to the log, so VENUS finds triggers by
their table and by the log that their text names.

The valve is a job of Oracle's scheduler, which runs even while VENUS is down. It disables the triggers of a table
whose log reaches the limit of the settings: otherwise the log would fill its tablespace, and the application's
statements would fail. Capture runs the valve's block too, in case the scheduler is off.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from venus.adapters.dialects.oracle.dictionary import ownership
from venus.adapters.dialects.oracle.dictionary.ownership import OracleOwnedObjects
from venus.adapters.dialects.oracle.installation.table_comparison import OracleInstalledTrigger
from venus.adapters.dialects.oracle.language import ddl
from venus.adapters.dialects.oracle.session.connection import OracleSession
from venus.adapters.dialects.oracle.session.options import Version
from venus.adapters.dialects.oracle.sql import FOLLOWER_TABLES, SIDE, SWITCHED_OFF, quote, statement
from venus.adapters.dialects.registry_rules import LogLimits, full_log_reason

#: The statement of a row trigger, or of one that is captured inline.
_LOGS = re.compile(r"INSERT INTO (VENUS_L_\d{5,}) \(SEQ, OP, |UPDATE (VENUS_TABLE_LOG) SET SEQUENCE = V_SEQ ")
#: A log that has grown once keeps its segments. Its size counts only if its rows, with keys of the greatest length,
#: could fill that size.
_ROW_BYTES_MAX = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class OracleStrayTrigger:
    """A trigger of VENUS under a name that VENUS did not give it."""

    name: str
    log: str  # that it writes
    on: str  # OWNER.TABLE

    @property
    def drop(self) -> str:
        """The statement that drops this trigger."""
        return ddl.drop_object("TRIGGER", quote(self.name))


@dataclass(frozen=True, slots=True, kw_only=True)
class OracleObjects:
    """VENUS's own objects as the dictionary shows them, for a plan of an installation or a removal."""

    kinds: dict[str, str]
    triggers: dict[str, OracleInstalledTrigger]
    strays: tuple[OracleStrayTrigger, ...]
    indexes: frozenset[str]
    owned: OracleOwnedObjects
    #: The declared types of the key columns of the log tables.
    widths: dict[str, dict[str, str]]
    fixed_statistics: frozenset[str]  # tables whose statistics are locked
    columns: Mapping[str, AbstractSet[str]]
    #: Of an older version: the triggers that belong to an edition, and an ordered sequence. Read for a plan only.
    editioned: AbstractSet[str] = frozenset()
    has_ordered_sequence: bool = False
    #: The block that the valve's job runs; empty without a job. Read for a plan only.
    valve: str = ""

    def find_strays(self, log: str) -> Iterator[OracleStrayTrigger]:
        """Yield the stray triggers that write this log."""
        return (stray for stray in self.strays if stray.log == log)


@dataclass(frozen=True, slots=True, kw_only=True)
class OracleTriggers:
    """The facts about VENUS's own objects that a comparison of the captured tables needs."""

    owned: OracleOwnedObjects
    triggers: dict[str, OracleInstalledTrigger]
    strays: tuple[OracleStrayTrigger, ...]
    indexes: frozenset[str]


def read_triggers(session: OracleSession) -> OracleTriggers:
    """Read VENUS's triggers, including renamed ones."""
    found = session.fetch_rows(statement("dictionary", "own_objects"))
    owned = ownership.read_owned_objects(session, found)
    status = {name: state for name, kind, state in found if kind == "TRIGGER"}
    texts: dict[str, str] = {}
    for name, text in session.fetch_rows(statement("dictionary", "source")):
        texts[name] = texts.get(name, "") + text
    triggers: dict[str, OracleInstalledTrigger] = {}
    strays: list[OracleStrayTrigger] = []
    for name, state, owner, table in session.fetch_rows(statement("dictionary", "triggers")):
        text = texts.get(name, "")
        if owned.has(name, "TRIGGER"):
            triggers[name] = OracleInstalledTrigger(
                enabled=state == "ENABLED", valid=status.get(name) == "VALID", on=f"{owner}.{table}", text=text
            )
        # a trigger whose table is in the recycle bin fires for nothing, and cannot be dropped
        elif (log := _LOGS.search(text)) and not str(table).startswith("BIN$"):
            strays.append(OracleStrayTrigger(name=str(name), log=log[1] or log[2], on=f"{owner}.{table}"))
    indexes = frozenset(name for name, kind, _ in found if kind == "INDEX")
    return OracleTriggers(owned=owned, triggers=triggers, strays=tuple(strays), indexes=indexes)


def read_objects(session: OracleSession) -> OracleObjects:
    """Read VENUS's own objects from the dictionary."""
    here = read_triggers(session)
    columns: dict[str, set[str]] = {}
    for name, column in session.fetch_rows(statement("dictionary", "own_columns")):
        columns.setdefault(name, set()).add(column)
    return OracleObjects(
        kinds={name: kind for kind, name in here.owned.ours},
        triggers=here.triggers,
        strays=here.strays,
        indexes=here.indexes,
        owned=here.owned,
        widths=ownership.read_widths(session) if here.owned.ours else {},
        fixed_statistics=frozenset(row[0] for row in session.fetch_rows(statement("dictionary", "fixed_statistics"))),
        columns=columns,
    )


def read_planned_objects(session: OracleSession, version: Version) -> OracleObjects:
    """Read VENUS's own objects with what only a plan needs to know about them."""
    here = read_objects(session)
    editioned = session.fetch_rows(statement("dictionary", "editioned")) if version.noneditionable else []
    return replace(
        here,
        editioned={str(row[0]) for row in editioned} & here.triggers.keys(),
        has_ordered_sequence=any(
            row[0] == "Y" for row in session.fetch_rows(statement("dictionary", "sequence_order"))
        ),
        valve=ownership.read_valve(session),
    )


def read_follower_removals(session: OracleSession, kinds: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the steps that remove what a fall-back left: enable constraints and triggers, drop staging tables."""
    if SWITCHED_OFF in kinds:
        for name, *texts in session.fetch_rows(statement("dictionary", "switched_off")):
            yield from ((f"{name} is on again", str(text)) for text in texts if text)
    if SIDE in kinds:
        names = [str(name) for (name,) in session.fetch_rows(statement("dictionary", "user_tables"))]
        yield from ((f"table {n}", ddl.drop_object("TABLE", quote(n))) for n in names if n.startswith(FOLLOWER_TABLES))


def valve_block(limits: LogLimits) -> str:
    """Return the block that disables the triggers of every table whose log has reached a limit."""
    return statement("valve", "block", full=" OR ".join(_full_conditions(limits)), reason=full_log_reason(limits))


def _full_conditions(limits: LogLimits) -> Iterator[str]:
    """Yield the SQL conditions of which a log that has reached a limit meets at least one."""
    if limits.rows_max:
        yield statement("valve", "rows", rows=str(limits.rows_max))
    if limits.bytes_max:
        rows = statement("valve", "rows", rows=str(max(1, limits.bytes_max // _ROW_BYTES_MAX)))
        yield f"({statement('valve', 'bytes', bytes=str(limits.bytes_max))} AND {rows})"


def valve_steps(limits: LogLimits, here: OracleObjects) -> Iterator[tuple[str, str, bool]]:
    """Yield the steps for the job that limits the logs: a title, the statement, whether it is done already."""
    wanted = valve_block(limits) if limits.is_set else ""
    if here.valve and here.valve.split() != wanted.split():
        yield f"older job {ownership.VALVE}", statement("valve", "drop_job"), False
    if wanted:
        done = here.valve.split() == wanted.split()
        yield f"job {ownership.VALVE}", statement("valve", "job", action=wanted), done


def describe_limits(limits: LogLimits, user: str) -> list[str]:
    """Return the lines of the installation's script about the space of the logs, and the part only a DBA can do."""
    lines = []
    if limits.tablespace:
        lines.append(
            f"-- The logs lie in {limits.tablespace}: ALTER USER {quote(user)} QUOTA UNLIMITED ON {limits.tablespace};"
        )
    if limits.is_set:
        lines.append(
            f"-- A log with {limits.describe()} stops the capture of its table (job {ownership.VALVE}, every minute)."
        )
        lines.append(f"-- It needs GRANT CREATE JOB TO {quote(user)};")
    return lines


def give_room_back(log: str) -> str:
    """Return the block that frees the space of an empty log without enabled triggers."""
    return statement("valve", "empty_log", log=log)
