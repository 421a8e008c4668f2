"""Rules that the registries of captured tables share in all dialects: halts, releases, limits, restored sources.

A table halts if a row cannot be carried. The registry keeps a halted table PAUSED, so cuts skip its log rows. VENUS
resumes the table as soon as it has been written to, because that write may have corrected the row. The next cut reads
a resumed table first: if it halts again, few rows of other tables have to be taken back.

An operator can release one table while others stay captured. First VENUS removes the triggers: from then on the
application runs no code of VENUS for that table, and VENUS captures its log to the end. Then VENUS removes the log,
and the table is RELEASED: only its row in the registry remains. This registry row keeps the number and version by
which broker and targets know the table. A released table can therefore be captured again; it is then read completely.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from venus.adapters.dialects.contract import (
    FillState,
    RegisteredTable,
    SourceRegistry,
    SourceState,
    TableHalted,
)
from venus.codec.schema import fingerprint, from_wire, to_wire
from venus.config import Settings
from venus.errors import DatabaseUnavailable, Diverged, Refused, SourceError
from venus.model import (
    BatchNo,
    BatchRecord,
    Epoch,
    Sequence,
    SourceIdentity,
    TableSchema,
)
from venus.rpc.conditions import COMPARED
from venus.rpc.conditions import RELEASED as RELEASED
from venus.rpc.conditions import RELEASING as RELEASING
from venus.rpc.conditions import UNFIT as UNFIT
from venus.rpc.conditions import UNREADABLE as UNREADABLE
from venus.wire import change_pb2

#: Why a table is RELEASING.
TRIGGERS_GONE = "its triggers are removed, and what is in its log is still to be captured"
#: Why a table is RELEASED after a DBA has run the script.
BY_SCRIPT = "taken out of capture by a script"
#: The end of the reason of a table that halted at a row while it was RELEASING.
HALTED_ON_THE_WAY = "; it is being taken out of capture"


def is_being_released(table: RegisteredTable) -> bool:
    """Whether a table is being taken out of capture, so that its triggers are missing on purpose."""
    return table.state == RELEASING or (table.state == "PAUSED" and table.reason.endswith(HALTED_ON_THE_WAY))


def qualified_names(tables: Iterable[RegisteredTable], table_ids: Iterable[int]) -> Mapping[int, str]:
    """Return the names of these tables. Raises Refused for a number that the registry does not have."""
    known = {t.schema.table_id: t.schema.qualified_name for t in tables}
    for table_id in table_ids:
        if table_id not in known:
            raise Refused(f"table {table_id} is not registered", hint="`venus status` lists the tables")
    return {table_id: known[table_id] for table_id in table_ids}


def refuse_if_written(places: Mapping[int, str], written: Iterable[int]) -> None:
    """Raise Refused if triggers still write a log that is about to be removed: the application's DML would fail."""
    for table_id in sorted(places.keys() & set(written)):
        why = f"{places[table_id]} has triggers again: they were installed in the meantime"
        raise Refused(why, hint=f"`venus uninstall-triggers {places[table_id]}` once more")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLimits:
    """The configured limits at which triggers stop writing to a log, so that it cannot fill the source's disk."""

    rows_max: int = 0  # 0 = no limit
    bytes_max: int = 0
    tablespace: str = ""  # the tablespace of the logs; empty = the default

    @property
    def is_set(self) -> bool:
        """Whether there is a limit."""
        return bool(self.rows_max or self.bytes_max)

    def describe(self) -> str:
        """Return the options that limit a log."""
        limits = {"log_rows_max": self.rows_max, "log_bytes_max": self.bytes_max}
        return " or ".join(f"{name} = {limit}" for name, limit in limits.items() if limit)


NO_LIMITS = LogLimits()


def log_limits(settings: Settings) -> LogLimits:
    """Return the limits of a log that the settings configure."""
    given = settings.source
    return LogLimits(rows_max=given.log_rows_max, bytes_max=given.log_bytes_max, tablespace=given.log_tablespace)


