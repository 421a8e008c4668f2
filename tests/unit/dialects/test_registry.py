"""The URL decides the dialect, and no message repeats it."""

from __future__ import annotations

import sys

import pytest

from venus.adapters.dialects import DIALECTS
from venus.adapters.dialects.registry import dialect_of, open_source
from venus.adapters.dialects.registry_rules import find_other_database
from venus.adapters.dialects.sqlite.connection import parse_file_url
from venus.config import Settings
from venus.errors import ConfigError, NoSuchDatabase
from venus.model import SourceIdentity


@pytest.mark.parametrize(
    ("url", "dialect"),
    [
        ("sqlite:////abs/file", "sqlite"),
        ("postgresql://u:p@h/d", "postgresql"),
        ("mysql+pymysql://u:p@h/d", "mysql"),
        ("mariadb+pymysql://u:p@h/d", "mysql"),
        ("postgresql+psycopg2://u:p@h/d", "postgresql"),
    ],
)
def test_known_urls_select_their_dialect(url: str, dialect: str) -> None:
    assert dialect_of(url) == dialect


@pytest.mark.parametrize("url", ["", "nonsense", "secret-password", "mssql://u:secret-password@h/d", "sqlite"])
def test_other_urls_are_refused_with_the_known_ones(url: str) -> None:
    with pytest.raises(ConfigError) as refused:
        dialect_of(url)

    assert all(f"{scheme}://" in refused.value.hint for scheme in DIALECTS)
    assert "secret-password" not in str(refused.value) + refused.value.hint


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "sqlite:///f?mode=ro", "sqlite+aiosqlite:///f"])
def test_a_sqlite_source_is_a_file(url: str) -> None:
    with pytest.raises(ConfigError):
        parse_file_url(url)


def test_a_missing_file_is_not_created() -> None:
    settings = Settings.model_validate({"source": {"url": "sqlite:////nowhere/at/all.db"}})
    with pytest.raises(NoSuchDatabase, match="no such file") as refused:
        open_source(settings)
    assert refused.value.exit_code == 2
    assert refused.value.retryable  # capture waits for a folder that is mounted late


def test_a_missing_driver_is_named_with_the_extra_that_contains_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [n for n in sys.modules if n.startswith("venus.adapters.dialects.mysql")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pymysql", None)
    with pytest.raises(ConfigError, match="pymysql") as refused:
        open_source(Settings.model_validate({"source": {"url": "mysql+pymysql://u:secret-password@h/d"}}))
    assert "venus-cdc[mysql]" in refused.value.hint


def test_the_most_reliable_common_facts_identify_a_database() -> None:
    groups = (("DBID", "CON_NAME"), ("DBID",), ("DB_UNIQUE_NAME",))

    def compare(recorded: dict[str, str], present: dict[str, str]) -> str:
        return find_other_database(SourceIdentity(recorded=recorded, present=present, decisive=groups))

    here = {"DBID": "1", "CON_NAME": "SHOP", "DB_UNIQUE_NAME": "A"}
    assert compare({}, here) == ""
    assert compare(here, here | {"DB_UNIQUE_NAME": "B"}) == "", "a standby that took over"
    assert "CON_NAME COPY, was SHOP" in compare(here, here | {"CON_NAME": "COPY"})
    assert "DBID 2, was 1" in compare(here, {"DBID": "2"})
    assert "DB_UNIQUE_NAME B, was A" in compare(here, {"DB_UNIQUE_NAME": "B"}), "DBID may not be read"
    assert compare(here, {"OTHER": "x"}) == ""
