"""The demo's PostgreSQL starts in newcomers' shells: a short PATH, no home, a foreign locale, blanks in paths."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes.lifetimes import new_folder
from venus.cli.demo.servers import create_system_user, socket_folder
from venus.errors import ConfigError

pytestmark = pytest.mark.integration

START = """
import sys
from pathlib import Path
import sqlalchemy
from venus.cli.demo.servers import Postgres
from venus.cli.demo.servers import remove_folder
home = Path(sys.argv[1])
home.mkdir(); home.chmod(0o755)
server = Postgres(home / "postgres")
try:
    server.start()
    assert server.pid
    for name in ("shop", "second"):
        with sqlalchemy.create_engine(server.url(name)).connect() as connection:
            print(connection.scalar(sqlalchemy.text("SELECT current_database() || ' ' || "
                "current_setting('lc_messages') || ' ' || current_setting('server_encoding')")))
finally:
    server.stop()
sys.exit(remove_folder(home) or server.pid is not None)
"""
ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder() -> Iterator[Path]:
    made = new_folder("demo-")
    made.chmod(0o755)
    yield made
    made.rmdir()


@pytest.mark.parametrize(
    ("name", "environment"),
    [
        ("with  two blanks; and 'signs'", {}),
        ("german", {"LANG": "de_DE.ISO-8859-15@euro", "LC_ALL": "de_DE.UTF-8", "LANGUAGE": "de"}),
        ("su", {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": None, "XDG_STATE_HOME": None, "USER": None}),
        ("read-only", {"HOME": "/proc/nowhere", "XDG_RUNTIME_DIR": None}),
        ("long-" + "x" * 100, {}),
    ],
    ids=lambda value: value.split("-")[0].split(" ")[0] if isinstance(value, str) else "",
)
def test_the_server_starts(folder: Path, name: str, environment: dict[str, str | None]) -> None:
    changed = {name: value for name, value in (os.environ | environment).items() if value is not None}
    done = subprocess.run(
        [sys.executable, "-c", START, str(folder / name)],
        env=changed,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["shop C UTF8", "second C UTF8"]


@pytest.fixture
def no_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Hide the system's user until `useradd`, in a folder outside PATH, has run; return that folder."""
    entry, by_name, added = pwd.getpwuid(os.getuid()), pwd.getpwnam, tmp_path / "added"

    def getpwnam(name: str) -> pwd.struct_passwd:
        if name != "pgserver":
            return by_name(name)
        if not added.exists():
            raise KeyError(name)
        return entry

    monkeypatch.setattr(pwd, "getpwnam", getpwnam)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    sbin = tmp_path / "sbin"
    sbin.mkdir()
    program = sbin / "useradd"
    program.write_text(f'#!/bin/sh\n[ "$*" = "-s /bin/bash pgserver" ] && touch {added}\n')
    program.chmod(0o755)
    return sbin


def test_useradd_is_found_outside_the_path(no_user: Path) -> None:
    create_system_user((str(no_user),))
    assert pwd.getpwnam("pgserver")


def test_a_machine_without_useradd_is_reported(tmp_path: Path, no_user: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError) as caught:
        create_system_user((str(tmp_path),))
    assert str(caught.value).endswith("a user pgserver for it cannot be created: this machine has no useradd")
    assert caught.value.hint == "run `venus demo` as another user than root"


def test_a_user_that_cannot_be_added_is_reported_in_one_line(no_user: Path) -> None:
    (no_user / "useradd").write_text("#!/bin/sh\necho 'useradd: cannot open /etc/passwd' >&2\nexit 1\n")
    with pytest.raises(ConfigError, match=r"cannot be created: useradd: cannot open /etc/passwd$"):
        create_system_user((str(no_user),))


def test_the_socket_has_a_short_path(folder: Path) -> None:
    assert socket_folder(folder) == folder
    other = socket_folder(folder / ("x" * 100))
    try:
        assert len(str(other)) < 50
    finally:
        other.rmdir()
