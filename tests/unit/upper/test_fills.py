"""First fills, sweeps, schemas and heartbeats, as they appear in the stream."""

from __future__ import annotations

from tests.support.databases.scripted_database import HEARTBEAT, ScriptedDatabase
from tests.support.databases.scripted_source import Script, ScriptedSource
from tests.support.engines.scripted_broker import ScriptedBroker
from tests.unit.upper.runs import Run, run
from venus.adapters.dialects.contract import SchemaChanged
from venus.adapters.upper.capture import run_capture_fill
from venus.adapters.upper.fills import FillProgress
from venus.errors import DatabaseUnavailable
from venus.model import ChangeKind

T1, T2 = 2, 3


def _filled_database(rows: int = 10) -> ScriptedDatabase:
    database = ScriptedDatabase("customer", "orders", filled=False)
    for n in range(rows):
        database.put(T1, f"c{n}", f"Customer {n}", logged=False)
        database.put(T2, f"o{n}", f"Order {n}", logged=False)
    return database


def _sections(broker: ScriptedBroker) -> list[tuple[int, int, ChangeKind, int]]:
    """Return (Sequence, table, kind, sweep_before) of every section."""
    found = []
    for batch in broker.batches:
        sequence = int(batch.first_sequence)
        for section in batch.sections:
            found.append((sequence, section.table_id, section.kind, int(section.sweep_before)))
            sequence += section.count
    return found


def test_first_fill_reads_every_row_of_every_table_once() -> None:
    database, broker = _filled_database(), ScriptedBroker()
    run_ = Run(database, broker)
    report = run_capture_fill(run_.settings, run_.stop, run_.reports.append, outside=run_.dependencies)
    assert report.complete
    assert report.rows == {"app.heartbeat": 0, "app.customer": 10, "app.orders": 10}
    assert broker.fold() == {t: rows for t, rows in database.contents().items() if t != HEARTBEAT} | {
        HEARTBEAT: broker.fold()[HEARTBEAT]
    }
    assert sum(b.count for b in broker.batches) == 20 + database.beats


def test_many_small_tables_are_read_in_few_cuts() -> None:
    database, broker = ScriptedDatabase(*(f"t{n}" for n in range(200)), filled=False), ScriptedBroker()
    for table_id in database.contents():
        if table_id != HEARTBEAT and table_id % 2:
            database.put(table_id, "k", "v", logged=False)
    run_ = Run(database, broker)
    assert run_capture_fill(run_.settings, run_.stop, run_.reports.append, outside=run_.dependencies).complete
    assert sum(len(rows) for rows in broker.fold().values()) == 100 + database.beats
    assert run_.reports[-1].cuts < 10


def test_tables_are_filled_in_turn_with_one_chunk_a_cut() -> None:
    database, broker = _filled_database(), ScriptedBroker()
    run(database, broker)
    chunks = [
        (batch.cut, section.table_id) for batch in broker.batches for section in batch.sections if section.table_id > 1
    ]
    assert [table_id for _, table_id in chunks] == [T1, T2] * 4
    assert len({cut for cut, _ in chunks}) == 7, "the last chunk of a table leaves room for another table's"


def test_changes_continue_during_the_fill_and_win_over_it() -> None:
    database, broker = _filled_database(), ScriptedBroker()
    written = 0

    class BusyScript(Script):
        """Script in which the application writes between any two cuts."""

        def step(self, name: str) -> None:
            nonlocal written
            super().step(name)
            if name == "source.commit.after" and written < 6:
                database.put(T1, f"c{written}", "changed")
                database.delete(T2, f"o{9 - written}")
                written += 1

    run(database, broker, BusyScript())
    assert broker.fold() == database.contents()


