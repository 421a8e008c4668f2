"""Text that could be a value of a row is removed from a support bundle."""

from __future__ import annotations

import json

import pytest

from venus.cli.support_bundle import scrub_log_line, scrub_text, scrub_tree

PLANTED = "Rosalind-4711"


@pytest.mark.parametrize(
    "text",
    [
        f'target eu: app.orders is HALTED (row {{"id": "{PLANTED}"}}: value too long)',
        f"Key (id, name)=(17, {PLANTED}) already exists.",
        f"Failing row contains (1, {PLANTED}, (nested, {PLANTED})).",
        f"DETAIL:  {PLANTED} is not there",
        f'invalid input syntax for type integer: "{PLANTED}"',
        f"main.unfit: row {PLANTED} cannot be carried",
        f"main.unfit: the key {PLANTED} has no row",
        f"source: t is HALTED (cannot be carried: value '{PLANTED}' of v is not UTF-8)",
        f"unclosed ({PLANTED}",
        f'unclosed "{PLANTED}',
        f"[parameters: ({PLANTED!r}, 5)]",
        f"[parameters: {{'a': '{PLANTED}',",
    ],
)
def test_values_are_removed(text: str) -> None:
    assert PLANTED not in scrub_text(text)
    assert PLANTED not in scrub_text(f"first line\n{text}\nlast line")
    assert PLANTED not in json.dumps(scrub_tree({"a": [{"reason": text}]}))
    assert PLANTED not in scrub_log_line(
        json.dumps({"level": "ERROR", "message": text, "traceback": text, "row": text})
    )


def test_useful_text_stays() -> None:
    assert scrub_text("target eu: app.orders is HALTED (value too long (22001))").startswith("target eu: app.orders is")
    assert "SQLSTATE 22001" in scrub_text("refused (22001)")
    frame = '  File "/opt/venus/cli/app.py", line 17, in run'
    assert scrub_text(frame) == frame
    line = {"time": "t", "level": "DEBUG", "cut": "main/17", "stage": "applied", "rows": 5, "message": "cut main/17"}
    assert json.loads(scrub_log_line(json.dumps(line))) == line
    assert scrub_tree({"offset": 17, "lag_s": 1.5, "connected": True, "nothing": None}) == {
        "offset": 17,
        "lag_s": 1.5,
        "connected": True,
        "nothing": None,
    }