#: The beginning of the reason of a table whose log has reached its limit.
LOG_FULL = "its log reached "


def full_log_reason(limits: LogLimits) -> str:
    """Return the reason that the registry stores for a table that is RESYNC because its log reached a limit."""
    return f"{LOG_FULL}{limits.describe()} and takes no more: `venus install-triggers`, then `venus resync TABLE`"


def find_full_logs(
    tables: Iterable[RegisteredTable], waiting: Mapping[int, int], limits: LogLimits
) -> Iterator[RegisteredTable]:
    """Yield the captured tables whose logs have reached the limit in rows."""
    for table in tables:
        if limits.rows_max and waiting.get(table.schema.table_id, 0) >= limits.rows_max and table.state != RELEASING:
            yield table


#: Added to the reason of a table whose triggers run as a user without the privileges that they need.
FAILING = "; until then its triggers fail the application's statements"
#: The end of the reason of a table that had missed changes before.
_MISSED = "; before that RESYNC: "
#: The longest description of a row: its key may be long.
_WHY_CHARS = 1000
#: After repeated halts, a table is tried again after this many times the duration of the last try.
RETRY_SHARE = 20


class UnfitRow(Exception):
    """A row that cannot be carried exactly, or does not fit into one message; the text names key and column."""


def halt_reason(table: RegisteredTable, why: str) -> str:
    """Return the reason that the registry stores for a table that halts."""
    shown = why if len(why) <= _WHY_CHARS else f"{why[:_WHY_CHARS]}..."
    return _with_earlier_reason(table, f"{UNFIT}{shown}")


def unreadable_reason(table: RegisteredTable, way_out: str) -> str:
    """Return the reason that the registry stores for a table that VENUS may not read until `way_out` was run."""
    return _with_earlier_reason(table, f"{UNREADABLE}it is captured again by itself after {way_out}")


def _with_earlier_reason(table: RegisteredTable, reason: str) -> str:
    """Append the table's earlier state or reason to a reason, so that `state_before_halt` can restore it."""
    if table.state == RELEASING:
        return f"{reason}{HALTED_ON_THE_WAY}"
    return f"{reason}{_MISSED}{table.reason}" if table.state == "RESYNC" else reason


def is_halted(table: RegisteredTable) -> bool:
    """Whether a row has halted the table; an operator's pause does not count."""
    return table.state == "PAUSED" and table.reason.startswith(UNFIT)


def is_unreadable(table: RegisteredTable) -> bool:
    """Whether the table has halted because VENUS may not read it."""
    return table.state == "PAUSED" and table.reason.startswith(UNREADABLE)


def state_before_halt(table: RegisteredTable) -> tuple[str, str]:
    """Return state and reason with which a halted table resumes: changes missed before the halt are still missed."""
    if is_being_released(table):
        return RELEASING, TRIGGERS_GONE
    _, missed, reason = table.reason.rpartition(_MISSED)
    return ("RESYNC", reason) if missed else ("ACTIVE", "")


@dataclass(slots=True)
class _Halt:
    """The last halt of a table: the version of its log, the count of halts, the earliest time of the next try."""

    log_version: int
    count: int
    not_before: float


