"""The order of the protocol's steps, and the adapter's actions if source and broker disagree."""

from __future__ import annotations

import threading
from dataclasses import replace
from itertools import pairwise

import pytest

from tests.support.databases.scripted_database import ScriptedDatabase, schema_of
from tests.support.databases.scripted_source import Script, ScriptedSource
from tests.support.engines.scripted_broker import ScriptedBroker, ScriptedProducer
from tests.unit.upper.runs import SETTINGS, Run, run
from venus.adapters.dialects.contract import UncapturedTable
from venus.adapters.upper.cutting import Cutter
from venus.adapters.upper.periodic import Reporter
from venus.adapters.upper.session import CaptureSession, SourceClaim, open_session
from venus.codec.batch import digest
from venus.errors import DatabaseUnavailable, Diverged, Fenced, SourceError, Unavailable, VenusError
from venus.model import BatchNo, Epoch, Verdict
from venus.rpc.conditions import NOT_CAPTURED
from venus.wire.broker_pb2 import Half, HalfRef

T = 2


def _open(
    database: ScriptedDatabase, broker: ScriptedBroker, script: Script | None = None
) -> tuple[CaptureSession, Cutter, ScriptedProducer]:
    script = script or Script()
    producer = ScriptedProducer(broker, script)
    session = open_session(ScriptedSource(database, script), producer, SourceClaim(owner="this one"), timeout_s=1)
    return session, Cutter(session, SETTINGS.capture, threading.Event(), Reporter(None)), producer


def _capture() -> tuple[ScriptedDatabase, ScriptedBroker]:
    database, broker = ScriptedDatabase("customer"), ScriptedBroker()
    database.put(T, "a", "1")
    run(database, broker)
    return database, broker


# -- order -------------------------------------------------------------------------------------------------------


def test_the_local_transaction_follows_the_half_messages_and_commit_follows_it() -> None:
    database, broker, script = ScriptedDatabase("customer"), ScriptedBroker(), Script()
    for n in range(10):
        database.put(T, f"k{n}", "v")
    _, cutter, _ = _open(database, broker, script)
    start = len(script.trace)
    assert cutter.cut()
    steps = [s for s in script.trace[start:] if "sections" not in s]
    assert steps == [
        "source.open_cut",
        *["broker.send_half.lost", "broker.send_half.after"] * 4,
        "broker.wait_persisted",
        "source.commit.before",
        "source.commit.after",
        "broker.decide.COMMIT.lost",
        "broker.decide.COMMIT.after",
    ]


def test_half_messages_are_sent_while_the_snapshot_is_still_being_read() -> None:
    database, broker, script = ScriptedDatabase("customer"), ScriptedBroker(), Script()
    for n in range(10):
        database.put(T, f"k{n}", "v")
    _, cutter, _ = _open(database, broker, script)
    cutter.cut()
    assert script.trace.index("broker.send_half.after") < max(
        n for n, step in enumerate(script.trace) if step == "source.sections.more"
    )


def test_the_source_forgets_only_batches_that_the_broker_has_recorded_as_committed() -> None:
    database, broker = ScriptedDatabase("customer"), ScriptedBroker()
    session, cutter, producer = _open(database, broker)
    for n in range(4):
        database.put(T, "a", str(n))
        cutter.cut()
    assert set(database.batches) == {3, 4}
    assert session.next_batch == 5
    producer.close()


# -- epochs ------------------------------------------------------------------------------------------------------


def test_the_older_of_two_adapters_is_fenced_at_the_broker() -> None:
    database, broker = ScriptedDatabase("customer"), ScriptedBroker()
    _, old, _ = _open(database, broker)
    _, new, _ = _open(database, broker)
    database.put(T, "a", "1")
    with pytest.raises(Fenced):
        old.cut()
    assert not broker.halves
    assert new.cut()
    assert broker.fold()[T] == {b"a": b"1"}


def test_the_older_of_two_adapters_is_fenced_at_the_source_between_its_halves_and_its_local_transaction() -> None:
    database, broker = ScriptedDatabase("customer"), ScriptedBroker()
    database.put(T, "a", "1")

    class TakeoverScript(Script):
        """Another adapter starts when the half messages are on disk and the local transaction has not committed."""

        def step(self, name: str) -> None:
            super().step(name)
            if name == "source.commit.before":
                _open(database, broker)

    _, old, _ = _open(database, broker, TakeoverScript())
    with pytest.raises(Fenced):
        old.cut()
    assert not database.batches
    assert not broker.halves
    run(database, broker)
    assert broker.fold()[T] == {b"a": b"1"}


