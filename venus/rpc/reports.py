"""An adapter's condition and rows identity on the wire: truncated by the sender, checked by the receiver."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict, fields

from venus.errors import ProtocolError, Unavailable
from venus.network.row_filters import RowsIdentity, TableRows, describe_differences, find_differing
from venus.rpc import conditions, limits
from venus.wire import broker_pb2

#: The key of a business's source among those of its consumer groups, none of which has an empty name.
SOURCE = ""
TABLES_MAX = limits.REPORTED_TABLES_MAX
NAME_CHARACTERS_MAX = limits.REPORTED_NAME_CHARS_MAX
REASON_CHARACTERS_MAX = limits.REPORTED_REASON_CHARS_MAX
_STATE = re.compile(r"[A-Z_]{1,20}")


def encode(condition: conditions.AdapterCondition) -> broker_pb2.AdapterReport:
    """Return the message; tables beyond the limit are only counted, long texts are truncated."""
    listed = condition.tables[:TABLES_MAX]
    return broker_pb2.AdapterReport(
        paused=condition.paused,
        cut_over=_line(condition.cut_over, limits.REPORTED_MOMENT_CHARS_MAX),
        quarantined=condition.quarantined,
        tables_left_out=condition.left_out + sum(not t.is_following for t in condition.tables[TABLES_MAX:]),
        tables=[
            broker_pb2.TableReport(
                table_id=table.table_id,
                name=_line(table.name, NAME_CHARACTERS_MAX),
                state=table.state,
                reason=_line(table.reason, REASON_CHARACTERS_MAX),
                quarantined=table.quarantined,
                rows=_line(table.rows, REASON_CHARACTERS_MAX),
                columns=_line(table.columns, REASON_CHARACTERS_MAX),
            )
            for table in listed
        ],
        figures=_encode_figures(condition.figures),
    )


def _encode_figures(figures: conditions.AdapterFigures) -> broker_pb2.AdapterFigures | None:
    if figures == conditions.NO_FIGURES:
        return None
    counts = sorted(figures.rows.items())[: limits.REPORTED_ROW_COUNTS_MAX]
    return broker_pb2.AdapterFigures(
        place=_line(figures.place, NAME_CHARACTERS_MAX),
        rows=[broker_pb2.TableRowCount(table_id=table_id, rows=rows) for table_id, rows in counts],
        counted_at_us=figures.counted_at_us,
        fills=[
            broker_pb2.TableFill(
                table_id=fill.table_id,
                name=_line(fill.name, NAME_CHARACTERS_MAX),
                rows=fill.rows,
                rows_expected=fill.rows_expected,
            )
            for fill in figures.fills[:TABLES_MAX]
        ],
        compared=broker_pb2.Comparison(**asdict(figures.compared)) if figures.compared is not None else None,
        compares_every_s=figures.compares_every_s,
    )


def _decode_figures(figures: broker_pb2.AdapterFigures) -> conditions.AdapterFigures:
    compared = {field.name: getattr(figures.compared, field.name) for field in fields(conditions.LastComparison)}
    return conditions.AdapterFigures(
        place=figures.place,
        rows={count.table_id: count.rows for count in figures.rows},
        counted_at_us=figures.counted_at_us,
        fills=tuple(
            conditions.TableFillFigures(table_id=f.table_id, name=f.name, rows=f.rows, rows_expected=f.rows_expected)
            for f in figures.fills
        ),
        compared=conditions.LastComparison(**compared) if figures.HasField("compared") else None,
        compares_every_s=figures.compares_every_s,
    )


def decode(report: broker_pb2.AdapterReport) -> conditions.AdapterCondition:
    """Return the condition in a checked message."""
    return conditions.AdapterCondition(
        paused=report.paused,
        cut_over=report.cut_over,
        left_out=report.tables_left_out,
        quarantined=report.quarantined,
        tables=tuple(
            conditions.TableCondition(
                table_id=table.table_id,
                name=table.name,
                state=table.state,
                reason=table.reason,
                quarantined=table.quarantined,
                rows=table.rows,
                columns=table.columns,
            )
            for table in report.tables
        ),
        figures=_decode_figures(report.figures),
    )


def check(report: broker_pb2.AdapterReport) -> None:
    """Raise ProtocolError for a report that no VENUS adapter sends."""
    if len(report.tables) > TABLES_MAX:
        raise ProtocolError(f"a report names {len(report.tables):,} tables, at most {TABLES_MAX} are taken")
    if len(report.cut_over) > limits.REPORTED_MOMENT_CHARS_MAX or not report.cut_over.isprintable():
        raise ProtocolError("a report has a too long or unreadable time of a cut-over")
    for table in report.tables:
        if not 0 < len(table.name) <= NAME_CHARACTERS_MAX or max(map(len, _texts(table))) > REASON_CHARACTERS_MAX:
            raise ProtocolError(f"a report has no name or too long a text for table {table.table_id}")
        if not (table.name + "".join(_texts(table))).isprintable() or not _STATE.fullmatch(table.state):
            raise ProtocolError(f"a report has an unreadable name, reason or state for table {table.table_id}")
    _check_figures(report.figures)


def _check_figures(figures: broker_pb2.AdapterFigures) -> None:
    """Raise ProtocolError for figures with too many tables, or with invalid names or verdicts."""
    if len(figures.rows) > limits.REPORTED_ROW_COUNTS_MAX or len(figures.fills) > TABLES_MAX:
        raise ProtocolError(f"a report counts {max(len(figures.rows), len(figures.fills)):,} tables: they are too many")
    texts = [figures.place, figures.compared.leg, *(fill.name for fill in figures.fills)]
    if max(map(len, texts)) > NAME_CHARACTERS_MAX or not "".join(texts).isprintable():
        raise ProtocolError("a report has a too long or unreadable name of a database or a table")
    if figures.HasField("compared") and figures.compared.verdict not in conditions.VERDICTS:
        raise ProtocolError(f"a report has a verdict that does not exist: {figures.compared.verdict[:20]!r}")


def _texts(table: broker_pb2.TableReport) -> tuple[str, str, str]:
    """Return the texts of a table's report that have a limited length."""
    return table.reason, table.rows, table.columns


