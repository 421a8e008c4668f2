"""A table's description in the model and on the wire, its fingerprint, and the protobuf message type of its rows.

The description travels once per version, in the first batch that uses it. It is enough to build the table at a target
with the source switched off (VENUS 3.2). Its `file_descriptor` lets a reader in any language decode a row without
VENUS. Fields are proto3 `optional`, hence presence is real: NULL is the absent field, and '' is not NULL.
"""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import Message

from venus.codec.row_bytes import Layout, check_columns
from venus.errors import ProtocolError
from venus.masking.projection import ProjectedSchema, project_schema
from venus.masking.rules import TableColumns
from venus.model import (
    CHILD_TABLE,
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

_Field = descriptor_pb2.FieldDescriptorProto


def package(schema: TableSchema) -> str:
    """Return the protobuf package of a version, so that versions of a table can be in one pool side by side."""
    return f"venus.rows.t{schema.table_id}.v{schema.version}"


def row_message(schema: TableSchema) -> str:
    """Return the full name of the row message."""
    words = _identifier(schema.name).split("_")
    return f"{package(schema)}.{''.join(w.capitalize() for w in words) or 'Row'}"


def field_names(schema: TableSchema) -> dict[int, str]:
    """Return a legal, unique protobuf name for each field number.

    Names are in lower case without a leading underscore, so none hides a method of a generated class or equals the name
    of a synthetic oneof. Names differ even without their underscores, because protobuf compares their JSON forms.
    """
    real = {c.name for c in schema.columns}
    taken: set[str] = set()
    names: dict[int, str] = {}
    for column in sorted(schema.columns, key=_number):
        stem = _identifier(column.name) or "column"
        name, again = stem, 0
        # Nor may the name of one field be the JSON name, i.e. the real name, of another field.
        while name.replace("_", "") in taken or (name != column.name and name in real):
            name = f"{stem}_{column.number}" + ("x" * again)
            again += 1
        taken.add(name.replace("_", ""))
        names[column.number] = name
    return names


def _number(column: Column) -> int:
    """Return a column's field number, as a sort key."""
    return column.number


def _identifier(name: str) -> str:
    """Return a name as a protobuf identifier in lower case."""
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
    """Return a column's real name, or its field name where protobuf forbids the real one."""
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


__all__ = ["canonical_json", "file_descriptor", "fingerprint", "from_wire", "message_class", "to_wire"]


def to_wire(schema: TableSchema) -> wire.TableSchema:
    """Return the message, with the descriptor of its rows; for a projected version, with its source and the rules."""
    if isinstance(schema, ProjectedSchema):
        message = to_wire(schema.source)
        message.projection = schema.rules.to_text()
        return message
    return wire.TableSchema(
        table_id=schema.table_id,
        version=schema.version,
        namespace=schema.namespace,
        name=schema.name,
        columns=[_column_to_wire(c) for c in schema.columns],
        key=schema.key,
        indexes=[_index_to_wire(i) for i in schema.indexes],
        foreign_keys=[_foreign_key_to_wire(f) for f in schema.foreign_keys],
        comment=schema.comment,
        source_dialect=schema.source_dialect,
        file_descriptor=file_descriptor(schema),
        row_message=row_message(schema),
        checks=[wire.Check(name=c.name, sql=c.sql, not_valid=c.not_valid) for c in schema.checks],
        left_out=[
            wire.LeftOut(what=o.what, name=o.name, definition=o.definition, reason=o.reason) for o in schema.left_out
        ],
        types=[_own_type_to_wire(t) for t in schema.types],
    )


def _own_type_to_wire(own: OwnType) -> wire.OwnType:
    return wire.OwnType(
        namespace=own.namespace,
        name=own.name,
        spelled=own.sql_name,
        labels=own.labels,
        base=None if own.base is None else _type_to_wire(own.base),
        base_spelled=own.base_sql_name,
        not_null=own.not_null,
        default_sql=own.default_sql,
        checks=[wire.Check(name=c.name, sql=c.sql, not_valid=c.not_valid) for c in own.checks],
    )


def _index_to_wire(index: Index) -> wire.Index:
    return wire.Index(
        name=index.name,
        columns=index.columns,
        unique=index.unique,
        constraint=index.constraint,
        definition=index.definition,
    )


def _foreign_key_to_wire(key: ForeignKey) -> wire.ForeignKey:
    return wire.ForeignKey(
        name=key.name,
        columns=key.columns,
        referred_namespace=key.referred_namespace,
        referred_table=key.referred_table,
        referred_columns=key.referred_columns,
        on_delete=key.on_delete,
        on_update=key.on_update,
        not_valid=key.not_valid,
    )


def _column_to_wire(column: Column) -> wire.Column:
    return wire.Column(
        name=column.name,
        number=column.number,
        type=_type_to_wire(column.type),
        nullable=column.nullable,
        source_type=column.source_type,
        default_sql=column.default_sql,
        identity=column.identity,
        comment=column.comment,
    )


def _type_to_wire(logical: LogicalType) -> wire.LogicalType:
    return wire.LogicalType(
        kind=wire.LogicalType.Kind.Name(int(logical.kind)),  # type: ignore[arg-type]
        precision=logical.precision,
        scale=logical.scale,
        length=logical.length,
        element=None if logical.element is None else _type_to_wire(logical.element),
        name=logical.name,
    )


def from_wire(message: wire.TableSchema) -> TableSchema:
    """Return the description; ProtocolError if rows could not be decoded with it."""
    schema = TableSchema(
        table_id=message.table_id,
        version=message.version,
        namespace=message.namespace,
        name=message.name,
        columns=tuple(_column_from_wire(c) for c in message.columns),
        key=tuple(message.key),
        indexes=tuple(_index_from_wire(i) for i in message.indexes),
        foreign_keys=tuple(_foreign_key_from_wire(f) for f in message.foreign_keys),
        comment=message.comment,
        source_dialect=message.source_dialect,
        checks=tuple(Check(name=c.name, sql=c.sql, not_valid=c.not_valid) for c in message.checks),
        left_out=tuple(
            LeftOut(what=o.what, name=o.name, definition=o.definition, reason=o.reason) for o in message.left_out
        ),
        types=tuple(_own_type_from_wire(t) for t in message.types),
    )
    check_columns(schema)
    return project_schema(schema, TableColumns.from_text(message.projection)) if message.projection else schema


def _own_type_from_wire(own: wire.OwnType) -> OwnType:
    return OwnType(
        namespace=own.namespace,
        name=own.name,
        sql_name=own.spelled,
        labels=tuple(own.labels),
        base=_type_from_wire(own.base, own.spelled) if own.HasField("base") else None,
        base_sql_name=own.base_spelled,
        not_null=own.not_null,
        default_sql=own.default_sql,
        checks=tuple(Check(name=c.name, sql=c.sql, not_valid=c.not_valid) for c in own.checks),
    )


def _index_from_wire(index: wire.Index) -> Index:
    return Index(
        name=index.name,
        columns=tuple(index.columns),
        unique=index.unique,
        constraint=index.constraint,
        definition=index.definition,
    )


def _foreign_key_from_wire(key: wire.ForeignKey) -> ForeignKey:
    return ForeignKey(
        name=key.name,
        columns=tuple(key.columns),
        referred_namespace=key.referred_namespace,
        referred_table=key.referred_table,
        referred_columns=tuple(key.referred_columns),
        on_delete=key.on_delete,
        on_update=key.on_update,
        not_valid=key.not_valid,
    )


def _column_from_wire(column: wire.Column) -> Column:
    return Column(
        name=column.name,
        number=column.number,
        type=_type_from_wire(column.type, column.name),
        nullable=column.nullable,
        source_type=column.source_type,
        default_sql=column.default_sql,
        identity=column.identity,
        comment=column.comment,
    )


def _type_from_wire(logical: wire.LogicalType, column: str) -> LogicalType:
    try:
        kind = Kind(logical.kind)
    except ValueError as e:
        raise ProtocolError(
            f"column {column}: type {logical.kind} is unknown to this version", hint="Update the older side first."
        ) from e
    return LogicalType(
        kind=kind,
        precision=logical.precision,
        scale=logical.scale,
        length=logical.length,
        element=_type_from_wire(logical.element, column) if logical.HasField("element") else None,
        name=logical.name,
    )


def canonical_json(schema: TableSchema) -> str:
    """Return the properties that distinguish two versions of a table for its rows and its targets, as JSON.

    It has the columns, types, key and child tables; indexes, checks and foreign keys, because a target that is built
    later gets them; and objects that VENUS omits, because operators see them. It has no ids, no table name and no text
    for display (comments, the source's spelling of a type, reasons), and does not depend on the order in which a
    dictionary lists objects.
    """
    columns = [
        {
            "name": c.name,
            "number": c.number,
            "type": _type_to_json(c.type),
            "nullable": c.nullable,
            "default": c.default_sql,
            "identity": c.identity,
        }
        for c in schema.columns
    ]
    said: dict[str, object] = {"columns": columns, "key": schema.key}
    if labels := {t.sql_name: t.labels for t in schema.types if t.base is None}:
        said["labels"] = labels
    if schema.child_tables:
        said["heirs"] = schema.child_tables
    said |= {what: found for what, found in _secondary_objects(schema).items() if found}
    return json.dumps(said, sort_keys=True, separators=(",", ":"))


def _secondary_objects(schema: TableSchema) -> dict[str, list[tuple[object, ...]]]:
    """Return indexes, constraints and what is left out, each kind in a fixed order."""
    return {
        "indexes": sorted((i.name, i.columns, i.unique, i.constraint, i.definition) for i in schema.indexes),
        "foreign_keys": sorted(
            (f.name, f.columns, f.referred_namespace, f.referred_table, f.referred_columns, f.on_delete, f.on_update)
            for f in schema.foreign_keys
        ),
        "checks": sorted((c.name, c.sql) for c in schema.checks),
        "domains": sorted(
            (t.sql_name, t.base_sql_name, t.not_null, t.default_sql, sorted((c.name, c.sql) for c in t.checks))
            for t in schema.types
            if t.base is not None
        ),
        "not_valid": sorted(
            [("check", c.name) for c in schema.checks if c.not_valid]
            + [("foreign key", f.name) for f in schema.foreign_keys if f.not_valid]
            + [(t.sql_name, c.name) for t in schema.types for c in t.checks if c.not_valid]
        ),
        "left_out": sorted(
            (o.what, o.name, o.definition) for o in schema.left_out if o.what != CHILD_TABLE and o.reason != UNFINISHED
        ),
    }


def _type_to_json(logical: LogicalType) -> list[object]:
    element = None if logical.element is None else _type_to_json(logical.element)
    return [logical.kind.name, logical.precision, logical.scale, logical.length, element, logical.name]


def fingerprint(schema: TableSchema) -> str:
    """Return a hash of `canonical_json`: the same in every process, on every machine."""
    return hashlib.blake2b(canonical_json(schema).encode(), digest_size=16).hexdigest()