def test_a_process_that_lost_its_connection_does_not_fence_its_successor() -> None:
    database, broker = _capture()
    claim = SourceClaim(owner="this one")
    open_session(ScriptedSource(database, Script()), ScriptedProducer(broker, Script()), claim, timeout_s=1)
    _open(database, broker)
    epoch = broker.epoch
    with pytest.raises(Fenced):
        open_session(ScriptedSource(database, Script()), ScriptedProducer(broker, Script()), claim, timeout_s=1)
    assert broker.epoch == epoch
    open_session(
        ScriptedSource(database, Script()),
        ScriptedProducer(broker, Script()),
        SourceClaim(owner="this one"),
        timeout_s=1,
    )


def test_fenced_ends_the_run_and_is_reported() -> None:
    database, broker = _capture()
    database.put(T, "a", "2")
    run_ = Run(database, broker, Script())
    run_.script.failures = {12: Fenced("taken over")}
    with pytest.raises(Fenced):
        run_.capture()
    assert run_.reports[-1].state == "failed"
    assert run_.reports[-1].last_error == "taken over"


# -- the start-up ------------------------------------------------------------------------------------------------


def test_undecided_halves_are_committed_up_to_the_batch_table_and_rolled_back_after_it() -> None:
    database, broker, script = ScriptedDatabase("customer"), ScriptedBroker(), Script()
    _, cutter, producer = _open(database, broker, script)
    for n in range(7):
        database.put(T, f"k{n}", "v")
    script.failures = {len(script.trace) + n: Unavailable() for n in range(100) if n == 13}
    with pytest.raises(Unavailable):
        cutter.cut()
    assert script.trace[-1] == "broker.decide.COMMIT.lost" or broker.halves
    refs = [h.batch_no for h in broker.halves]
    assert refs == [1, 2, 3]
    assert set(database.batches) == {1, 2, 3}
    broker.half(Half(batch_no=4, digest=digest(b"never committed"), body=b"never committed"))
    broker.answers.clear()
    producer.close()
    session, _, _ = _open(database, broker)
    assert broker.answers == [(3, Verdict.COMMIT), (4, Verdict.ROLLBACK)]
    assert session.next_batch == 4


def test_a_broker_that_lost_its_data_is_refused() -> None:
    database, _ = _capture()
    with pytest.raises(Diverged):
        run(database, ScriptedBroker())


def test_a_source_that_is_behind_the_broker_is_read_again_with_a_sweep() -> None:
    """After a restored backup, rows that only the broker has must be deleted."""
    database, broker = _capture()
    backup = (database.contents(), database.state, dict(database.batches))
    database.put(T, "b", "after the backup")
    run(database, broker)
    assert broker.fold()[T] == {b"a": b"1", b"b": b"after the backup"}
    rows, state, batches = backup
    for table_id, table in database.tables.items():
        table.rows = rows[table_id]
    database.state = replace(state, next_sequence=state.next_sequence)
    database.batches = batches
    database.log.clear()
    database.strict = False
    run(database, broker)
    assert broker.fold()[T] == {b"a": b"1"}


def test_a_source_that_is_behind_the_broker_continues_with_new_versions() -> None:
    database, broker = _capture()
    state, batches = database.state, dict(database.batches)
    database.alter(T)
    run(database, broker)
    assert broker.tables()[-1].version == 2
    database.tables[T].schema, database.state, database.batches = schema_of(T, "customer"), state, batches
    database.strict = False
    run(database, broker)
    assert database.tables[T].schema.version == 3
    assert {t.table_id: t.version for t in broker.tables()}[T] == 3


def test_a_table_of_the_lost_history_that_is_captured_again_is_swept() -> None:
    database, broker = _capture()
    state, batches = database.state, dict(database.batches)
    later = database.add_table("later", filled=False)
    database.put(later, "gone", "1", logged=False)
    run(database, broker)
    assert broker.fold()[later] == {b"gone": b"1"}
    del database.tables[later]
    database.state, database.batches, database.strict = state, batches, False
    run(database, broker)
    database.add_table("later", filled=False)
    database.put(later, "now", "2", logged=False)
    run(database, broker)
    assert broker.fold()[later] == {b"now": b"2"}


