"""Two core sets are promoted without knowing of each other: one home remains, and possible losses are named."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from tests.support.brokers import networks
from tests.support.brokers.servers import BUSINESS, BrokerProcess, business_status, commit, fill
from tests.support.engines.batches import half
from tests.support.faults.proxy import Proxy
from tests.support.ports import free_port
from tests.support.waiting import eventually
from venus.broker.service.process import RunningBroker
from venus.errors import Refused, Unavailable, VenusError
from venus.rpc.admin import AdminClient
from venus.rpc.producer import Producer
from venus.wire import broker_pb2

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]
Start = Callable[..., RunningBroker]
SURE_S = 60.0


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with networks.starting(tmp_path) as start:
        yield start


def promote(address: str, *, force: bool = False, business: str = BUSINESS) -> broker_pb2.Promoted:
    with AdminClient(address) as admin:
        return admin.promote(business, only_look=False, force=force)


def homes(*addresses: str) -> list[tuple[str, int]]:
    """Return the sets that report to be the home, with their home terms."""
    found = []
    for address in addresses:
        entry = business_status(address)
        if entry.home.home_term and not entry.replaced and not entry.HasField("mirror"):
            found.append((entry.home.set, entry.home.home_term))
    return found


def alarms(address: str) -> str:
    with AdminClient(address) as admin:
        status = admin.status()
    return "\n".join([*status.alarms, *(text for entry in status.businesses for text in entry.alarms)])


@dataclass
class Shipper:
    """A source's upper adapter that has shipped three batches of five rows."""

    epoch: int = 1
    batch: int = 3

    def ship(self, address: str, batches: int) -> None:
        """Connect to a set, report the committed batches if it asks, and ship more batches."""
        with Producer(address, BUSINESS, "source", window_bytes_max=1 << 20) as producer:
            ack = producer.connect(self.epoch, self.batch)
            self.epoch = ack.epoch
            if ack.in_doubt:
                producer.report_committed(self.batch, 5 * self.batch + 1)
                producer.wait_until_decided(self.batch)
            commit(producer, [half(self.batch + n, rows=5) for n in range(1, batches + 1)])
        self.batch += batches


class Cores:
    """A head office with three batches of five rows, and two core sets that monitor each other over proxies."""

    def __init__(self, start: Start) -> None:
        self.port = free_port()
        self._start = start
        self.hq = self.start_hq()
        fill(self.hq.address, 1, 3, rows=5)
        ports = {name: free_port() for name in ("second", "third")}
        self.at = {name: f"127.0.0.1:{port}" for name, port in ports.items()}
        self.lines = {name: Proxy(address) for name, address in self.at.items()}
        for name, other in (("second", "third"), ("third", "second")):
            start(
                name,
                self.hq.address,
                self.lines[other].address,
                tier="core",
                level=0,
                listen=self.at[name],
                http="",
            )
        for address in self.at.values():
            networks.has(address, 15)

    def start_hq(self) -> RunningBroker:
        return self._start("hq", listen=f"127.0.0.1:{self.port}")

    def cut(self) -> None:
        """Cut the connections between the two core sets."""
        for line in self.lines.values():
            line.silence()
            line.cut()

    def mend(self) -> None:
        for line in self.lines.values():
            line.cut()
            line.resume()

    def close(self) -> None:
        for line in self.lines.values():
            line.close()


@pytest.fixture
def cores(start: Start) -> Iterator[Cores]:
    made = Cores(start)
    yield made
    made.close()


def test_two_sets_that_were_promoted_separately_become_one_home(cores: Cores) -> None:
    cores.hq.stop()
    cores.cut()
    with ThreadPoolExecutor(2) as pool:
        done = list(pool.map(promote, cores.at.values()))
    assert [found.home_term for found in done] == [1, 1]
    source = Shipper()
    source.ship(cores.at["second"], 1)
    source.ship(cores.at["third"], 2)  # the old home, wherever it redirects: the two newer homes do not know each other
    cores.mend()

    eventually(lambda: homes(*cores.at.values()) == [("second", 2)], timeout_s=SURE_S)
    eventually(lambda: business_status(cores.at["third"]).mirror.state == "following", timeout_s=SURE_S)
    assert [(w.home_term, w.first_offset) for w in business_status(cores.at["second"]).losses] == [(2, 20)]
    source.ship(cores.at["second"], 1)
    (window,) = business_status(cores.at["second"]).losses
    assert (window.first_batch, window.last_batch, window.rows) == (5, 6, 10)
    assert f"may have lost offsets 20 to {window.end_offset - 1} (10 changes in batches 5 to 6)" in alarms(
        cores.at["second"]
    )
    networks.has(cores.at["third"], business_status(cores.at["second"]).next_offset)


