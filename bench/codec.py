"""COPY text to row bytes and back: rows per second of one core, beside protobuf's own class on the same rows.

`python -m bench.codec [seconds per figure]`. The peer splits each line, fills one message per row and serialises it. On
the way back it parses each message and joins its values; key and other columns are two messages, as they are in VENUS.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Callable

from google.protobuf.message import Message
from rich.console import Console
from rich.table import Table

from venus.codec.columns import from_columns, to_columns
from venus.codec.copy_text import from_copy, to_copy
from venus.codec.packed import PackedBytes
from venus.codec.row_bytes import Layout
from venus.codec.schema import message_class
from venus.model import Column, Kind, LogicalType, TableSchema

ROWS = 5000


def table(columns: int, version: int) -> TableSchema:
    """Return a table with this number of text columns."""
    made = (Column(name=f"c{i}", number=i, type=LogicalType(kind=Kind.TEXT)) for i in range(1, columns + 1))
    return TableSchema(table_id=1, version=version, namespace="bench", name="rows", columns=tuple(made), key=("c1",))


def narrow_rows() -> bytes:
    """Return rows of 4 columns and 100 bytes as COPY text."""
    lines = (
        f"{100_000 + i}\tstudent {i:08d}{'x' * 22}\t{'class of some kind':30s}\t{'address' * 3}\n" for i in range(ROWS)
    )
    return "".join(lines).encode()


def wide_rows(null_ratio: float, special_ratio: float) -> bytes:
    """Return rows of 20 columns as COPY text; the ratios are those of NULLs and of values that need escapes."""
    chance = random.Random(7)

    def random_value() -> str:
        if chance.random() < null_ratio:
            return "\\N"
        text = "v" * chance.randint(3, 20)
        return text + "\\n\\\\" if chance.random() < special_ratio else text

    return "".join("\t".join([str(i), *(random_value() for _ in range(19))]) + "\n" for i in range(ROWS)).encode()


class ProtobufPeer:
    """The codec to compare with: protobuf's own class, a message per key and per row."""

    def __init__(self, schema: TableSchema) -> None:
        self.message: type[Message] = message_class(schema)
        self.names = [f.name for f in self.message.DESCRIPTOR.fields]

    def from_text(self, text: bytes) -> tuple[PackedBytes, PackedBytes]:
        """Encode COPY text as keys and rows."""
        keys, rows, key = [], [], self.names[0]
        others = self.names[1:]
        for line in text.decode().split("\n")[:-1]:
            first, *rest = line.split("\t")
            keys.append(self.message(**{key: first}).SerializeToString())
            values = {n: _unescape(v) for n, v in zip(others, rest, strict=True) if v != "\\N"}
            rows.append(self.message(**values).SerializeToString())
        return PackedBytes.of(keys), PackedBytes.of(rows)

    def to_text(self, keys: PackedBytes, rows: PackedBytes) -> bytes:
        """Decode keys and rows to COPY text."""
        lines = []
        for key, row in zip(keys.split(), rows.split(), strict=True):
            message = self.message.FromString(key + row)
            values = {f.name: v for f, v in message.ListFields()}
            lines.append("\t".join(_escape(values[n]) if n in values else "\\N" for n in self.names))
        return ("\n".join(lines) + "\n").encode()


def _unescape(value: str) -> str:
    # Enough for the rows above; real code would need a scan.
    return value.replace("\\n", "\n").replace("\\\\", "\\") if "\\" in value else value


def _escape(value: str) -> str:
    if "\\" in value or "\n" in value:
        return value.replace("\\", "\\\\").replace("\n", "\\n")
    return value


def rate(work: Callable[[], object], seconds: float) -> float:
    """Return rows per second of CPU (other work does not count): the median of as many repeats as fit, at least 5."""
    work()
    times: list[float] = []
    until = time.perf_counter() + seconds
    while len(times) < 5 or time.perf_counter() < until:
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return ROWS / statistics.median(times)


def main(seconds: float) -> None:
    cases = {
        "4 columns": (table(4, 1), narrow_rows()),
        "20 columns, no NULL": (table(20, 2), wide_rows(0, 0)),
        "20 columns, 15 % NULL": (table(20, 2), wide_rows(0.15, 0)),
        "20 columns, 15 % NULL, 2 % escaped": (table(20, 2), wide_rows(0.15, 0.02)),
    }
    shown = Table(title=f"rows per second of one core, median, {ROWS} rows a batch; x = of protobuf's class")
    for heading in ("", "B/row", "from_copy", "x", "to_copy", "x", "from_columns", "to_columns"):
        shown.add_column(heading, justify="right" if heading else "left")
    for name, (schema, text) in cases.items():
        layout, peer = Layout.of(schema), ProtobufPeer(schema)
        keys, rows, _ = from_copy(text, layout, flagged=False)
        theirs = peer.from_text(text)
        assert (keys.data, rows.data) == (theirs[0].data, theirs[1].data)
        assert to_copy(keys, rows, layout) == peer.to_text(keys, rows) == text
        columns = to_columns(keys, rows, layout)
        up = rate(lambda: from_copy(text, layout, flagged=False), seconds)  # noqa: B023
        up_peer = rate(lambda: peer.from_text(text), seconds)  # noqa: B023
        down = rate(lambda: to_copy(keys, rows, layout), seconds)  # noqa: B023
        down_peer = rate(lambda: peer.to_text(keys, rows), seconds)  # noqa: B023
        others = [
            rate(lambda: from_columns(columns, layout), seconds),  # noqa: B023
            rate(lambda: to_columns(keys, rows, layout), seconds),  # noqa: B023
        ]
        figures = (f"{up:,.0f}", f"{up / up_peer:.1f}", f"{down:,.0f}", f"{down / down_peer:.1f}")
        shown.add_row(name, f"{len(text) / ROWS:.0f}", *figures, *(f"{r:,.0f}" for r in others))
    Console(width=140).print(shown)


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 0.5)