def test_a_new_table_is_filled_without_a_sweep() -> None:
    database, broker = _capture()
    later = database.add_table("later", filled=False)
    database.put(later, "a", "1", logged=False)
    run(database, broker)
    assert database.tables[later].fill.done
    assert not database.tables[later].fill.sweep_from
    assert database.tables[later].schema.version == 1


# -- reviews -----------------------------------------------------------------------------------------------------


def test_a_review_between_cuts_is_answered_from_the_batch_table() -> None:
    database, broker = ScriptedDatabase("customer"), ScriptedBroker()
    database.put(T, "a", "1")
    session, cutter, producer = _open(database, broker)
    cutter.cut()
    record = database.batches[BatchNo(1)]
    broker.last_batch = 0  # the COMMIT is still on its way
    broker.halves = [broker.committed.pop()]
    producer.reviews = [HalfRef(batch_no=1, digest=record.digest)]
    broker.answers.clear()
    assert session.answer_reviews() == 1
    assert broker.answers == [(1, Verdict.COMMIT)]
    producer.reviews = [HalfRef(batch_no=2, digest=5)]
    session.answer_reviews()
    assert broker.answers[-1] == (2, Verdict.ROLLBACK)


def test_a_review_from_before_the_answer_to_its_commit_is_not_answered_with_rollback() -> None:
    """The source has forgotten the batch, because the broker has recorded its COMMIT since then."""
    database, broker = ScriptedDatabase("customer"), ScriptedBroker()
    session, cutter, producer = _open(database, broker)
    for n in range(4):
        database.put(T, "a", str(n))
        cutter.cut()
    assert BatchNo(1) not in database.batches
    producer.reviews = [HalfRef(batch_no=1, digest=broker.committed[0].digest)]
    broker.answers.clear()
    assert session.answer_reviews() == 0
    assert not broker.answers


def test_a_review_of_a_rolled_back_half_does_not_affect_the_next_one_of_its_number() -> None:
    database, broker, script = ScriptedDatabase("customer"), ScriptedBroker(), Script()
    session, cutter, producer = _open(database, broker, script)
    database.put(T, "a", "1")
    cutter.cut()
    broker.last_batch = 0  # the COMMIT is still on its way
    producer.reviews = [HalfRef(batch_no=1, digest=5)]
    broker.answers.clear()
    assert session.answer_reviews() == 0
    assert not broker.answers


def test_a_review_during_its_cut_is_answered_with_unknown() -> None:
    database, broker = ScriptedDatabase("customer"), ScriptedBroker()
    for n in range(10):
        database.put(T, f"k{n}", "v")
    producers: list[ScriptedProducer] = []

    class AskingBroker(Script):
        """Script in which the broker asks about the first half message while the second one is on its way."""

        def step(self, name: str) -> None:
            super().step(name)
            if self.trace.count("broker.send_half.after") == 2 and not broker.answers:
                producers[0].reviews = broker.refs()[:1]

    _, cutter, producer = _open(database, broker, AskingBroker())
    producers.append(producer)
    assert cutter.cut()
    assert broker.answers == [(1, Verdict.UNKNOWN), (4, Verdict.COMMIT)]


# -- stopping and errors -----------------------------------------------------------------------------------------


def test_a_stop_in_the_middle_of_a_cut_rolls_it_back_completely() -> None:
    database, broker = ScriptedDatabase("customer"), ScriptedBroker()
    for n in range(10):
        database.put(T, f"k{n}", "v")
    log = dict(database.log)
    stop = threading.Event()

    class StopAfterTwo(Script):
        """Script in which SIGTERM arrives after the second half message."""

        def step(self, name: str) -> None:
            super().step(name)
            if self.trace.count("broker.send_half.after") == 2:
                stop.set()

    Run(database, broker, StopAfterTwo(), stop=stop).capture()
    assert not broker.halves
    assert not broker.committed
    assert not database.batches
    assert log.items() <= database.log.items()
    run(database, broker)
    assert broker.fold()[T] == database.tables[T].rows


def test_a_source_that_permanently_refuses_reads_ends_the_run_with_its_error() -> None:
    class RefusingScript(Script):
        """Script in which every read fails."""

        def step(self, name: str) -> None:
            super().step(name)
            if name == "source.sections":
                raise SourceError("permission denied for table customer")

    database, broker, script = ScriptedDatabase("customer"), ScriptedBroker(), RefusingScript()
    database.put(T, "a", "1")
    with pytest.raises(SourceError, match="permission denied"):
        run(database, broker, script)
    assert script.trace.count("source.sections") == 4


