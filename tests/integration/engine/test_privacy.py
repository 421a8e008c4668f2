"""A broker's data directory is closed to other users, also if an older VENUS left it open."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.brokers.servers import BrokerProcess, settings
from tests.support.engines import engines
from tests.support.engines.engines import Producer
from tests.support.processes import forked
from venus.broker.store import files
from venus.errors import ConfigError

pytestmark = pytest.mark.integration


def modes(path: Path) -> dict[str, int]:
    return {each.name: stat.S_IMODE(each.stat().st_mode) for each in (path, *path.rglob("*"))}


def test_a_directory_that_was_left_open_is_closed(tmp_path: Path) -> None:
    data = tmp_path / "data"
    before = os.umask(0o022)
    try:
        engine = engines.make(data)
        Producer(engine).commit(engines.rows(0, 5))
        engine.stop()
        assert stat.S_IMODE(data.stat().st_mode) == 0o700
        data.chmod(0o755)
        engine = engines.make(data)
    finally:
        os.umask(before)
    assert len(engines.full_data(engine)) == 5
    engine.stop()

    assert modes(data)["data"] == modes(data)["db"] == 0o700
    assert modes(data)["IDENTITY"] == 0o600


def test_an_open_directory_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o755)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)

    with pytest.raises(ConfigError, match="belongs to user"):
        files.make_private(tmp_path)


def test_a_broker_process_creates_no_file_that_others_can_read(tmp_path: Path) -> None:
    (tmp_path / "venus.toml").write_text('[broker]\ndata_dir = "data"\nlisten = "127.0.0.1:0"\nhttp = ""\n')
    broker = forked.popen(
        [sys.executable, "-m", "venus.cli", "broker"], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    )
    assert broker.stdout is not None
    assert "listens" in broker.stdout.readline()
    found = modes(tmp_path / "data")
    broker.terminate()
    broker.communicate(timeout=60)

    assert len(found) > 8
    assert [name for name, mode in found.items() if mode & 0o077] == []


def test_a_broker_inside_another_program_creates_no_such_file_either(tmp_path: Path) -> None:
    with BrokerProcess(settings(tmp_path / "data")):
        found = modes(tmp_path / "data")
    assert len(found) > 8
    assert [name for name, mode in found.items() if mode & 0o077] == []


def test_a_data_directory_that_cannot_be_created_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    for path in (tmp_path / "file", tmp_path / "file" / "data"):
        with pytest.raises(ConfigError, match="cannot be created"):
            files.make_private(path)
