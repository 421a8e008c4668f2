"""However many producers take over, a consumer of another history is detected, and the record of epochs stays short."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.engine.test_retention import tick
from tests.support.engines import engines
from tests.support.engines.engines import BUSINESS, Clock, Producer, status, the_business
from venus.broker.core import Core
from venus.broker.machine.business import MaterialisedPosition
from venus.broker.machine.queue_index import EPOCHS_MAX
from venus.broker.snapshot import reading
from venus.broker.store import keys
from venus.errors import OffsetDiverged

TAKEN_OVER = 5 * EPOCHS_MAX
#: Number of rows in the producers' batches, in turn, so that epochs begin at various distances.
ROWS = (3, 1, 7, 2)
#: Every tenth producer commits several batches.
BUSY_EVERY = 10


class History:
    """The complete list of epochs with their first offsets."""

    def __init__(self) -> None:
        self.begins: list[tuple[int, int]] = []
        self.end = 0

    def take_over_repeatedly(self, engine: Core, times: int) -> None:
        """Let this many producers take over from each other and commit at least one batch each."""
        for n in range(times):
            producer = Producer(engine)
            self.begins.append((producer.epoch, self.end))
            for _ in range(4 if n % BUSY_EVERY == 0 else 1):
                producer.commit(engines.rows(n, ROWS[n % len(ROWS)]))
                self.end += ROWS[n % len(ROWS)]

    def end_of(self, epoch: int) -> int:
        """Return the end offset of an epoch."""
        return next((start for known, start in self.begins if known > epoch), self.end)


def require_same_verdicts(engine: Core, history: History) -> None:
    """Check the position verdict for every epoch, at the offsets around its end that the queue still has."""
    log_start = status(engine).log_start
    asked = 0
    for epoch in [history.begins[0][0] - 1, *(epoch for epoch, _ in history.begins)]:
        end = history.end_of(epoch)
        for offset in {log_start, end - 1, end, end + 1, history.end}:
            if not log_start <= offset <= history.end:
                continue
            asked += 1
            if offset > end:
                with pytest.raises(OffsetDiverged, match=f"in epoch {epoch}, which ended at"):
                    engine.subscriptions.check_position(BUSINESS, offset, epoch)
            else:
                assert engine.subscriptions.check_position(BUSINESS, offset, epoch).next_offset == history.end
    assert asked > len(history.begins)


def record_bytes(engine: Core) -> int:
    """Return the size of the business record that is written with every command group."""
    value = engine.store.get(keys.STATE, keys.core_key(the_business(engine).number))
    assert value is not None
    return len(value)


def test_every_epoch_is_checked_correctly_from_a_short_record(tmp_path: Path) -> None:
    engine, history = engines.make(tmp_path), History()
    history.take_over_repeatedly(engine, EPOCHS_MAX)
    full = record_bytes(engine)
    history.take_over_repeatedly(engine, TAKEN_OVER)

    assert len(the_business(engine).epochs) == EPOCHS_MAX
    assert record_bytes(engine) < 1.2 * full
    require_same_verdicts(engine, history)
    engine.stop()

    engine = engines.make(tmp_path)
    require_same_verdicts(engine, history)
    engine.stop()


def test_trimming_removes_no_epoch_that_a_consumer_may_be_at(tmp_path: Path) -> None:
    clock, history = Clock(), History()
    engine = engines.make(tmp_path, clock, retain_bytes=0)
    history.take_over_repeatedly(engine, 1)
    token = engine.subscriptions.attach(BUSINESS, "g", 0)
    history.take_over_repeatedly(engine, TAKEN_OVER)
    middle = history.begins[TAKEN_OVER // 2][1]
    for reached in (40, middle, middle + 10, history.begins[-EPOCHS_MAX // 2][1]):
        engine.subscriptions.acknowledge(BUSINESS, "g", token, reached)
        tick(engine, clock)
        assert 0 < status(engine).log_start <= reached
        require_same_verdicts(engine, history)
        history.take_over_repeatedly(engine, 3)
        require_same_verdicts(engine, history)
    engine.stop()


def test_a_snapshot_has_the_epoch_of_the_last_change_below_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A target loaded up to a cut, but in an older epoch than the cut's, would diverge at once."""
    engine, history = engines.make(tmp_path), History()
    history.take_over_repeatedly(engine, TAKEN_OVER)

    for offset in range(1, history.end + 1):
        monkeypatch.setattr(reading, "read_progress", lambda *_, at=offset: MaterialisedPosition(offset=at))
        pin = reading.new_lease(engine.store, the_business(engine), "a", now=0, until=1, lease_s=1, holder="")
        assert pin.epoch == max(epoch for epoch, start in history.begins if start < offset)
        engine.subscriptions.check_position(BUSINESS, offset, pin.epoch)
    engine.stop()