def test_first_fill_resumes_where_an_earlier_run_ended() -> None:
    database, broker = _filled_database(), ScriptedBroker()
    script = Script()
    run(_filled_database(), ScriptedBroker(), script)
    fourth_chunk = [n for n, step in enumerate(script.trace) if step == "source.fill_chunk"][3]

    class DyingScript(Script):
        """Script whose process ends at a given step."""

        def step(self, name: str) -> None:
            if len(self.trace) == fourth_chunk:
                raise KeyboardInterrupt
            super().step(name)

    first = Run(database, broker, DyingScript())
    try:
        first.capture()
    except KeyboardInterrupt:
        first.producers[-1].close()
    assert [t.fill.rows_done for t in database.tables.values()] == [0, 6, 3]
    second = Run(database, broker)
    report = run_capture_fill(second.settings, second.stop, outside=second.dependencies)
    assert report.rows == {"app.heartbeat": 0, "app.customer": 10, "app.orders": 10}
    assert broker.fold() == database.contents()


def test_first_fill_does_not_disturb_a_capture_that_has_filled_everything() -> None:
    database, broker = _filled_database(), ScriptedBroker()
    run(database, broker)
    epoch = broker.epoch
    again = Run(database, broker)
    assert run_capture_fill(again.settings, again.stop, outside=again.dependencies).complete
    assert broker.epoch == epoch


def test_first_fill_confirms_the_last_chunk_of_a_run_that_was_killed_before_its_commit() -> None:
    database, broker = _filled_database(), ScriptedBroker()
    script = Script()
    run(_filled_database(), ScriptedBroker(), script)
    last = max(n for n, step in enumerate(script.trace) if step == "source.fill_chunk")
    last_commit = script.trace.index("source.commit.after", last)

    class DyingScript(Script):
        """The process ends between the local transaction and COMMIT."""

        def step(self, name: str) -> None:
            super().step(name)
            if len(self.trace) == last_commit + 1:
                raise KeyboardInterrupt

    try:
        run(database, broker, DyingScript())
    except KeyboardInterrupt:
        assert broker.halves
    second = Run(database, broker)
    assert run_capture_fill(second.settings, second.stop, outside=second.dependencies).complete
    assert broker.fold() == database.contents()


def test_a_new_fill_is_a_sweep_between_markers_that_name_the_first_one() -> None:
    database, broker = _filled_database(), ScriptedBroker()
    run(database, broker)
    before = len(_sections(broker))
    ScriptedSource(database, Script()).capture.restart_fill(T1)
    del database.tables[T1].rows[b"c7"]
    run(database, broker)
    swept = [s for s in _sections(broker)[before:] if s[1] == T1]
    begin = swept[0][0]
    assert swept[0] == (begin, T1, ChangeKind.SWEEP_BEGIN, begin)
    assert swept[-1][1:] == (T1, ChangeKind.SWEEP_END, begin)
    assert {kind for _, _, kind, _ in swept[1:-1]} == {ChangeKind.CHANGES}
    assert broker.fold() == database.contents()


def test_a_sweep_keeps_its_first_marker_after_a_restart() -> None:
    database, broker = _filled_database(), ScriptedBroker()
    run(database, broker)
    ScriptedSource(database, Script()).capture.restart_fill(T1)
    del database.tables[T1].rows[b"c9"]
    before = len(_sections(broker))

    class ConnectionLostScript(Script):
        """The connection is lost at the second chunk."""

        def step(self, name: str) -> None:
            super().step(name)
            if name == "source.fill_chunk" and self.trace.count(name) == 2:
                raise DatabaseUnavailable("cut off")

    assert run(database, broker, ConnectionLostScript()).connections == 2
    markers = [s for s in _sections(broker)[before:] if s[2] is not ChangeKind.CHANGES]
    assert [kind for _, _, kind, _ in markers] == [ChangeKind.SWEEP_BEGIN, ChangeKind.SWEEP_END]
    assert len({sweep_before for *_, sweep_before in markers}) == 1
    assert broker.fold() == database.contents()


def test_a_table_added_to_a_running_pipeline_is_filled_without_a_restart() -> None:
    database, broker = _filled_database(), ScriptedBroker()

    def add(db: ScriptedDatabase) -> None:
        table_id = db.add_table("late", filled=False)
        db.put(table_id, "x", "1", logged=False)

    report = run(database, broker, deeds=[add])
    assert report.connections == 1
    assert broker.fold()[4] == {b"x": b"1"}
    carried = {s.name: b.batch_no for b in broker.batches for s in b.schemas}
    assert carried["late"] <= min(b.batch_no for b in broker.batches for s in b.sections if s.table_id == 4)