def test_the_producer_of_the_remaining_home_is_asked_once_more(cores: Cores) -> None:
    cores.hq.stop()
    cores.cut()
    for address in cores.at.values():
        promote(address)
    source = Shipper()
    source.ship(cores.at["second"], 1)
    with Producer(cores.at["second"], BUSINESS, "source", window_bytes_max=1 << 20) as producer:
        source.epoch = producer.connect(source.epoch, source.batch).epoch
        cores.mend()
        eventually(lambda: homes(*cores.at.values()) == [("second", 2)], timeout_s=SURE_S)
        with pytest.raises(Unavailable, match="another set was promoted at the same time, and this one stays"):
            commit(producer, [half(5, rows=5)])
    (window,) = business_status(cores.at["second"]).losses
    assert not window.HasField("end_offset")
    source.ship(cores.at["second"], 1)
    assert not business_status(cores.at["second"]).losses, "the other one took nothing"


def test_the_old_home_informs_two_homes_of_each_other(start: Start) -> None:
    port = free_port()
    hq = start("hq", listen=f"127.0.0.1:{port}")
    fill(hq.address, 1, 3, rows=5)
    at = {name: start(name, hq.address, tier="core", level=0).address for name in ("second", "third")}
    for address in at.values():
        networks.has(address, 15)
    hq.stop()
    for address in at.values():
        assert promote(address).home_term == 1
    start("hq", listen=f"127.0.0.1:{port}")

    eventually(lambda: homes(*at.values()) == [("second", 2)], timeout_s=SURE_S)
    assert business_status(at["third"]).replaced or business_status(at["third"]).HasField("mirror")
    with Producer(at["third"], BUSINESS, "late", window_bytes_max=1 << 20) as late:
        late.connect(1, 3)
        assert late.address == at["second"]


def test_a_promotion_is_refused_while_a_promoted_set_answers(cores: Cores) -> None:
    cores.hq.stop()
    promote(cores.at["second"])
    with pytest.raises(Refused, match=r"the home is not gone, set second at"):
        promote(cores.at["third"])
    assert promote(cores.at["third"], force=True).home_term == 2
    eventually(lambda: homes(*cores.at.values()) == [("third", 2)], timeout_s=SURE_S)


@pytest.mark.parametrize("late", [False, True])
def test_a_promotion_that_was_interrupted_is_repeated(tmp_path: Path, late: bool) -> None:
    names = ("orders", "stock")
    port = free_port()
    hq = networks.start(tmp_path / "hq", listen=f"127.0.0.1:{port}")
    for name in names:
        fill(hq.address, 1, 3, rows=5, business=name)
    chosen = networks.settings_of(
        tmp_path / "second", [hq.address], tier="core", level=0, listen=f"127.0.0.1:{free_port()}", http=""
    )
    second = BrokerProcess(chosen)
    for name in names:
        networks.has(second.address, 15, name)
    hq.stop()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(promote_all, second.address, names)
        if late:
            eventually(lambda: running.done() or any(are_promoted(second.address, names)))
        second.kill()
        running.result()
    second = BrokerProcess(chosen)
    try:
        left = [name for name, is_done in zip(names, are_promoted(second.address, names), strict=True) if not is_done]
        assert promote_all(second.address, left) == len(left)
        assert all(are_promoted(second.address, names))
        hq = networks.start(tmp_path / "hq", listen=f"127.0.0.1:{port}")
        for name in names:
            eventually(partial(is_replaced, hq.address, name), timeout_s=SURE_S)
            (window,) = business_status(second.address, name).losses
            assert (window.home_term, window.first_offset, window.HasField("end_offset")) == (1, 15, False)
    finally:
        second.kill()
        hq.stop()


def promote_all(address: str, names: tuple[str, ...] | list[str]) -> int:
    """Promote one business after the other, as the command does; return how many reported success."""
    done = 0
    for name in names:
        try:
            promote(address, business=name)
        except VenusError:
            break
        done += 1
    return done


def are_promoted(address: str, names: tuple[str, ...]) -> list[bool]:
    return [business_status(address, name).home.home_term > 0 for name in names]


def is_replaced(address: str, name: str) -> bool:
    return business_status(address, name).replaced


def test_a_set_that_is_the_home_of_one_business_counts_as_its_home(start: Start) -> None:
    hq = start("hq")
    for name in ("orders", "stock"):
        fill(hq.address, 1, 3, rows=5, business=name)
    second = start("second", hq.address, tier="core", level=0)
    third = start("third", hq.address, second.address, tier="core", level=0)
    for name in ("orders", "stock"):
        networks.has(second.address, 15, name)
        networks.has(third.address, 15, name)
    hq.stop()
    promote(second.address, business="orders")
    with pytest.raises(Refused, match=r"orders: the home is not gone, set second at"):
        promote(third.address, business="orders")
    assert promote(third.address, business="stock").home_term == 1
    assert promote(third.address, business="orders", force=True).home_term == 2
    eventually(lambda: business_status(second.address, "orders").home.home_term == 2, timeout_s=SURE_S)
