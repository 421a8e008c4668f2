"""A table's description, its fingerprint, and the protobuf message type that is sent with it."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2
from grpc_tools import protoc
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.unit.codec import plain
from venus.codec.schema import (
    canonical_json,
    field_names,
    file_descriptor,
    fingerprint,
    from_wire,
    message_class,
    row_message,
    to_wire,
)
from venus.errors import ProtocolError
from venus.model import (
    UNFINISHED,
    Check,
    Column,
    ForeignKey,
    Index,
    Kind,
    LeftOut,
    LogicalType,
    OwnType,
    TableSchema,
)
from venus.wire import change_pb2 as wire

SCHEMA = TableSchema(
    table_id=7,
    version=3,
    namespace="Läden",
    name="Order lines",
    columns=(
        Column(
            name="order",
            number=2,
            type=LogicalType(kind=Kind.INT, length=8),
            nullable=False,
            source_type="BIGINT",
            default_sql="0",
            identity=True,
            comment="the order's number",
        ),
        Column(name="price", number=1, type=LogicalType(kind=Kind.DECIMAL, precision=10, scale=-2)),
        Column(
            name="tags",
            number=40,
            type=LogicalType(kind=Kind.ARRAY, element=LogicalType(kind=Kind.CHAR, length=3)),
        ),
        Column(name="shape", number=41, type=LogicalType(kind=Kind.NATIVE, name="polygon")),
        Column(name="photo", number=42, type=LogicalType(kind=Kind.BYTES)),
    ),
    key=("order", "price"),
    indexes=(
        Index(name="i", columns=("price", "tags"), unique=True, constraint=True),
        Index(name="j", columns=("tags",), definition='("tags" DESC) WHERE ("price" > 0)'),
    ),
    foreign_keys=(
        ForeignKey(
            name="f",
            columns=("order",),
            referred_namespace="Läden",
            referred_table="orders",
            referred_columns=("id",),
            on_delete="CASCADE",
            on_update="SET NULL",
        ),
    ),
    comment="lines of orders",
    source_dialect="postgresql",
    checks=(Check(name="c", sql='("price" > 0)'),),
    left_out=(LeftOut(what="trigger", name="t", definition="BEFORE INSERT", reason="it is code"),),
    types=(
        OwnType(namespace="Läden", name="mood", sql_name='"Läden".mood', labels=("so so", "it's")),
        OwnType(
            namespace="Läden",
            name="code",
            sql_name='"Läden".code',
            base=LogicalType(kind=Kind.TEXT, length=8),
            base_sql_name="character varying(8)",
            not_null=True,
            default_sql="'none'",
            checks=(Check(name="long", sql="(length(VALUE) > 2)"),),
        ),
    ),
)

#: Legal column names, among them ones that protobuf might reject.
HOSTILE = [
    *(
        "a b",
        "a_b",
        "aB",
        "AB",
        "ab",
        "_a_b",
        "a_b_3",
        "X_a",
        "_a",
        "a",
        "",
        " ",
        "\t",
        '"',
        "a.b",
        "ä",
        "a\u0308",
        "名",
    ),
    *("🙂", "1", "1a", "n1", "DESCRIPTOR", "SerializeToString", "class", "None", "__init__", "__class__", "column"),
    *("column_29", "column_30", "message", "optional", "oneof", "string", "_column", "XX_a", "[x]", "a\0b", "x" * 200),
]


def hostile_table(names: list[str]) -> TableSchema:
    return plain.table(*(plain.column(name, i) for i, name in enumerate(names, 1)), key=names[:1])


def json_names(schema: TableSchema) -> dict[int, str]:
    """Return the real names; the few that protobuf forbids are replaced."""
    return {
        c.number: field_names(schema)[c.number] if "\0" in c.name or c.name[:1] + c.name[-1:] == "[]" else c.name
        for c in schema.columns
    }


def test_the_complete_description_of_a_table_is_sent() -> None:
    message = wire.TableSchema.FromString(to_wire(SCHEMA).SerializeToString())

    assert from_wire(message) == SCHEMA
    assert message.row_message == "venus.rows.t7.v3.OrderLines"


def test_the_descriptor_is_sent_and_is_one_message_with_presence() -> None:
    file = descriptor_pb2.FileDescriptorProto.FromString(to_wire(SCHEMA).file_descriptor)

    (message,) = file.message_type
    assert f"{file.package}.{message.name}" == row_message(SCHEMA)
    assert file.syntax == "proto3"
    assert [(f.number, f.name, f.json_name, f.type) for f in message.field] == [
        (1, "price", "price", 9),
        (2, "order", "order", 9),
        (40, "tags", "tags", 9),
        (41, "shape", "shape", 9),
        (42, "photo", "photo", 12),
    ]
    assert all(f.proto3_optional for f in message.field)
    assert sorted(f.oneof_index for f in message.field) == list(range(5))
    made = message_class(SCHEMA)
    assert made(price="").HasField("price")
    assert not made().HasField("price")


def test_an_unknown_type_is_refused() -> None:
    message = to_wire(SCHEMA)
    message.columns[1].type.kind = 99  # type: ignore[assignment]

    with pytest.raises(ProtocolError, match="column price: type 99 is unknown to this version"):
        from_wire(message)


def test_a_description_without_a_key_is_refused() -> None:
    message = to_wire(SCHEMA)
    del message.key[:]

    with pytest.raises(ProtocolError, match="no key"):
        from_wire(message)


def test_hostile_names_are_accepted_by_protobuf_in_every_language(tmp_path: Path) -> None:
    schema = hostile_table(HOSTILE)
    file = descriptor_pb2.FileDescriptorProto.FromString(file_descriptor(schema))
    (tmp_path / "set.pb").write_bytes(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString())

    # The compiler's own pool is the strictest: it is that of C++.
    assert protoc.main(["", f"--descriptor_set_in={tmp_path}/set.pb", f"--python_out={tmp_path}", file.name]) == 0
    assert {f.number: f.json_name for f in message_class(schema).DESCRIPTOR.fields} == json_names(schema)
    assert len(set(field_names(schema).values())) == len(HOSTILE)


@settings(deadline=None, max_examples=80)
@given(
    st.lists(st.text(max_size=4) | st.sampled_from(HOSTILE) | st.text("aAbB_1 ", max_size=5), min_size=1, unique=True)
)
@example(["a b", "a_b"])
@example(["a_b", "a_b_2", "a b"])
@example(["_a", "a"])
def test_all_names_become_a_message_that_keeps_them(names: list[str]) -> None:
    schema = hostile_table(names)

    made = message_class(schema)

    assert {f.number: f.json_name for f in made.DESCRIPTOR.fields} == json_names(schema)
    message = made(**{f.name: str(f.number) for f in made.DESCRIPTOR.fields})
    parsed = made.FromString(message.SerializeToString())
    assert {f.number: v for f, v in parsed.ListFields()} == {i: str(i) for i in range(1, len(names) + 1)}


def test_a_new_column_does_not_change_the_names_of_the_others() -> None:
    before = field_names(hostile_table(["a b", "A-B", "c"]))

    after = field_names(hostile_table(["a b", "A-B", "c", "a.b"]))

    assert {n: after[n] for n in before} == before


def test_the_fingerprint_is_the_same_in_every_process() -> None:
    program = "from tests.unit.codec.test_schema import SCHEMA, fingerprint; print(fingerprint(SCHEMA))"
    found = {
        subprocess.run(
            [sys.executable, "-c", program], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout.strip()
        for seed in ("1", "2")
    }

    assert found == {fingerprint(SCHEMA)}


def change_column(index: int, **what: object) -> TableSchema:
    columns = list(SCHEMA.columns)
    columns[index] = replace(columns[index], **what)  # type: ignore[arg-type]
    return replace(SCHEMA, columns=tuple(columns))


@pytest.mark.parametrize(
    "other",
    [
        change_column(0, nullable=True),
        change_column(0, default_sql="1"),
        change_column(0, identity=False),
        change_column(2, name="labels"),
        change_column(2, number=43),
        change_column(2, type=LogicalType(kind=Kind.ARRAY, element=LogicalType(kind=Kind.CHAR, length=4))),
        change_column(3, type=LogicalType(kind=Kind.NATIVE, name="circle")),
        replace(SCHEMA, key=("price", "order")),
        replace(SCHEMA, types=(replace(SCHEMA.types[0], labels=("so so", "it's", "more")), SCHEMA.types[1])),
        replace(SCHEMA, columns=SCHEMA.columns[:-1]),
        replace(SCHEMA, columns=(*SCHEMA.columns[:-2], SCHEMA.columns[-1], SCHEMA.columns[-2])),
        replace(SCHEMA, indexes=()),
        replace(SCHEMA, indexes=(SCHEMA.indexes[0], replace(SCHEMA.indexes[1], definition='("tags")'))),
        replace(SCHEMA, indexes=(replace(SCHEMA.indexes[0], unique=False, constraint=False), SCHEMA.indexes[1])),
        replace(SCHEMA, foreign_keys=()),
        replace(SCHEMA, foreign_keys=(replace(SCHEMA.foreign_keys[0], on_delete=""),)),
        replace(SCHEMA, checks=(Check(name="c", sql='("price" > 1)'),)),
        replace(SCHEMA, left_out=()),
        replace(SCHEMA, types=(SCHEMA.types[0], replace(SCHEMA.types[1], not_null=False))),
        replace(SCHEMA, types=(SCHEMA.types[0], replace(SCHEMA.types[1], checks=()))),
    ],
)
def test_the_fingerprint_depends_on_everything_that_shapes_a_target(other: TableSchema) -> None:
    assert fingerprint(other) != fingerprint(SCHEMA)


@pytest.mark.parametrize(
    "other",
    [
        replace(SCHEMA, table_id=8),
        replace(SCHEMA, version=4),
        replace(SCHEMA, comment=""),
        replace(SCHEMA, indexes=tuple(reversed(SCHEMA.indexes))),
        replace(SCHEMA, left_out=(replace(SCHEMA.left_out[0], reason="in other words"),)),
        replace(
            SCHEMA,
            left_out=(*SCHEMA.left_out, LeftOut(what="index", name="k_ccnew", definition="(a)", reason=UNFINISHED)),
        ),
        change_column(0, comment=""),
        change_column(0, source_type="int8"),
    ],
)
def test_the_fingerprint_does_not_depend_on_text_for_people(other: TableSchema) -> None:
    assert fingerprint(other) == fingerprint(SCHEMA)
    assert canonical_json(other) == canonical_json(SCHEMA)
