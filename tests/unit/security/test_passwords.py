"""A database's password is read again for each connection if it comes from a file or a command."""

from __future__ import annotations

import pickle
import socket
from pathlib import Path

import pytest
from pydantic import SecretStr

from venus.cli.output import Redactor
from venus.config import Settings, SourceSettings, TargetSettings
from venus.errors import ConfigError
from venus.security import secrets
from venus.security.secrets import resolve_passwords

URL = "postgresql://venus@db/shop"


def write(path: Path, password: str) -> Path:
    path.write_text(f"{password}\n")
    path.chmod(0o600)
    return path


def settings_of(**options: str) -> Settings:
    return resolve_passwords(
        Settings(
            source=SourceSettings.model_validate({"url": URL} | options),
            targets={"a": TargetSettings.model_validate({"url": URL} | options)},
        )
    )


def url_of(settings: Settings) -> str:
    return settings.source.url.get_secret_value()


def test_a_password_file_is_read_again(tmp_path: Path) -> None:
    file = write(tmp_path / "password", "be@fore")
    settings = settings_of(password_file=str(file))
    assert url_of(settings) == "postgresql://venus:be%40fore@db/shop"
    write(file, "after")
    assert url_of(settings) == "postgresql://venus:after@db/shop"
    assert settings.targets["a"].url.get_secret_value() == "postgresql://venus:after@db/shop"


@pytest.mark.parametrize("wrong", ["gone", "open", "empty"])
def test_a_temporarily_unreadable_file_keeps_the_last_password(
    wrong: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = write(tmp_path / "password", "before")
    settings = settings_of(password_file=str(file))
    if wrong == "gone":
        file.unlink()
    elif wrong == "open":
        file.chmod(0o644)
    else:
        write(file, "")
    assert url_of(settings) == "postgresql://venus:before@db/shop"
    assert "source.password_file" in caplog.text
    write(file, "after")
    assert url_of(settings) == "postgresql://venus:after@db/shop"


def test_an_unreadable_file_is_an_error_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file") as caught:
        settings_of(password_file=str(tmp_path / "password"))
    assert "certificates" not in caught.value.hint
    assert "its first line is the secret" in caught.value.hint


def test_a_password_command_runs_again_but_not_for_every_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path / "password", "before")
    settings = settings_of(password_command=f"cat {file}; echo run >> {tmp_path}/runs")
    write(file, "after")
    runs = len((tmp_path / "runs").read_text().split())
    assert "before" in url_of(settings)
    assert len((tmp_path / "runs").read_text().split()) == runs
    monkeypatch.setattr(secrets, "COMMAND_EVERY_S", 0.0)
    assert "after" in url_of(settings)


def test_another_process_reads_the_password_again_and_another_machine_runs_no_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path / "password", "before")
    by_file = pickle.dumps(settings_of(password_file=str(file)))
    by_command = pickle.dumps(settings_of(password_command=f"cat {file}"))
    write(file, "after")
    assert "after" in url_of(pickle.loads(by_file))
    assert "after" in url_of(pickle.loads(by_command))
    monkeypatch.setattr(socket, "gethostname", lambda: "worker-7")
    assert "after" in url_of(pickle.loads(by_file)), "a secret that is there as well"
    assert "before" in url_of(pickle.loads(by_command))
    file.unlink()
    assert "before" in url_of(pickle.loads(by_file)), "what was known when it was sent"


def test_no_password_that_was_ever_read_is_shown(tmp_path: Path) -> None:
    file = write(tmp_path / "password", "first-one")
    settings = settings_of(password_file=str(file))
    redactor = Redactor()
    redactor.learn(settings)
    write(file, "second-one")
    url_of(settings)
    write(file, "third-one")
    url_of(settings)
    shown = redactor("first-one second-one third-one")
    assert shown == "*** *** ***"
    assert "one" not in repr(settings)
    assert isinstance(settings.source.url, SecretStr)
