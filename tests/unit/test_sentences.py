"""Hints are whole sentences; commands in them are unchanged."""

from __future__ import annotations

import pytest

from venus.text.formatting import to_sentence


@pytest.mark.parametrize(
    ("hint", "shown"),
    [
        ("", ""),
        ("stop its capture first", "Stop its capture first."),
        ("run `venus status`", "Run `venus status`."),
        ("`venus status` lists them", "`venus status` lists them."),
        ("Is another broker running?", "Is another broker running?"),
        ("venus migrate --target main", "venus migrate --target main"),
        ("pip install 'venus-cdc[demo]'", "pip install 'venus-cdc[demo]'"),
        ("GRANT SELECT ON a TO b", "GRANT SELECT ON a TO b"),
        ("broker.http is too low", "broker.http is too low."),
        ("venus.toml names it", "venus.toml names it."),
        ("[broker] listen is wrong", "[broker] listen is wrong."),
        ("pip 23.1 cannot do this; upgrade it, then try again", "pip 23.1 cannot do this; upgrade it, then try again."),
    ],
)
def test_a_hint_is_a_sentence(hint: str, shown: str) -> None:
    assert to_sentence(hint) == shown
    assert to_sentence(shown) == shown
