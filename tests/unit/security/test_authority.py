"""`venus certs init`: an authority is created once, in a folder that can be created."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from venus.errors import ConfigError, Refused
from venus.security.authority import CA_KEY, create_authority

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(("place", "reason"), [("file", "File exists"), ("file/certs", "Not a directory")])
def test_a_folder_that_cannot_be_created_is_refused_in_one_line(tmp_path: Path, place: str, reason: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError) as caught:
        create_authority(tmp_path / place, NOW)
    assert str(caught.value) == f"{tmp_path / place} cannot be created: {reason}"
    assert caught.value.hint == "name another folder"


def test_an_existing_authority_is_not_replaced(tmp_path: Path) -> None:
    create_authority(tmp_path / "certs", NOW)
    key = (tmp_path / "certs" / CA_KEY).read_bytes()
    with pytest.raises(Refused, match="has an authority already"):
        create_authority(tmp_path / "certs", NOW)
    assert (tmp_path / "certs" / CA_KEY).read_bytes() == key
