"""Three replicated brokers whose power can be cut, one or all at once, while a producer commits (power.py)."""

from __future__ import annotations

import contextlib
import random
import signal
import threading
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from tests.support.brokers.etcd import EtcdCluster
from tests.support.brokers.forked_brokers import ForkedBroker, start_supervised
from tests.support.brokers.servers import BUSINESS, settings, take
from tests.support.engines import engines, power
from tests.support.engines.stored import plain_rows
from tests.support.ports import free_port
from tests.support.waiting import eventually
from venus.config import ClusterSettings
from venus.errors import VenusError
from venus.model import Verdict
from venus.rpc.admin import AdminClient
from venus.rpc.producer import Producer
from venus.rpc.snapshots import SnapshotClient
from venus.rpc.subscriber import Subscriber
from venus.wire import broker_pb2

NAMES = "abc"
HEALED_S = 120.0
ANSWER_S = 10.0


class PowerCluster:
    """Brokers a, b and c; a note per broker records which bytes its disk must keep."""

    def __init__(self, folder: Path, etcd: EtcdCluster) -> None:
        self.folder, self._etcd, self._name = folder, etcd, etcd.new_name()
        self._ports = {name: free_port() for name in NAMES}
        self.reach = ",".join(f"127.0.0.1:{port}" for port in self._ports.values())
        self.brokers = {name: self._start(name) for name in NAMES}

    def _start(self, name: str) -> ForkedBroker:
        cluster = ClusterSettings(name=self._name, broker_id=name, etcd=tuple(self._etcd.addresses), lease_s=2.0)
        chosen = settings(
            self.folder / name,
            listen=f"127.0.0.1:{self._ports[name]}",
            http="",
            free_bytes_min=1 << 20,
            cache_bytes=2 << 20,
        )
        note = partial(power.note_what_is_synced, self._note(name))
        chosen = chosen.model_copy(update={"cluster": cluster})
        return start_supervised(chosen, self.folder / f"{name}.log", [note])

    def _note(self, name: str) -> Path:
        """Return the file in which a broker notes what its disk must keep."""
        return self.folder / f"{name}.note"

    def cut(self, names: Sequence[str], chance: random.Random, *, everything: bool) -> int:
        """Cut the power of some brokers at the same moment; return how many bytes their disks have lost."""
        loss = power.lose_unsynced_bytes if everything else power.lose_some_bytes
        for name in names:
            self.brokers[name].send(signal.SIGKILL)
        for name in names:
            self.brokers[name].kill()
        return sum(power.cut(self.folder / name, self._note(name), chance, loss) for name in names)

    def start(self, names: Sequence[str]) -> None:
        """Restore the power of some brokers."""
        for name in names:
            self.brokers[name] = self._start(name)

    def status(self, name: str) -> broker_pb2.BusinessStatus | None:
        """Return a broker's status, or None if it does not answer."""
        with contextlib.suppress(VenusError), AdminClient(self.brokers[name].address) as admin:
            return next(iter(admin.status(BUSINESS).businesses), None)
        return None

    def leader(self) -> str:
        """Wait for a leader and return its name."""

        def find_leader() -> str:
            found = {name: self.status(name) for name in NAMES if self.brokers[name].is_alive}
            return next((name for name, status in found.items() if status and status.replication.leader == name), "")

        return str(eventually(find_leader, timeout_s=HEALED_S))

    def settle(self) -> int:
        """Wait until all three are in sync and have everything; return the queue's end."""

        def find_common_end() -> int:
            found = [self.status(name) for name in NAMES]
            ends = {(status.next_offset, len(status.halves)) for status in found if status}
            in_sync = [sum(r.in_sync for r in status.replication.replicas) for status in found if status]
            whole = None not in found and len(ends) == 1 and max(in_sync, default=0) == len(NAMES)
            return ends.pop()[0] if whole else 0

        return int(eventually(find_common_end, timeout_s=HEALED_S))

    def increments(self, name: str, until: int) -> list[broker_pb2.Increment]:
        """Return a broker's queue."""
        with Subscriber(self.brokers[name].address, BUSINESS, "look", credit_bytes=64 << 20, transient=True) as reader:
            reader.open(0, 0)
            return take(reader, until)

    def full_data(self, name: str) -> dict[bytes, bytes]:
        """Return a broker's full data."""
        found: dict[bytes, bytes] = {}
        with SnapshotClient(self.brokers[name].address) as snapshots:
            snapshot = snapshots.open(BUSINESS)
            for split in snapshot.splits:
                for chunk in snapshots.read_split(snapshot.snapshot_id, split):
                    found.update({key: row for _, _, key, row in plain_rows(chunk.rows)})
            snapshots.close(snapshot.snapshot_id)
        return found

    def __enter__(self) -> PowerCluster:
        return self

    def __exit__(self, *_: object) -> None:
        for broker in self.brokers.values():
            broker.kill()