def reported_problems(entry: broker_pb2.BusinessStatus, now_us: int) -> Iterator[tuple[str, str]]:
    """Yield the problems that need an operator, each with the reporting group (SOURCE for the upper adapter)."""
    if entry.HasField("source"):
        yield from (
            (SOURCE, text)
            for text in _problem_texts(entry.source, conditions.problems(decode(entry.source.report)), now_us)
        )
    for consumer in entry.consumers:
        target = consumer.group.removeprefix(f"{entry.business}/")
        if consumer.HasField("reported"):
            found = conditions.problems(decode(consumer.reported.report), target)
            yield from ((consumer.group, text) for text in _problem_texts(consumer.reported, found, now_us))
        if consumer.unaccounted_rows:
            yield consumer.group, conditions.unaccounted_problem(consumer.unaccounted_rows, target)


def _problem_texts(reported: broker_pb2.Reported, found: list[str], now_us: int) -> list[str]:
    """Append to each problem how old it is, if its adapter is away."""
    if not reported.unknown_since_us:
        return found
    age_s = max(0, now_us - reported.unknown_since_us) // 10**6
    return [f"{text} (as it was {age_s:,} s ago: its adapter has been away since)" for text in found]


def _line(text: str, characters_max: int) -> str:
    """Return a text as one line of printable characters, truncated to its limit."""
    line = "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))
    return line if len(line) <= characters_max else line[: characters_max - 3] + "..."


def to_wire(identity: RowsIdentity) -> broker_pb2.RowsIdentity:
    """Return the message of a rows identity."""
    return broker_pb2.RowsIdentity(
        set=identity.set,
        tables=[
            broker_pb2.TableRows(table_id=one.table_id, name=one.name, rows=one.rows, digest=one.digest)
            for one in identity.tables
        ],
    )


def from_wire(message: broker_pb2.RowsIdentity) -> RowsIdentity:
    """Return the rows identity in a message."""
    return RowsIdentity(
        set=message.set,
        tables=tuple(
            TableRows(table_id=one.table_id, name=one.name, rows=one.rows, digest=one.digest) for one in message.tables
        ),
    )


def rows_identity(message: broker_pb2.Opened | broker_pb2.Snapshot | broker_pb2.Increment) -> RowsIdentity | None:
    """Return the rows identity that a broker sends with a position; None from an older broker."""
    return from_wire(message.rows) if message.HasField("rows") else None


def check_table(snapshot: broker_pb2.Snapshot, rows: RowsIdentity | None, table_id: int) -> None:
    """Raise Unavailable if a snapshot's rows of a table differ from those of the set whose changes are followed.

    `rows` None: the followed set has not sent its identity.
    """
    found = rows_identity(snapshot)
    if rows is not None and found is not None and find_differing(rows, found, (table_id,)):
        raise Unavailable(f"set {found.set} has other rows: {describe_differences((table_id,), rows, found)}")
