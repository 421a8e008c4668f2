"""What a figure calls met."""

from __future__ import annotations

from bench.overload import details_first


def test_a_load_that_degrades_nothing_is_no_overload() -> None:
    assert not details_first([])
    assert not details_first([()])
    assert details_first([(), (4,), (4, 3)])
    assert not details_first([(4,), (3,)])
