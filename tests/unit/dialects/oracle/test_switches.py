"""Which columns a switch is about: Oracle's own spelling of whole numbers, which the stand-in does not have."""

from __future__ import annotations

import pytest

from venus.adapters.dialects.oracle.dictionary.overrides import USUAL, normalise_switch, switch_applies, type_by_switch
from venus.adapters.dialects.oracle.dictionary.types import OracleDeclaredType

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
def test_whole_numbers(declared: OracleDeclaredType, fitting: bool) -> None:
    assert switch_applies("NUMBER(*,0)", declared) is fitting
    assert type_by_switch({"number( *, 0 )": "bigint"}, declared) == ("bigint" if fitting else USUAL)


@pytest.mark.parametrize(("length", "fitting"), [(16, True), (15, False), (32, False)])
def test_raw(length: int, fitting: bool) -> None:
    assert switch_applies("RAW(16)", OracleDeclaredType(data_type="RAW", length=length)) is fitting


def test_a_column_is_no_switch() -> None:
    assert normalise_switch("raw ( 16 )") == "RAW(16)"
    assert normalise_switch("App.Student.Id") == "App.Student.Id"
    assert type_by_switch({"APP.T.C": "boolean"}, INTEGER) == USUAL