@pytest.mark.parametrize("error", [Unavailable("away"), DatabaseUnavailable("away")])
def test_an_absent_source_or_broker_is_retried_until_it_is_back(error: VenusError) -> None:
    database, broker = ScriptedDatabase("customer"), ScriptedBroker()
    database.put(T, "a", "1")
    script = Script(dict.fromkeys(range(4), error))
    run_ = Run(database, broker, script)
    report = run_.capture()
    assert broker.fold()[T] == {b"a": b"1"}
    assert report.connections == 1
    assert "waiting to reconnect" in {r.state for r in run_.reports}


def test_a_stop_ends_the_wait_for_an_absent_source_or_broker() -> None:
    stop = threading.Event()

    class UnavailableScript(Script):
        """Script of a database that no attempt reaches; the third attempt requests a stop."""

        def step(self, name: str) -> None:
            super().step(name)
            if len(self.trace) == 3:
                stop.set()
            raise DatabaseUnavailable("away")

    run_ = Run(ScriptedDatabase(), ScriptedBroker(), UnavailableScript(), stop=stop)
    assert run_.capture().state == "stopped"


def test_the_epoch_of_an_unanswered_init_counts_as_claimed() -> None:
    database, broker = _capture()
    claim = SourceClaim(owner="this one", epoch=Epoch(1))
    script = Script({3: DatabaseUnavailable("lost the answer")})
    with pytest.raises(DatabaseUnavailable):
        open_session(ScriptedSource(database, script), ScriptedProducer(broker, script), claim, timeout_s=1)
    assert script.trace[-1] == "source.raise_epoch.before"
    database.state = replace(database.state, epoch=Epoch(broker.epoch))  # it had arrived
    open_session(ScriptedSource(database, Script()), ScriptedProducer(broker, Script()), claim, timeout_s=1)


# -- a row that cannot be carried ----------------------------------------------------------------------------------


def test_a_busy_table_that_halts_in_slow_cuts_does_not_delay_the_others() -> None:
    """If the dictionary were read in between, the table would continue, and halt the next cut as well, for ever."""
    database, broker = ScriptedDatabase("orders", "customer"), ScriptedBroker()
    orders, customer = 2, 3
    database.unfit.add(b"large")
    for n in range(5):
        database.put(orders, f"o{n}", "new")
        database.put(customer, f"c{n}", "new")
    database.put(orders, "large", "too large")

    class SlowScript(Script):
        """Each snapshot takes ten seconds, in which the application writes to the table."""

        def step(self, name: str) -> None:
            super().step(name)
            if name == "source.sections":
                slow.now += 10
                database.put(orders, f"o{len(self.trace)}", "new")
            if self.trace.count("source.sections") == 8:
                slow.stop.set()

    slow = Run(database, broker, SlowScript())
    slow.capture()
    assert set(broker.fold()[customer]) == {f"c{n}".encode() for n in range(5)}
    assert orders not in broker.fold(), "nothing of a table that halts is seen"


# -- tables that are not captured --------------------------------------------------------------------------------


def test_an_uncaptured_table_is_reported_once_and_its_capture_as_well() -> None:
    database, broker = ScriptedDatabase("customer"), ScriptedBroker()

    def reported_tables() -> list[str]:
        return [t.name for t in broker.reports[-1].tables if t.state == NOT_CAPTURED]

    def create_table(at: ScriptedDatabase) -> None:
        assert reported_tables() == []
        at.uncaptured.append(UncapturedTable(name="app.later"))

    def install_triggers(at: ScriptedDatabase) -> None:
        assert reported_tables() == ["app.later"]
        at.uncaptured.clear()

    def change_nothing(at: ScriptedDatabase) -> None:
        pass

    run(
        database,
        broker,
        deeds=[change_nothing, create_table, *[change_nothing] * 8, install_triggers, *[change_nothing] * 4],
    )

    found = [[t.name for t in report.tables if t.state == NOT_CAPTURED] for report in broker.reports]
    changes = [now for before, now in pairwise([[], *found]) if now != before]
    assert changes == [["app.later"], []]
    assert len(found) == found.index(["app.later"]) + 2, "the broker got the same again"