class HaltTracker:
    """The tables that have halted since this process started, each with the version of its log at that time.

    `log_version` changes with every write to the table: the number of its log rows, or the highest of their numbers.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._known: dict[int, _Halt] = {}
        self._began = 0.0

    def start_table(self) -> None:
        """Record when the reading of a table begins, so that a halt knows how long the try took."""
        self._began = self._monotonic()

    def record_halt(self, schema: TableSchema, log_version: int, why: object, *, hint: str = "") -> TableHalted:
        """Record that the table being read halts, and return the error to raise; `log_version`: of this snapshot."""
        now = self._monotonic()
        before = self._known.get(schema.table_id)
        count = before.count + 1 if before else 1
        pause_s = RETRY_SHARE * (now - self._began) if before else 0.0
        self._known[schema.table_id] = _Halt(log_version, count, now + pause_s)
        return TableHalted(schema, str(why), hint=hint)

    def may_retry(self, table_id: int, log_version: int) -> bool:
        """Whether capture may try a halted table again: it was written to since, or an earlier process halted it."""
        known = self._known.get(table_id)
        return known is None or (known.log_version != log_version and self._monotonic() >= known.not_before)

    def order_by_halts(self, table_ids: Iterable[int]) -> list[int]:
        """Return the tables of a cut in reading order: tables that have halted before come first."""
        return sorted(table_ids, key=lambda table_id: table_id not in self._known)


#: The remedy if the database is not the one that was captured.
MOVED = (
    "if this is the database itself, moved or restored: `venus install-triggers --moved`; if it is a copy:"
    " `venus uninstall-triggers` there"
)


def find_other_database(identity: SourceIdentity | None) -> str:
    """Describe how this database differs from the one that was captured before; empty if it is the same. Pure."""
    if identity is None:
        return ""
    before, now = identity.recorded, identity.present
    facts = next((group for group in identity.decisive if all(before.get(f) and now.get(f) for f in group)), ())
    return _describe_difference("it is not the database that was captured", identity, facts)


def find_other_server(identity: SourceIdentity | None) -> str:
    """Describe how the server differs from the recorded one (a fail-over, or a copy); empty if it does not. Pure."""
    if identity is None or find_other_database(identity):
        return ""
    facts = [fact for fact in identity.doubtful if identity.recorded.get(fact) and identity.present.get(fact)]
    return _describe_difference("its server is not the one that was captured", identity, facts)


def describe_identity(identity: SourceIdentity | None) -> str:
    """Return why this may be a copy of the captured database, with the remedy; empty if it is no copy."""
    found = find_other_database(identity) or find_other_server(identity)
    return f"{found}: {MOVED}" if found else ""


def _describe_difference(what: str, identity: SourceIdentity, facts: Iterable[str]) -> str:
    """Return `what` with the facts whose present value differs from the recorded one; empty if none does."""
    before, now = identity.recorded, identity.present
    differ = [f"{fact} {now[fact]}, was {before[fact]}" for fact in facts if now[fact] != before[fact]]
    return f"{what} ({'; '.join(differ)})" if differ else ""


def confirm_identity(source_registry: SourceRegistry, *, moved: bool = False) -> str:
    """Record this database as the captured one; with `moved`, even in place of another recorded one.

    Return a warning if this database may be a copy. Raises Diverged if it is another database, whose changes would be
    sent under the name of the original. Recorded facts that are `doubtful` stay as they are until `moved` confirms new
    ones.
    """
    identity = source_registry.read_identity()
    if identity is None:
        return ""
    if not moved and (why := find_other_database(identity)):
        raise Diverged(f"source: {why}", hint=MOVED)
    recorded = {} if moved else dict(identity.recorded)
    kept = {fact: recorded[fact] for fact in identity.doubtful if recorded.get(fact)}
    facts = recorded | {fact: value for fact, value in identity.present.items() if value} | kept
    if facts != identity.recorded:
        source_registry.store_identity(facts)
    return "" if moved else find_other_server(identity)


class SourceRestored(DatabaseUnavailable):
    """The source was restored from a backup. The caller starts a new session, which reads everything again."""


class RestoreGuard:
    """Guard that detects a restored source by the newest batch that was found or committed since it was opened."""

    def __init__(self) -> None:
        self._batch: BatchNo | None = None

    def record_batch(self, batch: BatchNo) -> None:
        """Record the newest batch that the source has."""
        self._batch = batch

    def check(self, place: object, checkpoint: SourceState) -> None:
        """Raise SourceRestored if the checkpoint row, which the caller has locked, names another batch."""
        if self._batch not in (None, checkpoint.last_batch):
            raise SourceRestored(
                f"{place}: its newest batch is {checkpoint.last_batch}, and was {self._batch}: it was restored"
            )


def version_values(schema: TableSchema, number_max: int = 0) -> dict[str, str | int | bytes | None]:
    """Return the values that store a version of a table in the registry, by column name."""
    return {
        "table_id": schema.table_id,
        "schema_wire": to_wire(schema).SerializeToString(deterministic=True),
        "fingerprint": fingerprint(schema),
        "number_max": max([number_max, *(c.number for c in schema.columns)]),
    }


def fill_values(before: FillState, after: FillState) -> dict[str, int | bytes | None]:
    """Return the parameters of the statement that stores a fill's progress, unless the fill was restarted since."""
    return {
        "table_id": after.table_id,
        "cursor": after.cursor or None,
        "rows_done": after.rows_done,
        "done": int(after.done),
        "sweep_from": after.sweep_from,
        "was_cursor": before.cursor,
        "was_rows": before.rows_done,
        "was_sweep": before.sweep_from,
    }


