r"""The codec again, value by value in plain Python: slow, short, and the reference for the fast one.

It shares only the model with `venus.codec`, so that an error in one codec is not repeated in the other.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

from hypothesis import strategies as st

from venus.model import Column, Kind, LogicalType, TableSchema

Value = str | bytes | None
Row = list[Value]

ESCAPES = {"\b": "\\b", "\t": "\\t", "\n": "\\n", "\v": "\\v", "\f": "\\f", "\r": "\\r", "\\": "\\\\"}
ESCAPE_TABLE = str.maketrans(ESCAPES)
UNESCAPES = {ord(e[1]): c for c, e in ESCAPES.items()}


class MalformedText(Exception):
    """Raised for text that the reference does not accept."""


def copy_field(value: Value) -> bytes:
    if value is None:
        return b"\\N"
    if isinstance(value, bytes):
        return b"\\\\x" + value.hex().encode()
    return value.translate(ESCAPE_TABLE).encode()


def copy_lines(rows: Seq[Seq[Value]]) -> bytes:
    return b"".join(b"\t".join(map(copy_field, row)) + b"\n" for row in rows)


def parse_field(field: bytes, binary: bool) -> Value:
    if field == b"\\N":
        return None
    out, octets = bytearray(), iter(field)
    for octet in octets:
        if octet != ord("\\"):
            out.append(octet)
        else:
            letter = next(octets, -1)
            if letter not in UNESCAPES:
                raise MalformedText(field)
            out += UNESCAPES[letter].encode()
    if not binary:
        return bytes(out).decode()
    if out[:2] != b"\\x" or any(c not in b"0123456789abcdefABCDEF" for c in out[2:]) or len(out) % 2:
        raise MalformedText(field)
    return bytes.fromhex(out[2:].decode())


def parse_lines(text: bytes, binary: Seq[bool]) -> list[Row]:
    if text and not text.endswith(b"\n"):
        raise MalformedText(text)
    rows: list[Row] = []
    for line in text.split(b"\n")[:-1]:
        fields = line.split(b"\t")
        if len(fields) != len(binary):
            raise MalformedText(line)
        try:
            rows.append([parse_field(f, b) for f, b in zip(fields, binary, strict=True)])
        except UnicodeDecodeError as e:
            raise MalformedText(line) from e
    return rows


def varint(value: int) -> bytes:
    return bytes([value]) if value < 128 else bytes([value % 128 + 128]) + varint(value // 128)


def encode_row(values: Seq[Value], numbers: Seq[int]) -> bytes:
    out = b""
    for value, number in zip(values, numbers, strict=True):
        if value is not None:
            raw = value if isinstance(value, bytes) else value.encode()
            out += varint(number * 8 + 2) + varint(len(raw)) + raw
    return out


def decode_row(data: bytes, numbers: Seq[int], binary: Seq[bool]) -> Row:
    row: Row = []
    for number, is_binary in zip(numbers, binary, strict=True):
        tag = varint(number * 8 + 2)
        if not data.startswith(tag):
            row.append(None)
            continue
        data = data[len(tag) :]
        length = shift = 0
        while True:
            if not data or shift > 28:
                raise MalformedText(data)
            octet, data = data[0], data[1:]
            length += octet % 128 << shift
            shift += 7
            if octet < 128:
                break
        if length > len(data):
            raise MalformedText(data)
        raw, data = data[:length], data[length:]
        try:
            row.append(raw if is_binary else raw.decode())
        except UnicodeDecodeError as e:
            raise MalformedText(raw) from e
    if data:
        raise MalformedText(data)
    return row


# -- random tables and rows -----------------------------------------------------------------------------------------

#: Field numbers around every limit: one, two and more bytes of tag; 19000-19999 are reserved by protobuf.
NUMBERS = st.one_of(
    st.integers(1, 40), st.sampled_from([2046, 2047, 2048, 18_999, 20_000, 262_143, 262_144, 2**29 - 1])
)

TEXT = st.one_of(
    st.text(st.sampled_from("ab\\\\\t\n\r\b\f\vNnxt.é🙂\0 "), max_size=12),
    st.sampled_from(["", "\\N", "\\", "\\\\", "\\.", "N", "\\\\N", "\\x", "\\x00", "\t\n", "t", "f", "🙂", "\ufeff"]),
    st.text(max_size=8),
    st.builds(str.__mul__, st.sampled_from(["a", "é", "\\"]), st.sampled_from([63, 64, 127, 128, 129, 16383, 16384])),
)
BINARY = st.one_of(st.binary(max_size=12), st.builds(bytes, st.sampled_from([126, 127, 128, 16384])))


def column(name: str, number: int, kind: Kind = Kind.TEXT) -> Column:
    return Column(name=name, number=number, type=LogicalType(kind=kind))


def table(*columns: Column, key: Seq[str], table_id: int = 1, version: int = 1) -> TableSchema:
    return TableSchema(
        table_id=table_id, version=version, namespace="shop", name="orders", columns=columns, key=tuple(key)
    )


@st.composite
def tables(draw: st.DrawFn, names: st.SearchStrategy[str] | None = None) -> TableSchema:
    named = st.text("abc _", min_size=1, max_size=4) if names is None else names
    chosen = draw(
        st.lists(st.tuples(named, NUMBERS), min_size=1, max_size=7, unique_by=(lambda c: c[0], lambda c: c[1]))
    )
    kinds = st.sampled_from([Kind.TEXT, Kind.TEXT, Kind.BYTES])
    columns = [column(name, number, draw(kinds)) for name, number in chosen]
    key = draw(st.permutations([c.name for c in columns]))[: draw(st.integers(1, len(columns)))]
    return table(*columns, key=key)


@st.composite
def tables_with_rows(draw: st.DrawFn) -> tuple[TableSchema, list[Row]]:
    schema = draw(tables())
    values = [
        value if column.name in schema.key else st.none() | value
        for column in schema.wire_columns
        for value in [BINARY if column.type.kind is Kind.BYTES else TEXT]
    ]
    return schema, draw(st.lists(st.tuples(*values).map(list), max_size=6))
