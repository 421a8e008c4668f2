"""Which type changes keep the text of a value: the table is compared with a model of the databases."""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Context, Decimal
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from venus.adapters.dialects.canonical_text import RULES, changed_key_column, has_changes_of_values, keeps_text
from venus.model import Column, Kind, LogicalType, TableSchema


def text_type(kind: Kind, **more: int | str) -> LogicalType:
    return LogicalType(kind=kind, **more)  # type: ignore[arg-type]


INTS = [text_type(Kind.INT, length=n) for n in (2, 4, 8)]
DECIMALS = [
    text_type(Kind.DECIMAL),
    *(text_type(Kind.DECIMAL, precision=p, scale=s) for p, s in product((4, 9, 20), (0, 2, 4))),
]
TEXTS = [text_type(Kind.TEXT, length=n) for n in (0, 1, 3, 30)] + [text_type(Kind.CHAR, length=n) for n in (1, 3, 30)]
SECONDS = [text_type(Kind.TIMESTAMP, precision=p) for p in (0, 3, 6)]
_EXACT = Context(prec=60, rounding=ROUND_HALF_UP)


def store_value(value: Decimal | str, kind: LogicalType, *, trims: bool) -> Decimal | str | None:
    """Return a value as a column of this type stores it, or None if the database refuses it.

    `trims`: databases differ in whether a number without a scale keeps trailing zeros, and a text the blanks of CHAR.
    """
    if isinstance(value, str):
        if kind.length and len(value.rstrip(" ")) > kind.length:
            return None
        if kind.kind is Kind.CHAR:
            return value.rstrip(" ").ljust(kind.length)
        return value.rstrip(" ") if trims else value
    if kind.kind is Kind.INT:
        whole = value.quantize(Decimal(1), context=_EXACT)
        return whole if abs(whole) < 1 << (8 * kind.length - 1) else None
    if kind.kind is Kind.TIMESTAMP:
        return value.quantize(Decimal(1).scaleb(-kind.precision), context=_EXACT)
    if not kind.precision:
        return Decimal(f"{value.normalize(_EXACT):f}") if trims else value
    rounded = value.quantize(Decimal(1).scaleb(-kind.scale), context=_EXACT)
    return rounded if abs(rounded) < Decimal(10) ** (kind.precision - kind.scale) else None


def text(value: Decimal | str, kind: LogicalType) -> str:
    """Return the canonical text of a stored value."""
    if isinstance(value, str):
        return value
    shown = f"{value:f}"
    trimmed = kind.kind is Kind.TIMESTAMP and "." in shown
    return shown.rstrip("0").rstrip(".") if trimmed else shown


NUMBERS = st.decimals(
    min_value=-(10**22), max_value=10**22, allow_nan=False, allow_infinity=False, places=6
) | st.builds(Decimal, st.integers(-20_000_000_000, 20_000_000_000) | st.integers(-9, 9))
CHANGES: list[tuple[LogicalType, LogicalType, st.SearchStrategy[Any]]] = [
    *((b, n, NUMBERS) for b, n in product([*INTS, *DECIMALS], repeat=2)),
    *((b, n, st.text("ab ", max_size=4)) for b, n in product(TEXTS, repeat=2)),
    *((b, n, st.decimals(0, 60, places=6)) for b, n in product(SECONDS, repeat=2)),
]


@given(st.data(), st.booleans())
def test_a_kept_value_has_the_same_text(data: st.DataObject, trims: bool) -> None:
    before, now, values = data.draw(st.sampled_from([c for c in CHANGES if keeps_text(c[0], c[1])]))
    was = store_value(data.draw(values), before, trims=trims)
    kept = None if was is None else store_value(was, now, trims=trims)
    if was is not None and kept is not None:
        assert text(kept, now) == text(was, before)


#: For each change a value whose text changes.
WITNESSES = [Decimal(n) for n in ("1", "0.5", "1.5", "1.50", "1.234567", "0.0001")] + ["", "a", "a  "]


@pytest.mark.parametrize(("before", "now", "_"), [c for c in CHANGES if not keeps_text(c[0], c[1])])
def test_a_change_that_is_not_kept_has_a_value_that_shows_it(before: LogicalType, now: LogicalType, _: object) -> None:
    values = [v for v in WITNESSES if isinstance(v, str) == (before.kind in (Kind.TEXT, Kind.CHAR))]
    both = [
        (was, store_value(was, now, trims=trims))
        for v, trims in product(values, (False, True))
        if (was := store_value(v, before, trims=trims)) is not None
    ]
    assert any(kept is not None and text(kept, now) != text(was, before) for was, kept in both)


@pytest.mark.parametrize(
    ("before", "now", "kept"),
    [
        (text_type(Kind.INT, length=4), text_type(Kind.INT, length=8), True),
        (text_type(Kind.INT, length=8), text_type(Kind.DECIMAL, precision=20), True),
        (text_type(Kind.DECIMAL, precision=4, scale=2), text_type(Kind.DECIMAL, precision=9, scale=2), True),
        (text_type(Kind.DECIMAL, precision=4, scale=2), text_type(Kind.DECIMAL, precision=9, scale=3), False),
        (text_type(Kind.DECIMAL, precision=4, scale=2), text_type(Kind.DECIMAL), False),
        (text_type(Kind.TEXT, length=3), text_type(Kind.TEXT), True),
        (text_type(Kind.CHAR, length=3), text_type(Kind.CHAR, length=4), False),
        (text_type(Kind.INT, length=8), text_type(Kind.TEXT), False),
        (text_type(Kind.NATIVE, name="bit varying(5)"), text_type(Kind.NATIVE, name="bit varying(9)"), True),
        (text_type(Kind.NATIVE, name="bit(5)"), text_type(Kind.NATIVE, name="bit(9)"), False),
        (text_type(Kind.NATIVE, name="inet"), text_type(Kind.NATIVE, name="cidr"), False),
        (text_type(Kind.UUID), text_type(Kind.UUID), True),
        (text_type(Kind.UUID), text_type(Kind.TEXT), False),
    ],
)
def test_common_type_changes_are_recognised(before: LogicalType, now: LogicalType, kept: bool) -> None:
    assert keeps_text(before, now) is kept
    schemas = [
        TableSchema(
            table_id=1,
            version=v,
            namespace="s",
            name="t",
            columns=(Column(name="id", number=1, type=t),),
            key=("id",),
            source_dialect="postgresql",
        )
        for v, t in enumerate((before, now), 1)
    ]
    assert changed_key_column(schemas[1], schemas[0]) == ("" if kept else "id")
    assert has_changes_of_values(schemas[0], schemas[1]) is not kept


def test_every_rule_is_tested() -> None:
    tried = {(b.kind, n.kind) for b, n, _ in CHANGES}
    others = {Kind.BYTES, Kind.TIME, Kind.TIMETZ, Kind.TIMESTAMPTZ, Kind.INTERVAL, Kind.NATIVE, Kind.ARRAY}
    assert set(RULES) - tried == {(kind, kind) for kind in others}
