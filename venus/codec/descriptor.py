"""The protobuf message type of one table version, made from its schema (VENUS 3.2).

It travels in `TableSchema.file_descriptor`, so that a reader in any language can decode a row without VENUS. Fields
are proto3 `optional`, hence presence is real: NULL is the absent field and '' is not NULL.
"""

from __future__ import annotations

import re
import unicodedata

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import Message

from venus.codec.layout import Layout
from venus.model import Column, Kind, TableSchema

_Field = descriptor_pb2.FieldDescriptorProto


def package(schema: TableSchema) -> str:
    """Return the protobuf package: versions of a table can live side by side in one pool."""
    return f"venus.rows.t{schema.table_id}.v{schema.version}"


def row_message(schema: TableSchema) -> str:
    """Return the full name of the row message."""
    words = _identifier(schema.name).split("_")
    return f"{package(schema)}.{''.join(w.capitalize() for w in words) or 'Row'}"


def field_names(schema: TableSchema) -> dict[int, str]:
    """Return a legal, unique protobuf name for each field number.

    Lower case without a leading underscore: so no name hides a method of a generated class or meets the name of a
    synthetic oneof. Names also differ without underscores, because protobuf compares their JSON forms.
    """
    real = {c.name for c in schema.columns}
    taken: set[str] = set()
    names: dict[int, str] = {}
    for column in sorted(schema.columns, key=_number):
        stem = _identifier(column.name) or "column"
        name, again = stem, 0
        # The name of one field must not be the JSON name, i.e. the real name, of another one either.
        while name.replace("_", "") in taken or (name != column.name and name in real):
            name = f"{stem}_{column.number}" + ("x" * again)
            again += 1
        taken.add(name.replace("_", ""))
        names[column.number] = name
    return names


def _number(column: Column) -> int:
    return column.number


def _identifier(name: str) -> str:
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
    word = re.sub(r"[^a-z0-9]+", "_", plain).strip("_")
    return f"n{word}" if word[:1].isdigit() else word


def file_descriptor(schema: TableSchema) -> bytes:
    """Return a serialised FileDescriptorProto with the row message alone; real column names are the JSON names."""
    layout = Layout.of(schema)
    file = descriptor_pb2.FileDescriptorProto(
        name=f"{package(schema).replace('.', '/')}.proto", package=package(schema), syntax="proto3"
    )
    message = file.message_type.add(name=row_message(schema).rpartition(".")[2])
    names = field_names(schema)
    real = {c.name for c in schema.columns}
    for column in sorted(layout.columns, key=_number):
        binary = column.type.kind is Kind.BYTES
        message.field.add(
            name=names[column.number],
            json_name=_json_name(column.name, names[column.number]),
            number=column.number,
            label=_Field.LABEL_OPTIONAL,
            type=_Field.TYPE_BYTES if binary else _Field.TYPE_STRING,
            oneof_index=len(message.oneof_decl),
            proto3_optional=True,
        )
        message.oneof_decl.add(name=_oneof_name(names[column.number], real))
    return file.SerializeToString(deterministic=True)


def _json_name(column: str, field: str) -> str:
    """Return the real name, or the field's where protobuf forbids that one."""
    forbidden = (column.startswith("[") and column.endswith("]")) or "\0" in column
    return field if forbidden else column


def _oneof_name(field: str, real: set[str]) -> str:
    """Return the name of the synthetic oneof, as protoc makes it; JSON names share its scope."""
    name = f"_{field}"
    while name in real:
        name = f"X{name}"
    return name


def message_class(schema: TableSchema) -> type[Message]:
    """Return the real protobuf class of the row message, in a pool of its own."""
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file_descriptor(schema))
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(row_message(schema)))