def comparison_values(table_id: int, before: str, after: str, rows_done: int, *, done: bool) -> dict[str, Any]:
    """Return the parameters of the statement that stores the progress of a comparison."""
    values: dict[str, Any] = {"table_id": table_id, "rows_done": rows_done, "done": int(done)}
    return values | {"known_reason": before, "new_reason": after or None}


def comparison_reason(cause: str) -> str:
    """Return the reason that marks a table's fill as a comparison; it is unique to each request."""
    return f"{COMPARED} since {datetime.now(UTC).isoformat()}: {cause}"


def parse_schema(wire: bytes) -> TableSchema:
    """Decode the schema of a table from the bytes that the registry stores."""
    return from_wire(change_pb2.TableSchema.FromString(wire))


def registered_table(schema: TableSchema, state: str, reason: str | None, fill: Seq[Any]) -> RegisteredTable:
    """Build a RegisteredTable from a registry row. `fill`: cursor, rows, estimate, done, sweep."""
    cursor, rows, estimate, done, sweep_from = fill
    progress = FillState(
        table_id=schema.table_id,
        sweep_from=Sequence(int(sweep_from)),
        cursor=cursor.encode() if isinstance(cursor, str) else bytes(cursor or b""),
        rows_done=int(rows),
        rows_estimate=int(estimate),
        done=bool(int(done)),
    )
    return RegisteredTable(schema=schema, state=state, reason=reason or "", fill=progress)


def source_state(row: Seq[Any]) -> SourceState:
    """Build a SourceState from the columns of the checkpoint row."""
    return SourceState(epoch=Epoch(int(row[0])), next_sequence=Sequence(int(row[1])), last_batch=BatchNo(int(row[2])))


def batch_values(batches: Iterable[BatchRecord]) -> list[tuple[int, int, int, int, str]]:
    """Return batches as rows of the batch table, which contain only numbers and hexadecimal digits."""
    return [(b.batch_no, b.epoch, b.first_sequence, b.last_sequence, f"{b.digest:016x}") for b in batches]


def batch_records(rows: Iterable[Seq[Any]]) -> dict[BatchNo, BatchRecord]:
    """Build batch records from rows of the batch table, by batch number."""
    records = (
        BatchRecord(
            batch_no=BatchNo(int(number)),
            epoch=Epoch(int(epoch)),
            first_sequence=Sequence(int(first)),
            last_sequence=Sequence(int(last)),
            digest=int(digest, 16),
        )
        for number, epoch, first, last, digest in rows
    )
    return {record.batch_no: record for record in records}


def unknown_table(table_id: int) -> SourceError:
    """Return the error for a table that the registry does not contain."""
    return SourceError(f"table {table_id} is not captured", hint="`venus status` lists the tables")
