"""An adapter's condition on the wire: cut to size by whoever sends it, checked by whoever takes it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from venus.conditions import AdapterCondition, TableCondition, problems, unaccounted_problem
from venus.errors import ProtocolError
from venus.rpc import limits
from venus.wire import broker_pb2

#: The place of a business's source among its consumer groups, none of which has an empty name.
SOURCE = ""
TABLES_MAX = limits.REPORTED_TABLES_MAX
NAME_CHARACTERS_MAX = limits.REPORTED_NAME_CHARS_MAX
REASON_CHARACTERS_MAX = limits.REPORTED_REASON_CHARS_MAX
_STATE = re.compile(r"[A-Z_]{1,20}")


def encode(condition: AdapterCondition) -> broker_pb2.AdapterReport:
    """Return the message; tables beyond the limit are counted, long texts are cut."""
    told = condition.tables[:TABLES_MAX]
    return broker_pb2.AdapterReport(
        paused=condition.paused,
        cut_over=_line(condition.cut_over, limits.REPORTED_MOMENT_CHARS_MAX),
        quarantined=condition.quarantined,
        tables_left_out=condition.left_out + sum(not t.follows for t in condition.tables[TABLES_MAX:]),
        tables=[
            broker_pb2.TableReport(
                table_id=table.table_id,
                name=_line(table.name, NAME_CHARACTERS_MAX),
                state=table.state,
                reason=_line(table.reason, REASON_CHARACTERS_MAX),
                quarantined=table.quarantined,
                rows=_line(table.rows, REASON_CHARACTERS_MAX),
            )
            for table in told
        ],
    )


def decode(report: broker_pb2.AdapterReport) -> AdapterCondition:
    """Return what a checked message says."""
    return AdapterCondition(
        paused=report.paused,
        cut_over=report.cut_over,
        left_out=report.tables_left_out,
        quarantined=report.quarantined,
        tables=tuple(
            TableCondition(
                table_id=table.table_id, name=table.name, state=table.state, reason=table.reason,
                quarantined=table.quarantined, rows=table.rows,
            )
            for table in report.tables
        ),
    )  # fmt: skip


def check(report: broker_pb2.AdapterReport) -> None:
    """Raise ProtocolError for a report that no adapter of ours would send."""
    if len(report.tables) > TABLES_MAX:
        raise ProtocolError(f"a report names {len(report.tables):,} tables, at most {TABLES_MAX} are taken")
    if len(report.cut_over) > limits.REPORTED_MOMENT_CHARS_MAX or not report.cut_over.isprintable():
        raise ProtocolError("a report has too long or an unreadable moment of a cut-over")
    for table in report.tables:
        if not 0 < len(table.name) <= NAME_CHARACTERS_MAX or max(map(len, _texts(table))) > REASON_CHARACTERS_MAX:
            raise ProtocolError(f"a report has no name or too long a text for table {table.table_id}")
        if not (table.name + "".join(_texts(table))).isprintable() or not _STATE.fullmatch(table.state):
            raise ProtocolError(f"a report has an unreadable name, reason or state for table {table.table_id}")


def _texts(table: broker_pb2.TableReport) -> tuple[str, str]:
    return table.reason, table.rows


def reported_problems(entry: broker_pb2.BusinessStatus, now_us: int) -> Iterator[tuple[str, str]]:
    """Yield what needs somebody, with the group that said it (SOURCE for the upper adapter)."""
    if entry.HasField("source"):
        yield from ((SOURCE, text) for text in _dated(entry.source, problems(decode(entry.source.report)), now_us))
    for consumer in entry.consumers:
        target = consumer.group.removeprefix(f"{entry.business}/")
        if consumer.HasField("reported"):
            found = problems(decode(consumer.reported.report), target)
            yield from ((consumer.group, text) for text in _dated(consumer.reported, found, now_us))
        if consumer.unaccounted_rows:
            yield consumer.group, unaccounted_problem(consumer.unaccounted_rows, target)


def _dated(reported: broker_pb2.Reported, found: list[str], now_us: int) -> list[str]:
    """Say of each how old it is, if its adapter is away."""
    if not reported.unknown_since_us:
        return found
    age_s = max(0, now_us - reported.unknown_since_us) // 10**6
    return [f"{text} (as it was {age_s:,} s ago: its adapter has been away since)" for text in found]


def _line(text: str, characters_max: int) -> str:
    """Return a text as one line of printable characters, cut to its limit."""
    line = "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))
    return line if len(line) <= characters_max else line[: characters_max - 3] + "..."
