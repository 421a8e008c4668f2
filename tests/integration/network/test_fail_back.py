"""Sets lose the nearest set above: they continue at the next one, report it, and return; consumers notice nothing."""

from __future__ import annotations

import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.support.brokers import networks
from tests.support.brokers.servers import BUSINESS, business_status, commit, fill, take
from tests.support.engines.batches import half
from tests.support.faults.proxy import Proxy
from tests.support.ports import free_port
from tests.support.waiting import eventually
from venus.broker.mirrors.upstream_selection import SelectionTimes
from venus.broker.service.process import RunningBroker
from venus.cli.app import run
from venus.rpc.admin import AdminClient
from venus.rpc.producer import Producer
from venus.rpc.subscriber import Subscriber
from venus.text.alarm_rules import RULES, classify_sentence
from venus.wire import broker_pb2

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

BACK_AFTER_S = 3.0
ROWS = 5
SURE_S = 60.0
Start = Callable[..., RunningBroker]


@pytest.fixture(autouse=True)
def fast_monitoring(monkeypatch: pytest.MonkeyPatch) -> None:
    times = SelectionTimes(back_after_s=BACK_AFTER_S, stale_s=1.5, failing_s=1.0, fit_first_s=0.5, moves_apart_s=1.0)
    monkeypatch.setattr("venus.broker.mirrors.upstream_selection.TIMES", times)
    monkeypatch.setattr("venus.broker.mirrors.network_membership.OTHERS_EVERY_S", 0.3)
    monkeypatch.setattr("venus.broker.mirrors.network_membership.LOOK_EVERY_S", 0.3)
    monkeypatch.setattr("venus.text.alarm_rules._LASTS_S", {rule.name: 0.0 for rule in RULES})


class RegionalSets:
    """Set hq, sets north and south with a connection each to it, and lyon below both; north is the nearest to lyon."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.start: Start = stack.enter_context(networks.starting(folder))
        self.hq = self.start("hq")
        fill(self.hq.address, 1, 3, rows=ROWS)
        self.lines = {name: Proxy(self.hq.address) for name in ("north", "south")}
        for line in self.lines.values():
            stack.callback(line.close)
        self.ports = {name: free_port() for name in self.lines}
        self.tandems = {name: self.tandem(name) for name in self.lines}
        for tandem in self.tandems.values():
            networks.has(tandem.address, 3 * ROWS)
        self.lyon = self.start("lyon", *(tandem.address for tandem in self.tandems.values()), level=2)
        networks.has(self.lyon.address, 3 * ROWS)

    def tandem(self, name: str) -> RunningBroker:
        return self.start(name, self.lines[name].address, tier="tandem", listen=f"127.0.0.1:{self.ports[name]}")

    @property
    def mirror(self) -> broker_pb2.MirrorStatus:
        return business_status(self.lyon.address).mirror

    def wait_for_upstream(self, name: str) -> broker_pb2.MirrorStatus:
        """Wait until lyon follows this set."""

        def find_mirror() -> broker_pb2.MirrorStatus | None:
            mirror = self.mirror
            at = self.tandems[name].address
            return mirror if (mirror.state, mirror.set, mirror.address) == ("following", name, at) else None

        mirror: broker_pb2.MirrorStatus = eventually(find_mirror, timeout_s=SURE_S)
        return mirror

    def away_alarms(self) -> list[str]:
        with AdminClient(self.lyon.address) as admin:
            return [text for text in admin.status().alarms if classify_sentence(text)[0].name == "mirror_away"]

    def away_metric(self) -> str:
        with urllib.request.urlopen(f"http://{self.lyon.http_address}/metrics", timeout=10) as answer:
            text: str = answer.read().decode()
        return next(line.split()[-1] for line in text.splitlines() if line.startswith("venus_mirror_away{"))


@pytest.fixture
def places(tmp_path: Path) -> Iterator[RegionalSets]:
    with ExitStack() as stack:
        yield RegionalSets(tmp_path, stack)


@contextmanager
def write_in_background(home: str) -> Iterator[Callable[[], int]]:
    """Commit at the home until the end of the block; yield a function that stops this and returns the queue's end."""
    stop, end = threading.Event(), [0]

    def work() -> None:
        with Producer(home, BUSINESS, "fill", window_bytes_max=8 << 20) as producer:
            producer.connect(0, 3)
            n = 3
            while not stop.wait(0.02):
                n += 1
                commit(producer, [half(n, rows=ROWS)])
                end[0] = n * ROWS

    thread = threading.Thread(target=work)
    thread.start()

    def stop_writing() -> int:
        stop.set()
        thread.join()
        return end[0]

    try:
        yield stop_writing
    finally:
        stop_writing()


