"""All fields on the wire and in the store: message, name, number and type of each.

Brokers and adapters of two versions communicate during an upgrade, and a broker reads data that an older one has
stored. So a field keeps its number and its type forever; a removed field leaves its number `reserved`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor

from venus.wire import broker_pb2, change_pb2, mirror_pb2, replica_pb2

FILES = (broker_pb2, change_pb2, mirror_pb2, replica_pb2)
#: The list of fields, one a line; `python -m tests.support.wire_fields` only adds to it.
KNOWN = Path(__file__).with_suffix(".txt")

_TYPES = {
    number: name.removeprefix("TYPE_").lower() for name, number in vars(FieldDescriptor).items() if name[:5] == "TYPE_"
}


def current_lines() -> list[str]:
    """Return a line for each current field, enum value and call."""
    lines: list[str] = []
    for file in FILES:
        for message in file.DESCRIPTOR.message_types_by_name.values():
            lines += _message(message)
        for enum in file.DESCRIPTOR.enum_types_by_name.values():
            lines += _enum(enum)
        for service in file.DESCRIPTOR.services_by_name.values():
            lines += (f"{m.full_name} {m.input_type.full_name} {m.output_type.full_name}" for m in service.methods)
    return sorted(lines)


def known_lines() -> list[str]:
    """Return the recorded lines."""
    return KNOWN.read_text().splitlines()


def _message(message: Descriptor) -> Iterator[str]:
    for field in message.fields:
        kind = field.message_type or field.enum_type
        of = f" {kind.full_name}" if kind is not None else ""
        many = "repeated " if field.is_repeated else ""
        yield f"{message.full_name}.{field.name} {field.number} {many}{_TYPES[field.type]}{of}"
    for nested in message.nested_types:
        yield from _message(nested)
    for enum in message.enum_types:
        yield from _enum(enum)


def _enum(enum: EnumDescriptor) -> Iterator[str]:
    return (f"{enum.full_name}.{value.name} {value.number}" for value in enum.values)


if __name__ == "__main__":
    if gone := set(known_lines()) - set(current_lines()) if KNOWN.exists() else set():
        sys.stderr.write(f"not added to: {', '.join(sorted(gone))} changed or went\n")
        raise SystemExit(1)
    KNOWN.write_text("\n".join(current_lines()) + "\n")
