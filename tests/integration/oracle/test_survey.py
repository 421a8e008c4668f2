"""The survey of an Oracle's server and code by `venus assess`, and its notes about views that the user may not read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.support.databases.mariadb import MariaServer
from tests.support.oracle.standin import DICTIONARY, SCHEMA, StandIn
from venus.adapters.dialects.oracle.dictionary.reader import OracleDictionary
from venus.adapters.dialects.oracle.session.connection import OracleSession
from venus.adapters.dialects.oracle.session.options import find_version
from venus.adapters.dialects.oracle.source import OracleServerFacts

pytestmark = pytest.mark.integration

USER = "curious@'127.0.0.1'"
DECLARED = (
    "INSERT INTO INSTANCE VALUES (1, NOW() - INTERVAL 1000 SECOND), (2, NOW() - INTERVAL 1000 SECOND)",
    "INSERT INTO SYSSTAT VALUES (1, 'redo size', 4000000), (2, 'redo size', 6000000), (1, 'user commits', 9),"
    " (1, 'undo change vector size', 2000000)",
    "INSERT INTO DBA_REGISTRY_SQLPATCH VALUES ('Release 19.3', 'APPLY', 'SUCCESS', '2024-01-02'),"
    " ('Release 19.9', 'APPLY', 'SUCCESS', '2025-01-02'), ('Release 19.11', 'APPLY', 'WITH ERRORS', '2026-01-02')",
    "INSERT INTO ALL_SOURCE VALUES ('APP', 'P', 'PACKAGE', 1, 'a'), ('APP', 'P', 'PACKAGE BODY', 1, 'b'),"
    " ('APP', 'P', 'PACKAGE BODY', 2, 'c'), ('OTHER', 'Q', 'PACKAGE', 1, 'd')",
    "INSERT INTO INVALID_TRIGGERS VALUES ('BROKEN')",
)


@pytest.fixture
def surveyed_standin(standin: StandIn) -> StandIn:
    for statement in DECLARED:
        standin.server.execute(statement, DICTIONARY)
    standin.server.execute('CREATE VIEW "BROKEN" AS SELECT 1 AS "A"', SCHEMA)
    return standin


@pytest.fixture
def restricted_standin(surveyed_standin: StandIn, mariadb_oracle_server: MariaServer) -> Iterator[StandIn]:
    """Open a session of a user without privileges on system views."""
    execute = mariadb_oracle_server.execute
    execute(f"CREATE USER {USER}")
    execute(f"GRANT ALL ON {SCHEMA}.* TO {USER}")
    closed = {"INSTANCE", "SYSSTAT", "DBA_REGISTRY_SQLPATCH"}
    for (name,) in execute(f"SHOW TABLES FROM {DICTIONARY}"):
        if name not in closed:
            execute(f'GRANT SELECT ON {DICTIONARY}."{name}" TO {USER}')
    yield StandIn(mariadb_oracle_server, user="curious")
    execute(f"DROP USER {USER}")


def read_facts(standin: StandIn, version: str = "19c") -> OracleServerFacts:
    with closing(OracleSession(standin)) as session:
        dictionary = OracleDictionary(session, find_version(version), SCHEMA, [])
        found = OracleServerFacts(session, dictionary, find_version(version))
        found.read()
    return found


def test_version_patch_instances_role_and_code_are_named(surveyed_standin: StandIn) -> None:
    found = read_facts(surveyed_standin)

    assert {fact.what: fact.value for fact in found.facts} == {
        "version": "19c",
        "last patch": "Release 19.9 of 2025-01-02",
        "instances": "2, RAC",
        "role": "primary",
        "character set": "AL32UTF8, of national texts AL16UTF16",
        "lines of code": "package 1, package body 2",
        "invalid objects": "view 1",
    }
    assert found.log_rates.redo == pytest.approx(10_000, rel=0.1)
    assert found.log_rates.undo == pytest.approx(2_000, rel=0.1)
    assert found.unknown == []


def test_an_unreadable_view_is_named_with_its_grant(restricted_standin: StandIn) -> None:
    found = read_facts(restricted_standin)

    assert found.unknown == [
        'last patch: GRANT SELECT ON DBA_REGISTRY_SQLPATCH TO "APP";',
        'number of instances (RAC): GRANT SELECT ON GV_$INSTANCE TO "APP";',
        'redo and undo today: GRANT SELECT ON GV_$SYSSTAT TO "APP"; GRANT SELECT ON GV_$INSTANCE TO "APP";',
    ]
    assert {fact.what for fact in found.facts} == {
        "version",
        "role",
        "character set",
        "lines of code",
        "invalid objects",
    }
    assert (found.log_rates.redo, found.log_rates.undo) == (None, None)
    assert read_facts(restricted_standin, "11.2").unknown == found.unknown[1:]  # the stand-in has no list of patches