def test_a_set_continues_at_the_next_set_and_back_to_the_nearest_and_its_consumers_do_not_notice(
    places: RegionalSets, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places.wait_for_upstream("north")
    began = business_status(places.lyon.address).log_start
    with (
        write_in_background(places.hq.address) as stop,
        Subscriber(places.lyon.address, BUSINESS, "main/eu", credit_bytes=8 << 20) as target,
    ):
        target.open(3 * ROWS, 0)
        taken = take(target, 4 * ROWS)
        eventually(lambda: places.away_metric() == "0.0")  # a pause of the machine makes it leave and come back

        places.tandems["north"].stop()
        mirror = places.wait_for_upstream("south")
        assert (mirror.nearest, mirror.fills) == ("north", 1)
        assert mirror.away_since_us
        assert mirror.not_back.startswith("it does not answer: ")
        (said,) = eventually(places.away_alarms)
        assert said.startswith("set north is the nearest above, and has not been used for ")
        assert f"{BUSINESS} comes from set south; it does not answer: " in said
        assert said.endswith("start its brokers, or repair the line")
        assert places.away_metric() == "1.0"
        taken += take(target, target.position + 4 * ROWS)
        file = tmp_path / "venus.toml"
        file.write_text(f'[broker]\naddress = "{places.lyon.address}"\n')
        assert run(["cluster", "topology", "-c", str(file)]) == 1
        drawn = " ".join(capsys.readouterr().out.split())
        assert "! not from north" in drawn
        assert "! set lyon: main comes from south, not from set north, the nearest, for " in drawn
        run(["status", "-c", str(file)])
        assert "; not from set north, the nearest, for " in " ".join(capsys.readouterr().out.split())

        places.tandem("north")
        mirror = places.wait_for_upstream("north")
        assert (mirror.nearest, mirror.not_back, mirror.fills) == ("", "", 1)
        eventually(lambda: not places.away_alarms())
        assert places.away_metric() == "0.0"
        end = stop()
        taken += take(target, end)

    offsets = [increment.base_offset for increment in taken]
    assert offsets == list(range(3 * ROWS, end, ROWS)), "each change once, none missing"
    eventually(lambda: places.mirror.lag == 0)
    assert business_status(places.lyon.address).log_start == began, "no full data again"
    with Subscriber(places.hq.address, BUSINESS, "look", credit_bytes=8 << 20, transient=True) as home:
        home.open(3 * ROWS, 0)
        assert [(i.base_offset, i.digest) for i in take(home, end)] == [(i.base_offset, i.digest) for i in taken]


def test_an_upstream_that_is_cut_off_itself_is_replaced_by_a_better_one(places: RegionalSets) -> None:
    places.wait_for_upstream("north")
    with write_in_background(places.hq.address) as stop:
        places.lines["north"].silence()
        places.lines["north"].cut()
        mirror = places.wait_for_upstream("south")
        eventually(lambda: places.mirror.not_back == "it is cut off itself above set north")
        (said,) = eventually(places.away_alarms)
        assert said.endswith("; repair the line above it")
        reached = business_status(places.lyon.address).next_offset
        eventually(lambda: business_status(places.lyon.address).next_offset > reached)
        assert networks.wait_for_state(places.tandems["north"].address, "cut off").cut_off == "north"

        places.lines["north"].resume()
        mirror = places.wait_for_upstream("north")
        assert mirror.fills == 1
        end = stop()
    networks.has(places.lyon.address, end)


def test_a_set_pulls_from_any_broker_of_an_upstream_and_calls_an_unknown_set_by_its_address(
    places: RegionalSets,
) -> None:
    north, south = (places.tandems[name].address for name in ("north", "south"))
    port = north.rpartition(":")[2]
    paris = places.start("paris", f"127.0.0.1:{free_port()}", south, north, f"localhost:{port}", level=2)
    networks.has(paris.address, 3 * ROWS)
    eventually(lambda: business_status(paris.address).mirror.set == "south")
    mirror = business_status(paris.address).mirror
    assert mirror.nearest.startswith("127.0.0.1:")
    assert "it does not answer" in mirror.not_back
    places.tandems["south"].stop()

    def follows_north() -> bool:
        found = business_status(paris.address).mirror
        return found.state == "following" and found.set == "north"

    eventually(follows_north, timeout_s=SURE_S)
