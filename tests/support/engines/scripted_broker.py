"""The broker's side of the half-message protocol in memory, for tests of the upper adapter.

The broker follows docs/explanation/protocol.md. `ScriptedProducer` is one stream. Messages queued in a broken
stream may be lost (`.lost` steps), or may have arrived without an answer (`.after` steps).
"""

from __future__ import annotations

from tests.support.brokers.ledger import fold
from tests.support.databases.scripted_source import Script
from venus.codec.batch import Batch, decode, digest
from venus.errors import Diverged, Fenced, ProtocolError, Unavailable
from venus.model import Verdict
from venus.rpc.conditions import AdapterCondition
from venus.wire.broker_pb2 import COMMIT, ROLLBACK, Decided, Half, HalfRef, InitAck, KnownTable


class ScriptedBroker:
    """The durable state of the broker."""

    def __init__(self) -> None:
        self.epoch = 0
        self.committed: list[Half] = []
        self.halves: list[Half] = []
        self.answers: list[tuple[int, Verdict]] = []
        self.last_batch = 0
        self.reports: list[AdapterCondition] = []

    @property
    def batches(self) -> list[Batch]:
        """Return the batches that consumers see, in order."""
        return [decode(half.body) for half in self.committed]

    def init(self, source_epoch: int, source_last_batch: int) -> int:
        """Raise the epoch."""
        if source_last_batch > (self.halves[-1].batch_no if self.halves else self.last_batch):
            raise Diverged("the broker lost its data")
        self.epoch = max(self.epoch, source_epoch) + 1
        return self.epoch

    def half(self, half: Half) -> None:
        """Accept a half message in order."""
        self.check(half)
        expected = (self.halves[-1].batch_no if self.halves else self.last_batch) + 1
        if half.batch_no != expected:
            raise ProtocolError(f"half {half.batch_no} where {expected} is next")
        self.halves.append(half)

    def check(self, half: Half) -> None:
        """Refuse a damaged body."""
        assert digest(half.body) == half.digest

    def decide(self, batch_no: int, digest: int, verdict: Verdict, *, can_wait: bool = False) -> None:
        """Decide half messages in order."""
        self.answers.append((batch_no, verdict))
        if verdict is Verdict.COMMIT:
            assert batch_no <= self.last_batch or any(
                h.batch_no == batch_no and h.digest == digest for h in self.halves
            )
            decided = [h for h in self.halves if h.batch_no <= batch_no]
            self.committed += decided
            self.last_batch = max(self.last_batch, batch_no)
            self.halves = self.halves[len(decided) :]
        elif verdict is Verdict.ROLLBACK:
            assert batch_no > self.last_batch, "a committed batch cannot be rolled back"
            self.halves = [h for h in self.halves if h.batch_no < batch_no]

    def tables(self) -> list[KnownTable]:
        """Return every described table with its newest version, and whether it has ever changed."""
        found: dict[int, int] = {}
        for schema in (schema for batch in self.batches for schema in batch.schemas):
            found[schema.table_id] = max(schema.version, found.get(schema.table_id, 0))
        changed = {section.table_id for batch in self.batches for section in batch.sections if section.count}
        return [KnownTable(table_id=t, version=v, last_sequence=int(t in changed)) for t, v in found.items()]

    def refs(self) -> list[HalfRef]:
        """Return the undecided half messages."""
        return [HalfRef(batch_no=h.batch_no, digest=h.digest) for h in self.halves]

    def fold(self) -> dict[int, dict[bytes, bytes]]:
        """Return the full data; check that nothing is doubled, missing or out of order."""
        return {table_id: {k: row for k, (_, row) in rows.items()} for table_id, rows in fold(self.batches).items()}


class ScriptedProducer:
    """One stream to the scripted broker."""

    def __init__(self, broker: ScriptedBroker, script: Script, *, window_bytes_max: int = 1 << 20) -> None:
        self.broker = broker
        self.script = script
        self.epoch = 0
        self.broken: Exception | None = None
        self.reviews: list[HalfRef] = []
        self.unpersisted = 0

    # -- the protocol of venus.adapters.upper.ingest.Ingest ------------------------------------------------------

    def connect(
        self,
        source_epoch: int,
        source_last_batch: int,
        *,
        timeout_s: float,
        owner: str,
        take_over: bool,
        gives_way: bool,
    ) -> InitAck:
        self._step("connect.before")
        self.epoch = self.broker.init(source_epoch, source_last_batch)
        self._step("connect.after")
        last = self.broker.committed[-1] if self.broker.committed else None
        batch = decode(last.body) if last is not None else None
        return InitAck(
            epoch=self.epoch,
            last_batch=self.broker.last_batch,
            last_sequence=batch.first_sequence + batch.count - 1 if batch is not None else 0,
            undecided=self.broker.refs(),
            tables=self.broker.tables(),
        )

    def send_half(self, half: Half, *, timeout_s: float) -> None:
        self._check()
        if self._loses("send_half"):
            return
        self.broker.half(half)
        self._step("send_half.after")

    def wait_until_persisted(self, batch_no: int, timeout_s: float) -> None:
        self._step("wait_persisted")
        if self.persisted_through < batch_no:
            raise Unavailable(f"half {batch_no} is not acknowledged")

    @property
    def persisted_through(self) -> int:
        self._check()
        return self.broker.halves[-1].batch_no if self.broker.halves else self.broker.last_batch

    def decide(self, batch_no: int, digest: int, verdict: Verdict, *, can_wait: bool = False) -> None:
        self._check()
        if self._loses(f"decide.{verdict.name}"):
            return
        self.broker.decide(batch_no, digest, verdict)
        self._step(f"decide.{verdict.name}.after")

    def report_committed(self, last_batch: int, next_sequence: int) -> None:
        self._step("report_committed")
        self.broker.last_batch = max(self.broker.last_batch, last_batch)

    def wait_until_decided(self, batch_no: int, timeout_s: float) -> Decided:
        self._check()
        if batch_no <= self.broker.last_batch:
            return Decided(verdict=COMMIT, batch_no=self.broker.last_batch)
        return Decided(verdict=ROLLBACK, batch_no=batch_no)

    @property
    def decided_through(self) -> int:
        self._check()
        return self.broker.last_batch

    def report(self, standing: AdapterCondition) -> None:
        self._check()
        self.broker.reports.append(standing)

    def take_reviews(self) -> list[HalfRef]:
        self._check()
        reviews, self.reviews = self.reviews, []
        return reviews

    def close(self) -> None:
        self.broken = Unavailable("closed")

    # -- failures --------------------------------------------------------------------------------------------

    def _check(self) -> None:
        """Raise the error that broke the stream, or Fenced if the broker has a newer epoch."""
        if self.broken is not None:
            raise self.broken
        if self.epoch and self.epoch != self.broker.epoch:
            raise Fenced(f"epoch {self.broker.epoch} is at the broker")

    def _step(self, name: str) -> None:
        """Count a step of the script, which may break the stream."""
        self._check()
        try:
            self.script.step(f"broker.{name}")
        except Unavailable as e:
            self.broken = e
            raise

    def _loses(self, name: str) -> bool:
        """Return whether the script loses a message at this step, which breaks the stream."""
        if self.script.loses(f"broker.{name}.lost"):
            self.broken = Unavailable("the stream broke")
            return True
        return False
