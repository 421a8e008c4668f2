"""`venus init` as a newcomer uses it: correctly, with typing errors, without a server, with a wrong database."""

from __future__ import annotations

import sqlite3
import tomllib
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import make_url

from tests.support.pipelines.pipeline import PASSWORD, QUOTED, with_password
from tests.support.ports import free_ports
from venus.cli.app import run
from venus.cli.init import without_password
from venus.config import load

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("no_venus_environment")]

SHOP = "sqlite:///shop.db"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
        connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
        connection.execute("CREATE TABLE keyless (note TEXT)")
    return tmp_path


def test_init_writes_a_working_file_and_prints_the_next_step(
    folder: Path, database: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = with_password(database)
    assert run(["init", SHOP, whole]) == 0
    said = capsys.readouterr().out
    written = (folder / "venus.toml").read_text()
    for secret in (PASSWORD, QUOTED):
        assert secret not in said + written
    assert "source: sqlite, 2 tables: main.keyless, main.orders" in said
    assert "no key by which its rows can be distinguished" in said
    assert "export VENUS_TARGETS__MAIN__URL=" in said
    assert "venus install-triggers --dry-run" in said
    tree = tomllib.loads(written)
    assert tree == {"source": {"url": SHOP}, "targets": {"main": {"url": database}}}
    assert without_password(whole) == database
    assert load(folder / "venus.toml").source.url.get_secret_value() == SHOP
    monkeypatch.setenv("VENUS_TARGETS__MAIN__URL", whole)
    assert run(["check"]) == 3, "the table without a key blocks"


def test_init_detects_a_mariadb_source_and_a_lake(
    folder: Path, mariadb_database: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["init", mariadb_database, f"parquet:///{folder}/lake", "-c", "first.toml"]) == 0
    said = capsys.readouterr().out
    assert "source: mysql, 0 tables" in said
    assert "target: a folder of Parquet files" in said
    assert "venus check -c first.toml" in said
    assert not (folder / "lake").exists(), "it changes nothing"


def test_an_existing_file_is_kept(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "venus.toml").write_text("# mine\n")
    assert run(["init", SHOP, "parquet:///lake"]) == 2
    assert capsys.readouterr().err.splitlines()[0] == "venus: venus.toml exists, and is not overwritten"
    assert (folder / "venus.toml").read_text() == "# mine\n"


def refusal(capsys: pytest.CaptureFixture[str], source: str, target: str, code: int) -> str:
    """Return the one-line error; check that nothing was written."""
    assert run(["init", source, target]) == code
    said = capsys.readouterr().err
    assert sum(line.startswith("venus: ") for line in said.splitlines()) == 1
    assert len(said.splitlines()) == 2
    assert "Traceback" not in said
    assert PASSWORD not in said
    assert QUOTED not in said
    assert not Path("venus.toml").exists()
    return said


def test_errors_are_reported_in_one_line(
    database: str, mariadb_database: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (port,) = free_ports(1)
    missing = make_url(with_password(database)).set(database="not_there").render_as_string(hide_password=False)
    assert "no such file" in refusal(capsys, "sqlite:///shpo.db", database, 2)
    assert "is not a database URL" in refusal(capsys, "shop.db", database, 2)
    assert "postgres is not a target that VENUS knows" in refusal(capsys, SHOP, "postgres://x/y", 2)
    assert "is not a source that VENUS knows" in refusal(capsys, "mssql://x/y", database, 2)
    assert '"not_there" does not exist' in refusal(capsys, SHOP, missing, 2)
    assert '"not_there" does not exist' in refusal(capsys, missing, database, 2)
    assert "Connection refused" in refusal(capsys, SHOP, f"postgresql://x:{QUOTED}@127.0.0.1:{port}/y", 75)
    wrong = make_url(mariadb_database).set(database="not_there").render_as_string(hide_password=False)
    assert "not_there" in refusal(capsys, wrong, database, 2)


def test_secrets_in_the_query_of_a_url_are_left_out_too() -> None:
    assert without_password("postgresql://u@h/d?sslmode=require&sslpassword=x") == "postgresql://u@h/d?sslmode=require"
