"""`install-triggers --type-map` on the stand-in: the source stores the map, and every session reads it there."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest

from tests.support.oracle.standin import StandIn
from venus.adapters.dialects.oracle.session.driver import OracleOptions
from venus.adapters.dialects.oracle.source import OracleSource
from venus.adapters.dialects.registry import open_source
from venus.cli.prove.follower import Follower
from venus.config import Settings, SourceSettings
from venus.errors import ConfigError

pytestmark = pytest.mark.integration

EVERYTHING: tuple[tuple[str, ...], tuple[str, ...]] = (("*",), ())


@pytest.fixture
def flags(application: Any) -> Any:
    application.execute(
        'CREATE TABLE "FLAGS" ("ID" NUMBER(9) PRIMARY KEY, "ON" NUMBER(1), "DAY" DATE, "Mixed" RAW(16))'
    )
    application.execute("""INSERT INTO "FLAGS" VALUES (1, 1, '2026-11-21', X'000102030405060708090a0b0c0d0e0f')""")
    return application


def read(standin: StandIn, configured: dict[str, str] | None = None) -> dict[str, Any]:
    """Read the one row as another process would."""
    with closing(OracleSource(standin, OracleOptions(type_map=configured or {}))) as source:
        follower = Follower(source)
        source.capture.restart_fill(follower.table_id("FLAGS"))
        follower.drain()
        (row,) = follower.rows("FLAGS").values()
        return row


def test_the_requested_types_are_recorded_and_override_the_configuration(
    flags: Any, source: OracleSource, standin: StandIn
) -> None:
    source.installer.request_types({"flags.on": "boolean", "APP.FLAGS.DAY": "date", "FLAGS.MIXED": "uuid"}, *EVERYTHING)
    assert not any(step.exists for step in source.installer.plan_install(*EVERYTHING) if "travels as" in step.what)
    source.installer.install(*EVERYTHING)
    row = {"ID": "1", "ON": "t", "DAY": "2026-11-21", "Mixed": "00010203-0405-0607-0809-0a0b0c0d0e0f"}
    assert read(standin) == row
    assert read(standin, {"FLAGS.ON": "text"}) == row
    source.installer.request_types({"FLAGS.ON": "usual"}, *EVERYTHING)
    made = [step.what for step in source.installer.install(*EVERYTHING) if not step.exists]
    assert made == ["column ON: earlier record", "column ON travels as usual"]
    assert read(standin, {"FLAGS.ON": "text"}) == row | {"ON": "1"}
    assert {c.name: c.type.kind.name for t in source.registry.read_registered_tables() for c in t.schema.columns}[
        "ON"
    ] == "INT"


def test_a_dry_run_and_a_check_record_nothing(flags: Any, source: OracleSource, standin: StandIn) -> None:
    source.installer.request_types({"FLAGS.ON": "boolean"}, *EVERYTHING)
    assert not any(finding.blocks for finding in source.installer.check(*EVERYTHING))
    source.installer.plan_install(*EVERYTHING)
    with closing(OracleSource(standin)) as another:
        another.installer.install(*EVERYTHING)
    assert read(standin)["ON"] == "1"


@pytest.mark.parametrize(
    ("asked", "to", "said"),
    [
        ("FLAGS.OF", "boolean", r"--type-map FLAGS.OF: APP.FLAGS has no column OF \(did you mean ON\?\)"),
        ("PUPIL.ON", "boolean", "--type-map PUPIL.ON: no table PUPIL is captured$"),
        ("FLAG.ON", "boolean", r"no table FLAG is captured \(did you mean APP.FLAGS\?\)"),
        ("HR.FLAGS.ON", "boolean", r"no table HR.FLAGS is captured"),
        ("FLAGS.ON", "bool", r"column APP.FLAGS.ON: NUMBER\(1\) cannot be carried as 'bool'"),
        ("flags.id", "text", "a column of the key cannot be carried as text"),
        ("raw(16)", "text", r"columns of type RAW\(16\) cannot be carried as 'text'"),
        ("NUMBER(*,0)", "uuid", r"columns of type NUMBER\(\*,0\) cannot be carried as 'uuid'"),
    ],
)
def test_an_invalid_type_map_is_refused_by_name(
    asked: str, to: str, said: str, flags: Any, source: OracleSource
) -> None:
    with pytest.raises(ConfigError, match=said):
        source.installer.request_types({asked: to}, *EVERYTHING)


def test_another_source_has_no_such_option() -> None:
    settings = Settings(source=SourceSettings.model_validate({"url": "sqlite:///shop.db"}))
    with pytest.raises(ConfigError, match="--type-map is not available for sqlite"):
        open_source(settings, {"T.C": "boolean"})


def test_uninstalling_removes_the_record(flags: Any, source: OracleSource) -> None:
    source.installer.request_types({"FLAGS.ON": "boolean"}, *EVERYTHING)
    source.installer.install(*EVERYTHING)
    source.installer.uninstall()
    flags.execute("SELECT table_name FROM information_schema.tables WHERE table_name = 'VENUS_TYPE_MAP'")
    assert flags.fetchall() == ()
