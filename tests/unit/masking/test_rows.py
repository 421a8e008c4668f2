"""Masked rows compared with a model that masks one value after the other: random tables, rules and rows."""

from __future__ import annotations

import random
import uuid
from typing import Any

import numpy as np
import pytest

from tests.support.masked_values import SECRET, mask_by_hand
from venus.codec import schema as schemas_codec
from venus.codec.batch import TableChanges
from venus.codec.columns import from_columns, keys_from_columns, keys_to_columns, to_columns
from venus.codec.masked_rows import Maskers, RowMasker, project_section
from venus.codec.packed import PackedBytes
from venus.codec.row_bytes import Layout
from venus.codec.stored_rows import FullRows, StoredRows, heads_of
from venus.masking.functions import MaskingKey
from venus.masking.projection import ProjectedSchema, project_schema
from venus.masking.rules import TableColumns
from venus.masking.syntax import ColumnRule
from venus.model import Column, Kind, LogicalType, TableSchema
from venus.predicates.ranges import compile_predicate

KEY = MaskingKey(SECRET)
TYPES = {
    "text": LogicalType(kind=Kind.TEXT),
    "citext": LogicalType(kind=Kind.NATIVE, name="public.citext"),
    "uuid": LogicalType(kind=Kind.UUID),
    "bytes": LogicalType(kind=Kind.BYTES),
    "int": LogicalType(kind=Kind.INT, length=4),
    "date": LogicalType(kind=Kind.DATE),
    "moment": LogicalType(kind=Kind.TIMESTAMP, precision=6),
    "instant": LogicalType(kind=Kind.TIMESTAMPTZ, precision=6),
}
RULES = {
    "text": ["hmac", "null", "text", "constant", "truncate", "drop", "keep"],
    "citext": ["hmac", "truncate", "keep"],
    "uuid": ["hmac", "null", "drop", "keep"],
    "bytes": ["hmac", "null", "keep"],
    "int": ["null", "constant", "drop", "keep"],
    "date": ["year", "null", "keep"],
    "moment": ["year", "keep"],
    "instant": ["year", "keep"],
}
ARGUMENTS = {"text": "***", "truncate": "3"}
#: Lengths around those at which a field's length takes another byte.
LONG = (0, 1, 5, 126, 127, 128, 129, 300, 16_383, 16_384, 16_500)


def draw_value(kind: str, rng: random.Random) -> Any:
    match kind:
        case "text":
            return "".join(rng.choices("aé\u4e2d\n\\x", k=rng.choice(LONG if rng.random() < 0.1 else LONG[:3])))
        case "citext":
            return rng.choice(["Anna", "ANNA", "ann\u00c4", ""])
        case "uuid":
            return str(uuid.UUID(int=rng.getrandbits(128)))
        case "bytes":
            return rng.randbytes(rng.choice((0, 3, 200)))
        case "int":
            return str(rng.randint(-9999, 9999))
        case "date":
            return rng.choice(["1984-05-06", "0044-03-15 BC", "infinity", "-infinity", "20000-01-02"])
        case "moment":
            return rng.choice(
                ["1984-05-06 23:59:59.123456", "0044-03-15 10:00:00 BC", "infinity", "2001-01-01 00:00:00"]
            )
    return rng.choice(["1984-05-06 23:59:59.1+00", "0044-03-15 10:00:00+00 BC", "infinity"])


def draw_table(rng: random.Random) -> tuple[TableSchema, dict[int, ColumnRule], list[str]]:
    """Return a table, its rules, and the kind of each column in wire order."""
    kinds = [rng.choice(["text", "uuid", "bytes"]), *rng.choices(list(TYPES), k=rng.randint(1, 8))]
    two = len(kinds) > 2 and rng.random() < 0.4
    columns, rules = [], {}
    for n, kind in enumerate(kinds):
        number = n * 7 + rng.randint(1, 6) + (20_000 if rng.random() < 0.1 else 0)
        columns.append(Column(name=f"c{n}", number=number, type=TYPES[kind], source_type=kind))
        in_key = n == 0 or (two and n == 1)
        mask = rng.choice(["hmac", "keep"] if in_key and kind in ("text", "uuid", "bytes") else RULES[kind])
        if in_key and kind not in ("text", "uuid", "bytes"):
            mask = "keep"
        argument = ARGUMENTS.get(mask, "7" if kind == "int" else "fixed" if mask == "constant" else "")
        rename = f"n{n}" if rng.random() < 0.3 and mask != "drop" else ""
        rules[number] = ColumnRule(mask=mask, argument=argument, rename=rename)
    key = ("c0", "c1") if two else ("c0",)
    shuffled = rng.sample(columns, len(columns))
    schema = TableSchema(
        table_id=rng.randint(1, 99), version=1, namespace="s", name="t", columns=tuple(shuffled), key=key
    )
    return schema, rules, [c.source_type for c in schema.wire_columns]


def draw_rows(kinds: list[str], key_count: int, rng: random.Random) -> tuple[list[list[Any]], np.ndarray]:
    count = rng.choice((0, 1, 2, 60))
    columns = [
        [None if n >= key_count and rng.random() < 0.2 else draw_value(kind, rng) for _ in range(count)]
        for n, kind in enumerate(kinds)
    ]
    is_deleted = np.array([rng.random() < 0.2 for _ in range(count)], dtype=np.bool_)
    return columns, is_deleted


