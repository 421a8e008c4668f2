"""The columns to which a switch applies: Oracle's own spelling of whole numbers, which the stand-in lacks."""

from __future__ import annotations

import pytest

from venus.adapters.dialects.oracle.dictionary.overrides import (
    USUAL,
    encoded_mapping,
    normalise_switch,
    switch_applies,
    type_by_switch,
)
from venus.adapters.dialects.oracle.dictionary.tables import OracleReading
from venus.adapters.dialects.oracle.dictionary.types import OracleDeclaredType
from venus.adapters.dialects.oracle.verify import bind_value
from venus.model import Kind, LogicalType

INTEGER = OracleDeclaredType(
    data_type="NUMBER", scale=0
)  # INTEGER is NUMBER(*,0): the dictionary has no precision for it


@pytest.mark.parametrize(
    ("declared", "fitting"),
    [
        (INTEGER, True),
        (OracleDeclaredType(data_type="NUMBER", precision=4, scale=0), True),
        (OracleDeclaredType(data_type="NUMBER", precision=18, scale=0), True),
        (OracleDeclaredType(data_type="NUMBER", precision=19, scale=0), False),
        (OracleDeclaredType(data_type="NUMBER"), False),
        (OracleDeclaredType(data_type="NUMBER", precision=10, scale=2), False),
        (OracleDeclaredType(data_type="FLOAT"), False),
    ],
)
def test_whole_numbers_are_recognised(declared: OracleDeclaredType, fitting: bool) -> None:
    assert switch_applies("NUMBER(*,0)", declared) is fitting
    assert type_by_switch({"number( *, 0 )": "bigint"}, declared) == ("bigint" if fitting else USUAL)


@pytest.mark.parametrize(("length", "fitting"), [(16, True), (15, False), (32, False)])
def test_raw_uuids_are_recognised(length: int, fitting: bool) -> None:
    assert switch_applies("RAW(16)", OracleDeclaredType(data_type="RAW", length=length)) is fitting


def test_a_single_column_is_not_a_switch() -> None:
    assert normalise_switch("raw ( 16 )") == "RAW(16)"
    assert normalise_switch("App.Student.Id") == "App.Student.Id"
    assert type_by_switch({"APP.T.C": "boolean"}, INTEGER) == USUAL


@pytest.mark.parametrize(
    ("data_type", "condition"),
    [("VARCHAR2", "UTL_RAW.CAST_TO_VARCHAR2(:k1)"), ("CHAR", "CAST(UTL_RAW.CAST_TO_VARCHAR2(:k1) AS CHAR(9 CHAR))")],
)
def test_a_key_with_an_encoding_is_bound_as_bytes(data_type: str, condition: str) -> None:
    """The stand-in compares a text with bytes; an Oracle would compare the text with their hexadecimal digits."""
    declared = OracleDeclaredType(data_type=data_type, length=9)
    reading = OracleReading(declared=declared, mapping=encoded_mapping(declared, "cp1252"))

    assert reading.bind_expression("k1") == condition
    assert reading.bind_value(b"gr\xf6\xdfe") == b"gr\xf6\xdfe"
    assert bind_value(reading, LogicalType(kind=Kind.TEXT), "größe €") == "größe €".encode("cp1252")