def test_a_paused_table_is_not_filled() -> None:
    database, broker = _filled_database(), ScriptedBroker()
    database.tables[T2].state = "PAUSED"
    run_ = Run(database, broker)
    report = run_capture_fill(run_.settings, run_.stop, outside=run_.dependencies)
    assert not report.complete
    assert report.rows["app.orders"] == 0
    assert report.rows["app.customer"] == 10


def test_a_table_whose_fill_has_halted_is_skipped_until_the_registry_is_read_again() -> None:
    database, broker = _filled_database(), ScriptedBroker()
    database.chunk_rows = 0  # no table can be read
    halted = Run(database, broker, deeds=[lambda db: None] * 10)

    class RecoveringScript(Script):
        """Script that allows rows to be read from the third read of the registry on."""

        def step(self, name: str) -> None:
            super().step(name)
            if name == "source.registered" and self.trace.count(name) == 4:
                database.chunk_rows = 3

    halted.script = RecoveringScript()
    report = halted.capture()
    assert broker.fold() == database.contents()
    assert len([b for b in broker.batches if not b.count]) < 8
    assert report.connections == 1


def test_progress_is_reported_per_table() -> None:
    database, broker = _filled_database(), ScriptedBroker()
    report = run(database, broker)
    assert FillProgress(table="app.orders", rows_done=10, rows_estimate=10, done=True) in report.fills


# -- schemas -----------------------------------------------------------------------------------------------------


def test_the_first_batch_of_a_connection_carries_every_schema_and_the_others_none() -> None:
    database, broker = _filled_database(), ScriptedBroker()
    run(database, broker)
    assert [len(b.schemas) for b in broker.batches] == [3] + [0] * (len(broker.batches) - 1)
    batches = len(broker.batches)
    run(database, broker)
    assert [len(b.schemas) for b in broker.batches[batches:]] == [3]


def test_the_schemas_of_a_cut_that_was_rolled_back_are_sent_again() -> None:
    """Within one connection: the first batch is on the broker's disk when the rest of its cut cannot be read."""
    database, broker = ScriptedDatabase("customer"), ScriptedBroker()
    for n in range(10):
        database.put(T1, f"c{n}", "v")

    class AlteredOnceScript(Script):
        """Script that raises SchemaChanged once, in the middle of the first cut."""

        def step(self, name: str) -> None:
            super().step(name)
            if name == "source.sections.more" and self.trace.count(name) == 4:
                assert broker.halves
                raise SchemaChanged("altered meanwhile")

    report = run(database, broker, AlteredOnceScript())
    assert (report.connections, report.retracted_cuts) == (1, 1)
    assert len(broker.batches[0].schemas) == 2
    assert broker.fold() == database.contents()


def test_a_new_version_is_sent_before_its_first_row() -> None:
    database, broker = ScriptedDatabase("customer"), ScriptedBroker()
    run(
        database,
        broker,
        deeds=[lambda db: db.put(T1, "a", "1"), lambda db: db.alter(T1), lambda db: db.put(T1, "a", "2")],
    )
    known: set[tuple[int, int]] = set()
    for batch in broker.batches:
        known |= {(s.table_id, s.version) for s in batch.schemas}
        assert {(s.table_id, s.schema_version) for s in batch.sections} <= known
    assert (T1, 2) in known


# -- heartbeats --------------------------------------------------------------------------------------------------


def test_an_idle_source_writes_heartbeats_that_arrive_as_rows() -> None:
    database, broker = ScriptedDatabase("customer"), ScriptedBroker()
    run_ = Run(database, broker, deeds=[lambda db: None] * 50)
    run_.settings = run_.settings.model_copy(
        update={"capture": run_.settings.capture.model_copy(update={"heartbeat_s": 5.0})}
    )
    run_.capture()
    assert database.beats >= 9
    assert broker.fold()[HEARTBEAT] == {b"beat": str(database.beats).encode()}
