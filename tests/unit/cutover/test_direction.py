"""Which pairs of databases can replicate in both directions, and the messages about the others."""

from __future__ import annotations

import pytest

from venus.adapters.cutover.direction import check_pair
from venus.adapters.targets.registry import FormerSource
from venus.config import Settings
from venus.errors import ConfigError

POSTGRES, MARIADB, SQLITE = "postgresql://v@h/d", "mysql://v@h/d", "sqlite:///f.db"
ORACLE = "oracle+oracledb://v@h/?service_name=s"


def settings(source: str, target: str, **options: object) -> Settings:
    return Settings.model_validate({"source": {"url": source}, "targets": {"main": {"url": target, **options}}})


def test_two_postgresql_databases_are_a_pair() -> None:
    pair = check_pair(settings(POSTGRES, POSTGRES), "main")
    assert pair.settings_to("@source").source.url.get_secret_value() == POSTGRES
    assert list(pair.settings_to("@source").targets) == ["@source"]


@pytest.mark.parametrize("source", [MARIADB, SQLITE, ORACLE])
def test_a_source_of_another_kind_may_follow_a_postgresql_target(source: str) -> None:
    options = {"schema": "main"} if source == SQLITE else {}
    assert check_pair(settings(source, POSTGRES, **options), "main").open_target("@source").capabilities.falls_back


@pytest.mark.parametrize(
    ("source", "target"), [(POSTGRES, MARIADB), (MARIADB, MARIADB), (SQLITE, MARIADB), (POSTGRES, "parquet:/lake")]
)
def test_another_pair_is_refused_with_the_supported_ones(source: str, target: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check_pair(settings(source, target), "main")
    assert "the target PostgreSQL; omit --fall-back" in refused.value.hint


@pytest.mark.parametrize("options", [{"schema": "copy"}, {"names": "lower"}])
def test_other_names_at_the_target_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="tables have other names at target main"):
        check_pair(settings(POSTGRES, POSTGRES, **options), "main")


def test_tables_of_a_sqlite_file_need_the_schema_of_their_name() -> None:
    with pytest.raises(ConfigError, match="tables have other names") as refused:
        check_pair(settings(SQLITE, POSTGRES), "main")
    assert refused.value.hint == 'it needs [targets.main] with schema = "main" since its load, without names'


@pytest.mark.parametrize(
    ("options", "tables", "excluded"),
    [
        ({}, ("v.*", "v.cust*"), ("shop.x",)),
        ({"schema": "copy"}, ("copy.*", "copy.cust*"), ("copy.x",)),
        ({"names": "keep"}, ("V.*", "V.CUST*"), ("SHOP.X",)),
    ],
)
def test_patterns_of_an_oracle_source_select_tables_of_the_new_database(
    options: dict[str, object], tables: tuple[str, ...], excluded: tuple[str, ...]
) -> None:
    base = settings(ORACLE, POSTGRES, **options)
    chosen = {"tables": ("*", "CUST*"), "exclude": ("SHOP.X",), "type_map": {"V.T.C": "boolean"}}
    base = base.model_copy(update={"source": base.source.model_copy(update={**chosen, "log_tablespace": "LOGS"})})
    back = check_pair(base, "main").settings_to("@source")
    assert (back.source.tables, back.source.exclude) == (tables, excluded)
    assert (back.source.type_map, back.source.log_tablespace) == ({}, ""), "PostgreSQL has neither"
    former = back.targets["@source"]
    assert isinstance(former, FormerSource)
    assert former.captured == base.source
    assert (former.names, former.schema_) == (options.get("names", "auto"), options.get("schema", ""))


def test_a_source_in_mode_inline_is_refused() -> None:
    given = settings(ORACLE, POSTGRES)
    inline = given.model_copy(update={"source": given.source.model_copy(update={"mode": "inline"})})
    with pytest.raises(ConfigError, match="mode inline cannot follow"):
        check_pair(inline, "main")


def test_options_of_capture_move_to_the_database_that_is_captured() -> None:
    pair = check_pair(settings(f"{POSTGRES}?venus_always=true&sslmode=require", "postgresql://v:p%40@n/d"), "main")
    back = pair.settings_to("@source")
    assert back.source.url.get_secret_value() == "postgresql://v:p%40@n/d?venus_always=true"
    assert back.targets["@source"].url.get_secret_value() == f"{POSTGRES}?sslmode=require"
