"""Repeated switches from MariaDB, SQLite and the Oracle stand-in under a writer, with kill -9: no row is lost.

The test kills the processes of VENUS, the switching command, and each database. If a rule is removed, the run fails.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.simulation.patching import SourceEdit
from tests.support.databases.mariadb import ORACLE_MODE, running_mariadb
from tests.support.databases.postgres import running_server
from tests.support.pipelines.old_databases import MariaPair, OraclePair, SqlitePair
from tests.support.pipelines.switched_pair import SwitchedPair, SwitchProof
from tests.support.processes.lifetimes import new_folder

pytestmark = [pytest.mark.integration, pytest.mark.timeout(3600)]


@contextmanager
def open_sqlite(folder: Path) -> Iterator[SwitchedPair]:
    """Make a pair with its own PostgreSQL server, which the test can kill."""
    home = new_folder("pg-")
    with running_server(home / "data") as server:
        pair = SqlitePair(folder, server)
        try:
            yield pair
        finally:
            pair.close()
    home.rmdir()


@contextmanager
def open_maria(folder: Path) -> Iterator[SwitchedPair]:
    """Make a pair with its own servers, which the test can kill."""
    home = new_folder("pg-")
    with ExitStack() as stack:
        maria = stack.enter_context(running_mariadb())
        server = stack.enter_context(running_server(home / "data"))
        pair = MariaPair(folder, maria, maria.create_database(), server)
        try:
            yield pair
        finally:
            pair.close()
    home.rmdir()


@contextmanager
def open_oracle(folder: Path) -> Iterator[SwitchedPair]:
    """Make a pair with an Oracle stand-in and its own PostgreSQL server, which the test can kill."""
    home = new_folder("pg-")
    with ExitStack() as stack:
        server = stack.enter_context(running_mariadb(ORACLE_MODE))
        pair = OraclePair(folder, server, stack.enter_context(running_server(home / "data")))
        try:
            yield pair
        finally:
            pair.close()
    home.rmdir()


KINDS = {"sqlite": open_sqlite, "mariadb": open_maria, "oracle": open_oracle}


@pytest.mark.parametrize(
    "switches", [pytest.param(3, id="three"), pytest.param(20, id="twenty", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("kind", KINDS)
def test_switches_under_a_writer_and_kills(tmp_path: Path, kind: str, switches: int) -> None:
    with KINDS[kind](tmp_path) as pair:
        proof = SwitchProof(pair, seed=switches)
        proof.run(switches, faults=True)
        assert len(proof.killed) > 2 * switches


_SWITCH = "venus.adapters.cutover.switch:Switch"
_CLOSED = "self._record(self.owner, SideState.CLOSED, self._number), self._schemas"
_SQLITE_SIDE = "venus.adapters.targets.sqlite.cutover.side:SqliteSide"
_SQLITE_CUTOVER = "venus.adapters.targets.sqlite.cutover.cutover_session:SqliteCutover"
_NUMBERED_CUTOVER = "venus.adapters.targets.relational.cutover_session:NumberedFollowerCutover"
_ORACLE_SIDE = "venus.adapters.targets.oracle.cutover.side:OracleSide"
#: The edit that leaves the owner open, which is the same for all kinds.
_CLOSING = (SourceEdit(where=f"{_SWITCH}.close_owner", old=_CLOSED, new=_CLOSED.replace("self._schemas", "[]")),)


def start_late(sql: str) -> tuple[SourceEdit, ...]:
    """Return an edit that loses the first changes after the cut in the old database."""
    return (
        SourceEdit(
            where=f"{_SWITCH}._start_following",
            old="start = self.follower.read_start()",
            new="time.sleep(1)\n"
            "    if self.name == '@source':\n"
            "        for schema in self._schemas:\n"
            "            if not schema.is_heartbeat:\n"
            f"                self.follower._session.run(f'{sql}')\n"
            "    start = self.follower.read_start()",
        ),
    )


#: For each kind and rule: the edit that removes the rule, and the failure that the run then reports.
RULES: dict[tuple[str, str], tuple[tuple[SourceEdit, ...], str]] = {
    ("sqlite", "changes of VENUS are not captured"): (
        (
            SourceEdit(
                where=f"{_SQLITE_SIDE}.list_capture_drops",
                old="",
                new="def list_capture_drops(self):\n    return []\n",
            ),
        ),
        "has logged changes of VENUS",
    ),
    ("sqlite", "a file that follows rejects writes"): (
        (
            SourceEdit(
                where=f"{_SQLITE_SIDE}.reject_writes",
                old="for one in placed:",
                new="for one in ():",
            ),
        ),
        "accept writes",
    ),
    ("sqlite", "the mark of a transaction ends before its commit"): (
        (
            SourceEdit(
                where="venus.adapters.targets.sqlite.session:SqliteSession._run_one",
                old="if self._is_marked:",
                new="if False:",
            ),
        ),
        "accept writes",
    ),
    ("sqlite", "the owner is closed before the follower is opened"): (_CLOSING, "accept writes"),
    ("sqlite", "counters continue behind those of the other database"): (
        (
            SourceEdit(
                where=f"{_SQLITE_CUTOVER}._set_counter",
                old='for block in ("set_counter", "add_counter"):',
                new="for block in ():",
            ),
        ),
        "was drawn before",
    ),
    ("sqlite", "capture starts at the cut"): (
        start_late(
            "UPDATE venus_captured_table SET log_through = (SELECT coalesce(max(seq), 0) "
            "FROM venus_l_{schema.table_id:05}) WHERE table_id = {schema.table_id}"
        ),
        "lacks",
    ),
    ("mariadb", "changes of VENUS are not captured"): (
        (
            SourceEdit(
                where="venus.adapters.dialects.statements:Statements.__call__",
                old="return text",
                new="return text.replace('IF @venus_apply IS NULL THEN', 'IF TRUE THEN')",
            ),
        ),
        "has logged changes of VENUS|old lacks",
    ),
    ("mariadb", "the owner is closed before the follower is opened"): (_CLOSING, "accept writes"),
    ("mariadb", "counters continue behind those of the other database"): (
        (SourceEdit(where=f"{_NUMBERED_CUTOVER}.set_counters", old="found = []", new="return []"),),
        "was drawn before",
    ),
    ("oracle", "changes of VENUS are not captured"): (
        (
            SourceEdit(
                where="venus.adapters.dialects.oracle.language.ddl:quiet_trigger",
                old="return replace(made, sql=sql)",
                new="return made",
            ),
        ),
        "has logged changes of VENUS|old lacks",
    ),
    ("oracle", "a database that follows rejects writes"): (
        (SourceEdit(where=f"{_ORACLE_SIDE}.reject_writes", old="self._create_triggers(captured)", new="pass"),),
        "accept writes",
    ),
    ("oracle", "the owner is closed before the follower is opened"): (_CLOSING, "accept writes"),
    ("oracle", "capture starts at the cut"): (start_late("DELETE FROM VENUS_L_{schema.table_id:05}"), "lacks"),
    ("mariadb", "capture starts at the cut"): (start_late("DELETE FROM venus_l_{schema.table_id:05}"), "lacks"),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_without_faults_passes(tmp_path: Path, kind: str) -> None:
    with KINDS[kind](tmp_path) as pair:
        SwitchProof(pair, seed=1).run(3, faults=False)


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES, ids=": ".join)
def test_without_a_rule_the_run_fails(tmp_path: Path, rule: tuple[str, str]) -> None:
    edits, report = RULES[rule]
    with KINDS[rule[0]](tmp_path) as pair, pytest.raises(AssertionError, match=report):
        SwitchProof(pair, seed=1, edits=edits).run(3, faults=False)
