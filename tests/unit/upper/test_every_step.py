"""The protocol with one failure at each of its steps: nothing is lost, doubled or out of order."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.databases.scripted_database import ScriptedDatabase
from tests.support.databases.scripted_source import Script, ScriptedSource
from tests.support.engines.scripted_broker import ScriptedBroker
from tests.unit.upper.runs import Deed, run
from venus.errors import DatabaseUnavailable, Unavailable, VenusError

T1, T2 = 2, 3
#: Values that one transaction wrote into each table.
UNIT = {f"u{n}".encode() for n in range(8)}


def _history() -> tuple[ScriptedDatabase, list[Deed]]:
    """Return a source to be filled, and the actions on it during and after the fill."""
    database = ScriptedDatabase("customer", "orders", filled=False)
    for n in range(5):
        database.put(T1, f"c{n}", f"Customer {n}", logged=False)
    return database, [
        _put_orders,
        _rename,
        _truncate,
        lambda db: db.alter(T1),
        _write_after_alter,
        _delete_untriggered,
        _resync,
        _write_unfit_row,
        _write_after_unfit_row,
        *[_let_a_second_pass] * 3,
        _correct,
        *[_let_a_second_pass] * 3,
    ]


def _put_orders(db: ScriptedDatabase) -> None:
    for n in range(8):
        db.put(T2, f"o{n}", "new")


def _rename(db: ScriptedDatabase) -> None:
    db.delete(T1, "c1")
    db.put(T1, "c2", "renamed")


def _truncate(db: ScriptedDatabase) -> None:
    db.truncate(T2)
    db.put(T2, "o1", "again")


def _write_after_alter(db: ScriptedDatabase) -> None:
    db.put(T1, "c9", "after the new column")


def _delete_untriggered(db: ScriptedDatabase) -> None:
    """Delete without a trigger, so that only a sweep finds it."""
    del db.tables[T1].rows[b"c3"]


def _resync(db: ScriptedDatabase) -> None:
    ScriptedSource(db, Script()).capture.restart_fill(T1)


def _write_unfit_row(db: ScriptedDatabase) -> None:
    """Write a transaction of several batches, in which one row of each table cannot be carried."""
    for table_id in (T1, T2):
        for n in range(8):
            db.put(table_id, f"u{n}", "together")
    db.unfit.add(b"u7")


def _write_after_unfit_row(db: ScriptedDatabase) -> None:
    """Write a valid row while the unfit ones are still there."""
    db.put(T2, "u8", "tried again, and the row is still there")


def _let_a_second_pass(db: ScriptedDatabase) -> None:
    """Let a second pass."""


def _correct(db: ScriptedDatabase) -> None:
    db.unfit.clear()
    for table_id in (T1, T2):
        db.put(table_id, "u7", "corrected")


def _error_for(step: str) -> VenusError:
    return DatabaseUnavailable("scripted") if step.startswith("source.") else Unavailable("scripted")


def _check(database: ScriptedDatabase, broker: ScriptedBroker, what: str) -> None:
    folded, source = broker.fold(), database.contents()
    assert {t: rows for t, rows in folded.items() if rows} == {t: rows for t, rows in source.items() if rows}, what
    assert not broker.halves, what
    assert not database.log, what
    found = [(b.cut, s.table_id, k) for b in broker.batches for s in b.sections for k in s.record_ids.split()]
    for table_id in (T1, T2):
        theirs = [(cut, key) for cut, of, key in found if of == table_id and key in UNIT]
        first = min(cut for cut, _ in theirs)
        assert {key for cut, key in theirs if cut == first} == UNIT, (
            f"{what}: half a transaction of a table that had halted"
        )


def test_a_run_without_failures_ends_equal() -> None:
    database, deeds = _history()
    broker = ScriptedBroker()
    report = run(database, broker, Script(), deeds)
    _check(database, broker, "no failure")
    assert report.connections == 1
    assert report.batches == len(broker.batches)
    assert all(t.fill.done for t in database.tables.values())


def test_a_failure_at_any_step_loses_and_doubles_nothing() -> None:
    database, deeds = _history()
    script = Script()
    run(database, ScriptedBroker(), script, deeds)
    assert len(script.trace) > 60
    for at, step in enumerate(script.trace):
        database, deeds = _history()
        broker = ScriptedBroker()
        report = run(database, broker, Script({at: _error_for(step)}), deeds)
        _check(database, broker, f"{at}: {step}")
        assert report.connections <= 2


@pytest.mark.full
def test_two_failures_near_each_other_lose_and_double_nothing() -> None:
    database, deeds = _history()
    script = Script()
    run(database, ScriptedBroker(), script, deeds)
    for at in range(0, len(script.trace), 3):
        for later in (1, 3, 7, 12):
            database, deeds = _history()
            broker = ScriptedBroker()
            second = _make_second_crash(at, later)
            run(database, broker, second(_error_for(script.trace[at])), deeds)
            _check(database, broker, f"{at} and {at + later}")


def _make_second_crash(at: int, later: int) -> Callable[[VenusError], Script]:
    class TwoCrashes(Script):
        """A script that crashes a second time, `later` steps after the first crash."""

        def step(self, name: str) -> None:
            if len(self.trace) == at + later:
                self.failures[at + later] = _error_for(name)
            super().step(name)

    return lambda error: TwoCrashes({at: error})
