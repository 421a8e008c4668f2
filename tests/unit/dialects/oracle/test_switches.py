"""Which columns a switch is about: Oracle's own spelling of whole numbers, which the stand-in does not have."""

from __future__ import annotations

import pytest

from venus.adapters.dialects.oracle.overrides import USUAL, fits, spelled, switched
from venus.adapters.dialects.oracle.types import Declared

INTEGER = Declared(data_type="NUMBER", scale=0)  # INTEGER is NUMBER(*,0): the dictionary has no precision for it


@pytest.mark.parametrize(
    ("declared", "fitting"),
    [
        (INTEGER, True),
        (Declared(data_type="NUMBER", precision=4, scale=0), True),
        (Declared(data_type="NUMBER", precision=18, scale=0), True),
        (Declared(data_type="NUMBER", precision=19, scale=0), False),
        (Declared(data_type="NUMBER"), False),
        (Declared(data_type="NUMBER", precision=10, scale=2), False),
        (Declared(data_type="FLOAT"), False),
    ],
)
def test_whole_numbers(declared: Declared, fitting: bool) -> None:
    assert fits("NUMBER(*,0)", declared) is fitting
    assert switched({"number( *, 0 )": "bigint"}, declared) == ("bigint" if fitting else USUAL)


@pytest.mark.parametrize(("length", "fitting"), [(16, True), (15, False), (32, False)])
def test_raw(length: int, fitting: bool) -> None:
    assert fits("RAW(16)", Declared(data_type="RAW", length=length)) is fitting


def test_a_column_is_no_switch() -> None:
    assert spelled("raw ( 16 )") == "RAW(16)"
    assert spelled("App.Student.Id") == "App.Student.Id"
    assert switched({"APP.T.C": "boolean"}, INTEGER) == USUAL
