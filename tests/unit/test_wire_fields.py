"""Two versions of VENUS can communicate during an upgrade: no field changes its number or type."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import wire_fields


def test_no_field_enum_value_or_call_has_changed_or_vanished() -> None:
    gone = set(wire_fields.known_lines()) - set(wire_fields.current_lines())
    assert not gone, "an older broker or adapter still sends these; keep them, or leave their number reserved"


def test_new_fields_are_recorded() -> None:
    new = set(wire_fields.current_lines()) - set(wire_fields.known_lines())
    assert not new, "python -m tests.support.wire_fields notes them forever"


@pytest.mark.parametrize("number", ["2", "4000"])
def test_a_field_with_another_number_is_found(number: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = "venus.wire.Half.batch_no 1 uint64"
    assert line in wire_fields.current_lines()
    monkeypatch.setattr(wire_fields, "KNOWN", tmp_path / "known")
    wire_fields.KNOWN.write_text(line.replace(" 1 ", f" {number} ") + "\n")
    with pytest.raises(AssertionError, match=rf"batch_no {number} uint64"):
        test_no_field_enum_value_or_call_has_changed_or_vanished()
