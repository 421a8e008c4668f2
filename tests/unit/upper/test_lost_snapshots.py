"""A snapshot whose undo data is gone (ORA-01555) costs only its cut: the session continues with a smaller one."""

from __future__ import annotations

import pytest

from tests.support.databases.scripted_database import ScriptedDatabase
from tests.support.databases.scripted_source import Script
from tests.support.engines.scripted_broker import ScriptedBroker
from tests.unit.upper.runs import run
from venus.adapters.dialects.contract import SnapshotLost


def change(database: ScriptedDatabase) -> None:
    database.put(1, "k", "v")


@pytest.mark.parametrize("step", ["source.open_cut", "source.sections"])
def test_the_cut_is_rolled_back_and_the_session_continues(step: str) -> None:
    script = Script()
    run(ScriptedDatabase("customer"), ScriptedBroker(), script, [change])
    decided = max(n for n, name in enumerate(script.trace) if name == "source.commit.before")
    at = max(n for n, name in enumerate(script.trace[:decided]) if name == step)
    database, broker = ScriptedDatabase("customer"), ScriptedBroker()
    failing = Script({at: SnapshotLost("ORA-01555: snapshot too old")})

    report = run(database, broker, failing, [change])

    assert failing.trace[at] == step
    assert report.connections == 1
    assert database.waiting(1) == 0