class PhaseWriter:
    """Commits the batches of a phase in a thread, and checks that the leader has the acknowledged ones."""

    def __init__(self, cluster: PowerCluster, phase: str) -> None:
        self._cluster, self._phase = cluster, phase
        self.committed = self.persisted = 0
        self._error: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def wait_past(self, batch_no: int) -> None:
        """Wait until a batch after this one is committed."""
        eventually(lambda: self._error is not None or self.committed > batch_no, timeout_s=HEALED_S)
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """Stop, and leave no batch undecided."""
        self._stop.set()
        self._thread.join(HEALED_S)
        assert not self._thread.is_alive()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                with contextlib.suppress(VenusError):
                    self._session()
        except BaseException as error:  # the waiting test raises it
            self._error = error

    def _session(self) -> None:
        """Connect, decide what an earlier connection left undecided, and commit batches until the stop."""
        with Producer(self._cluster.reach, BUSINESS, "power", window_bytes_max=8 << 20) as producer:
            ack = producer.connect(0, self.committed, timeout_s=ANSWER_S, owner="power", take_over=True)
            last = max([ack.last_batch, *(half.batch_no for half in ack.undecided)])
            assert ack.last_batch >= self.committed, "an acknowledged commit is lost"
            assert last >= self.persisted, "an acknowledged half message is lost"
            for half in ack.undecided:  # the source has them: it committed before the power cut
                self._decide(producer, half.batch_no, half.digest)
            self.committed = self.persisted = last
            while not self._stop.is_set():
                self._commit(producer, self.committed + 1)

    def _commit(self, producer: Producer, number: int) -> None:
        message = engines.half(number, (number - 1) * power.ROWS + 1, power.change(self._phase, number))
        producer.send_half(message)
        producer.wait_until_persisted(number, ANSWER_S)
        self.persisted = number
        self._decide(producer, number, message.digest)
        self.committed = number

    @staticmethod
    def _decide(producer: Producer, number: int, digest: int) -> None:
        producer.decide(number, digest, Verdict.COMMIT)
        producer.wait_until_decided(number, ANSWER_S)


def check(cluster: PowerCluster, phase: str, last_batch: int) -> None:
    """Compare every broker's queue and full data with the sent batches."""
    end = cluster.settle()
    assert end == last_batch * power.ROWS, "a batch is missing or doubled"
    wanted: dict[bytes, bytes] = {}
    for number in range(1, last_batch + 1):
        for key, row in power.change(phase, number):
            wanted.pop(key, None) if row is None else wanted.update({key: row})
    for name in NAMES:
        increments = cluster.increments(name, end)
        assert [found.base_offset for found in increments] == list(range(0, end, power.ROWS)), name
        model: dict[bytes, bytes] = {}
        for increment in increments:
            engines.apply(model, increment)
        assert model == wanted, f"the queue of {name} is not what was sent"
        assert cluster.full_data(name) == wanted, f"the full data of {name} is not what was sent"


def let_producer_work(chance: random.Random) -> None:
    """Let the producer work for a while."""
    time.sleep(chance.uniform(0.05, 0.4))
