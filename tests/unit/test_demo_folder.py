"""The demo removes its folder although a dying server writes into it, or names the rest."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from venus.cli.demo import command
from venus.cli.demo.servers import remove_folder
from venus.errors import ConfigError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "demo"
    (made / "data").mkdir(parents=True)
    (made / "data" / "LOG").write_text("one line\n")
    return made


def write_meanwhile(monkeypatch: pytest.MonkeyPatch, folder: Path, times: int) -> None:
    """Let another process write one more file into the folder just before each of this many removals."""
    os_rmdir, left = os.rmdir, [times]

    def rmdir(path: Any, **options: Any) -> None:
        if left[0] and Path(path).name == folder.name:
            left[0] -= 1
            (folder / "written-late").touch()
        os_rmdir(path, **options)

    monkeypatch.setattr(os, "rmdir", rmdir)


def test_a_folder_is_removed_although_a_server_writes_once_more(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_meanwhile(monkeypatch, folder, times=2)
    assert remove_folder(folder) == ""
    assert not folder.exists()


def test_a_file_that_cannot_be_removed_is_named_in_one_line(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_meanwhile(monkeypatch, folder, times=1_000)
    said = remove_folder(folder, timeout_s=0.2)
    assert said == f"1 file is left in {folder} ({os.strerror(errno.ENOTEMPTY)}); remove it yourself: rm -r {folder}"


def test_the_demo_does_not_claim_a_clean_up_that_failed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The demo prints the outcome only after it has tried to remove the folder."""
    from venus.cli.app import run

    class Notice:
        def run(self) -> list[Any]:
            return []

        def close(self) -> None:
            pass

        def figures(self) -> dict[str, Any]:
            return {}

    monkeypatch.setattr(command, "build_demo", lambda *_: Notice())
    shutil.rmtree(folder)
    assert run(["demo", "--folder", str(folder)]) == 0
    assert "Everything was cleaned up" in capsys.readouterr().out

    monkeypatch.setattr("venus.cli.demo.servers.remove_folder", lambda _: "2 files are left")
    assert run(["demo", "--folder", str(folder)]) == 0
    printed = capsys.readouterr()
    assert "cleaned up" not in printed.out
    assert printed.err.splitlines()[-1] == "2 files are left"


def test_a_folder_that_cannot_be_created_is_named(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"--folder .*LOG: File exists"):
        command.working_folder(folder / "data" / "LOG")