@pytest.mark.parametrize("seed", range(120))
def test_rows_are_masked_as_by_the_model(seed: int) -> None:
    rng = random.Random(seed)
    source, rules, kinds = draw_table(rng)
    columns = TableColumns(rules=tuple(sorted(rules.items())), key_id=KEY.key_id)
    schema = project_schema(source, columns)
    assert isinstance(schema, ProjectedSchema)
    layout, projected, key_count = Layout.make(source), Layout.make(schema), len(source.key)
    values, is_deleted = draw_rows(kinds, key_count, rng)
    ids, rows = from_columns(values, layout)
    live = [i for i, gone in enumerate(is_deleted) if not gone]
    kept = [row if not gone else b"" for row, gone in zip(rows.split(), is_deleted, strict=True)]
    section = TableChanges(
        table_id=source.table_id, schema_version=1, record_ids=ids, rows=PackedBytes.of(kept), is_deleted=is_deleted
    )

    masked = RowMasker(schema, KEY).mask_changes(section)

    by_hand = [
        [mask_by_hand(rules[c.number], kind, value) for value in column]
        for c, kind, column in zip(source.wire_columns, kinds, values, strict=True)
        if rules[c.number].mask != "drop"
    ]
    assert [c.name for c in schema.wire_columns] == [
        rules[c.number].rename or c.name for c in source.wire_columns if rules[c.number].mask != "drop"
    ]
    assert keys_to_columns(masked.record_ids, projected) == by_hand[:key_count]
    masked_ids, masked_rows = masked.record_ids.split(), masked.rows.split()
    assert all(not masked_rows[i] for i, gone in enumerate(is_deleted) if gone)
    there = to_columns(
        PackedBytes.of([masked_ids[i] for i in live]), PackedBytes.of([masked_rows[i] for i in live]), projected
    )
    assert there == [[column[i] for i in live] for column in by_hand]

    heads = heads_of(5, 1, np.zeros(len(ids), dtype=np.bool_), ids.sizes)
    stored = [h.tobytes() + i + r for h, i, r in zip(heads, ids.split(), rows.split(), strict=True)]
    full = FullRows(table_id=source.table_id, schema_version=1, stored=StoredRows(PackedBytes.of(stored)))
    again = RowMasker(schema, KEY).mask_full_rows(full)
    assert again.stored.sequences.tolist() == full.stored.sequences.tolist()
    assert to_columns(again.stored.record_ids, again.stored.rows, projected) == by_hand


def example(mask: str = "hmac") -> ProjectedSchema:
    source = TableSchema(
        table_id=1,
        version=3,
        namespace="shop",
        name="customers",
        columns=(
            Column(name="id", number=1, type=TYPES["text"]),
            Column(name="email", number=2, type=TYPES["text"]),
            Column(name="amount", number=3, type=TYPES["int"]),
        ),
        key=("id",),
    )
    rules = ((1, ColumnRule(mask=mask)), (2, ColumnRule(mask="hmac", rename="mail")))
    schema = project_schema(source, TableColumns(rules=rules, key_id=KEY.key_id))
    assert isinstance(schema, ProjectedSchema)
    return schema


def test_a_deletion_finds_the_row_that_it_deletes() -> None:
    schema = example()
    layout = Layout.make(schema.source)
    ids, _ = from_columns([["a", "b"], ["x", None], ["1", "2"]], layout)
    masker = RowMasker(schema, KEY)
    deleted = masker.mask_record_ids(keys_from_columns([["a", "b"]], layout))
    assert deleted.split() == masker.mask_record_ids(ids).split()
    assert b"a" not in deleted.split()


def test_other_keys_have_other_results_and_the_same_key_the_same() -> None:
    schema = example()
    ids = keys_from_columns([["a", "b"]], Layout.make(schema.source))
    first, second, other = (
        RowMasker(schema, MaskingKey(secret)).mask_record_ids(ids).split() for secret in (SECRET, SECRET, b"x" * 32)
    )
    assert first == second
    assert not set(first) & set(other)
    assert MaskingKey(SECRET).key_id == KEY.key_id != MaskingKey(b"x" * 32).key_id
    assert SECRET.decode() not in repr(KEY)


def test_the_predicate_is_applied_to_plain_rows() -> None:
    schema = project_schema(example().source, TableColumns(rules=((2, ColumnRule(mask="drop")),)))
    assert isinstance(schema, ProjectedSchema)
    ids, rows = from_columns([["a", "b"], ["x", "y"], ["1", "2"]], Layout.make(schema.source))
    section = TableChanges(
        table_id=1, schema_version=3, record_ids=ids, rows=rows, is_deleted=np.zeros(2, dtype=np.bool_)
    )
    predicate = compile_predicate("email = 'y'", schema.source)
    found = project_section(section, predicate, schema, Maskers(KEY))
    assert found.is_deleted.tolist() == [True, False]
    assert found.rows.split()[0] == b""
    assert to_columns(found.record_ids, found.rows, Layout.make(schema))[1] == [None, "2"]


def test_a_stored_version_keeps_its_rules_and_its_source_columns() -> None:
    schema = example()
    wire = schemas_codec.to_wire(schema)
    again = schemas_codec.from_wire(type(wire).FromString(wire.SerializeToString()))
    assert again == schema
    assert [c.name for c in again.columns] == ["id", "mail", "amount"]
    wire.ClearField("projection")
    assert schemas_codec.from_wire(wire) == schema.source


def test_a_timestamp_in_an_unknown_form_is_not_passed_on() -> None:
    source = TableSchema(
        table_id=1,
        version=1,
        namespace="s",
        name="t",
        columns=(Column(name="k", number=1, type=TYPES["int"]), Column(name="d", number=2, type=TYPES["date"])),
        key=("k",),
    )
    schema = project_schema(source, TableColumns(rules=((2, ColumnRule(mask="year")),)))
    assert isinstance(schema, ProjectedSchema)
    ids, rows = from_columns([["1"], ["6 May 1984"]], Layout.make(source))
    masked = RowMasker(schema, None).mask_rows(rows)
    assert to_columns(ids, masked, Layout.make(schema))[1] == [None]
