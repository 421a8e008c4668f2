"""Content subscriptions at a broker: rows, live changes, reconnects, restarts, limits."""

from __future__ import annotations

import json
import random
import re
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import pytest
from playwright.sync_api import Browser

from tests.support.brokers.feed import Feed, deletion, items, put
from tests.support.brokers.real_broker import RealBroker
from tests.support.ports import free_port
from tests.support.waiting import eventually
from venus.broker.service import change_events
from venus.broker.service.http_guard import GuardedProtocol
from venus.client import ChangeBatch, ChangePosition, Changes, connect
from venus.codec.subscription import SubscriptionView
from venus.config.sections import LimitsSettings
from venus.errors import Refused, Unavailable
from venus.rpc.listener import ListenerClient
from venus.wire import broker_pb2

pytestmark = pytest.mark.integration
WAIT_S = 60.0


class Reader:
    """A client that keeps the current rows of its subscription."""

    def __init__(self, changes: Changes) -> None:
        self.changes = changes
        self.rows: dict[int, dict[str, Any]] = {}
        self.operations: list[str] = []

    def take(self, batch: ChangeBatch) -> None:
        for name, row in zip(batch.operations, batch.rows(), strict=True):
            self.operations.append(name)
            if name == "truncate":
                self.rows.clear()
            elif name == "delete":
                self.rows.pop(row["id"], None)
            else:
                self.rows[row["id"]] = row

    def read_until(self, offset: int) -> Reader:
        """Read up to a position."""
        while self.changes.position is None or self.changes.position.offset < offset:
            batch = self.changes.poll(WAIT_S)
            assert batch is not None, f"no change within {WAIT_S:g} s, at {self.changes.position}"
            self.take(batch)
        return self


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[RealBroker]:
    running = RealBroker(tmp_path / "data")
    yield running
    running.stop()


@pytest.fixture
def feed(broker: RealBroker) -> Feed:
    made = Feed(broker)
    made.describe(items())
    made.cut(put(1, "EU", 50), put(2, "EU", 150), put(3, "US", 200))
    return made


Subscribe = Callable[..., Reader]
#: A client of HTTP that reads is never away for this long, however busy the machine is.
UNREAD_S = 6.0


@pytest.fixture
def subscribe(broker: RealBroker) -> Iterator[Subscribe]:
    with connect(broker.address, client="test") as connection:

        def make(where: str = "", **options: Any) -> Reader:
            return Reader(connection.changes("shop.items", where=where, **options))

        yield make


EU = "label = 'EU' and amount >= 100"


def test_a_subscription_gets_its_rows_and_then_every_change_of_them(feed: Feed, subscribe: Subscribe) -> None:
    reader = subscribe(EU).read_until(3)
    assert reader.rows == {2: {"id": 2, "label": "EU", "amount": 150}}
    feed.cut(put(1, "EU", 100), put(2, "EU", 151), put(3, "US", 201))
    feed.cut(put(1, "US", 100), deletion(2), put(4, "EU", 99))
    reader.read_until(9)
    assert reader.operations == ["insert", "insert", "update", "delete", "delete"]
    assert reader.rows == {}


def test_a_subscription_resumes_at_its_position(feed: Feed, subscribe: Subscribe) -> None:
    first = subscribe(EU).read_until(3)
    first.changes.close()
    assert first.changes.position is not None
    feed.cut(put(2, "US", 150), put(5, "EU", 500))
    again = subscribe(EU, start=first.changes.position)
    again.rows = first.rows
    again.read_until(5)
    assert again.operations == ["delete", "update"]
    assert set(again.rows) == {5}


def test_a_subscription_follows_truncate_and_a_sweep(feed: Feed, subscribe: Subscribe) -> None:
    reader = subscribe("amount >= 100").read_until(3)
    feed.truncate(1, put(7, "EU", 700))
    reader.read_until(5)
    assert set(reader.rows) == {7}
    before = feed.sweep_begin(1)
    feed.cut(put(8, "EU", 800))
    feed.sweep_end(1, before)
    reader.read_until(feed.broker.next_offset)
    assert set(reader.rows) == {8}


def test_the_broker_stores_the_position_of_a_group(broker: RealBroker, feed: Feed, subscribe: Subscribe) -> None:
    first = subscribe(EU, group="mailer")
    batch = first.changes.poll(WAIT_S)
    while batch is not None and batch.position is None:
        batch = first.changes.poll(WAIT_S)
    assert batch is not None
    batch.acknowledge()
    with connect(broker.address) as connection:

        def acknowledged_offset() -> int:
            consumers = connection.status()["businesses"][0]["consumers"]
            return max((int(one.get("acknowledged", 0)) for one in consumers if one["group"] == "mailer"), default=0)

        eventually(lambda: acknowledged_offset() == 3)
    first.changes.close()
    feed.cut(put(2, "EU", 1000))
    assert subscribe(EU, group="mailer").read_until(4).operations == ["update"]


def test_a_new_group_that_never_acknowledged_gets_all_rows_again(feed: Feed, subscribe: Subscribe) -> None:
    first = subscribe(EU, group="mailer").read_until(3)
    first.changes.close()
    assert subscribe(EU, group="mailer").read_until(3).operations == first.operations == ["insert"]


def test_random_histories_with_reconnects_and_restarts(broker: RealBroker, feed: Feed, subscribe: Subscribe) -> None:
    rng = random.Random(7)
    texts = ["", EU, "amount between 100 and 300", "label in ('EU', 'US')", "label is null", "amount > 150 and id < 5"]
    tests: dict[str, Callable[[Any, Any], bool]] = {
        "": lambda _label, _amount: True,
        EU: lambda label, amount: label == "EU" and amount is not None and amount >= 100,
        texts[2]: lambda _label, amount: amount is not None and 100 <= amount <= 300,
        texts[3]: lambda label, _amount: label in ("EU", "US"),
        texts[4]: lambda label, _amount: label is None,
    }
    readers = {text: subscribe(text).read_until(3) for text in tests}
    for step in range(60):
        if step % 20 == 10:
            broker.stop()
            broker.start()
        elif step % 7 == 3:
            text = rng.choice(list(tests))
            old = readers[text]
            old.changes.close()
            position = old.changes.position
            feed.cut(*_changes(rng))
            readers[text] = subscribe(text, start=position)
            readers[text].rows = old.rows
        elif step % 15 == 14:
            feed.truncate(1, *_changes(rng)[:1])
        else:
            feed.cut(*_changes(rng), batch_rows=2)
        if step % 5 == 0:
            for text, is_inside in tests.items():
                readers[text].read_until(broker.next_offset)
                right = {int(str(k[0])): r for k, r in feed.model[1].items() if is_inside(r[0], _int(r[1]))}
                found = {k: (r["label"], r["amount"]) for k, r in readers[text].rows.items()}
                assert found == {k: (r[0], _int(r[1])) for k, r in right.items()}, text


def _int(value: Any) -> int | None:
    return None if value is None else int(value)


def _changes(rng: random.Random) -> list[Any]:
    return [
        deletion(key)
        if rng.random() < 0.2
        else put(key, rng.choice(["EU", "US", None]), rng.choice([None, 99, 100, 200, 400]))
        for key in rng.sample(range(1, 12), 4)
    ]


class Events:
    """A client that reads server-sent events."""

    def __init__(self, broker: RealBroker, *, last: str = "", **parameters: str) -> None:
        query = urlencode({"table": "shop.items"} | parameters)
        headers = {"Last-Event-ID": last} if last else {}
        self._answer = urlopen(
            Request(f"http://{broker.http_address}/v1/changes?{query}", headers=headers), timeout=WAIT_S
        )
        self.last = last

    def read_until(self, count: int) -> list[tuple[str, dict[str, Any]]]:
        """Read this many changes."""
        found: list[tuple[str, dict[str, Any]]] = []
        event: dict[str, str] = {}
        while len(found) < count:
            line = self._answer.readline().decode().rstrip("\n")
            if line:
                name, _, value = line.partition(": ")
                event[name] = value
                continue
            if "id" in event:
                self.last = event["id"]
            if event.get("event") in ("insert", "update", "delete", "truncate", "error"):
                found.append((event["event"], json.loads(event["data"])))
            event = {}
        return found

    def close(self) -> None:
        self._answer.close()


def test_server_sent_events_continue_after_the_last_one(broker: RealBroker, feed: Feed) -> None:
    events = Events(broker, where=EU)
    assert [(name, line["row"]["id"]) for name, line in events.read_until(1)] == [("insert", 2)]
    feed.cut(put(2, "US", 1), put(4, "EU", 400))
    assert [(name, line["row"]) for name, line in events.read_until(2)] == [
        ("delete", {"id": 2}),
        ("insert", {"id": 4, "label": "EU", "amount": 400}),
    ]
    events.close()
    assert events.last == f"{broker.next_offset}-{events.last.partition('-')[2]}"
    feed.cut(deletion(4))
    again = Events(broker, where=EU, last=events.last)
    assert [(name, line["row"]) for name, line in again.read_until(1)] == [("delete", {"id": 4})]
    again.close()


@pytest.mark.parametrize(
    ("parameters", "code", "says"),
    [
        ({"where": "amount + 1 = 2"}, 400, "character"),
        ({"table": "shop.itms"}, 400, "shop.items"),
        ({"from": "now!"}, 400, "position"),
        ({"from": "99999"}, 200, "truncate"),
        ({"filter": "x"}, 400, "where"),
    ],
)
def test_requests_that_cannot_be_served_get_the_reason(
    broker: RealBroker, feed: Feed, parameters: dict[str, str], code: int, says: str
) -> None:
    if code == 200:
        assert Events(broker, **parameters).read_until(4)[0][0] == says
        return
    with pytest.raises(HTTPError) as caught:
        Events(broker, **parameters)
    assert caught.value.code == code
    assert says in caught.value.read().decode()


def test_many_subscriptions_on_a_stream_are_exact_and_shown(broker: RealBroker, feed: Feed) -> None:
    feed.cut(*(put(n, f"t{n % 100}", n) for n in range(10, 400)))
    requests = [
        broker_pb2.SubscriptionRequest(
            number=n + 1,
            table="items",
            predicate=f"label = 't{n}'" if n < 100 else f"amount between {n} and {n + 5}",
            offset=broker.next_offset,
        )
        for n in range(600)
    ]
    with ListenerClient(broker.address, "main", client="many") as client, connect(broker.address) as connection:
        client.open()
        client.begin(requests)
        views = {one.number: SubscriptionView(one.number) for one in requests}
        found: dict[int, list[tuple[str, int]]] = {}

        def take_until(done: Callable[[], bool]) -> None:
            while not done():
                for frame in client.take(WAIT_S):
                    for number, view in views.items():
                        for one in view.take(frame):
                            changes = [(name, row["id"]) for name, row in zip(one.names, one.values(), strict=True)]
                            found.setdefault(number, []).extend(changes)

        take_until(lambda: all(view.is_live for view in views.values()))
        gauges = {one["name"]: one.get("value", 0) for one in connection.status()["traffic"]["gauges"]}
        assert gauges["subscriptions"] == 600
        feed.cut(put(50, "t7", 203))
        end = broker.next_offset
        take_until(lambda: all(view.position is not None and view.position.offset >= end for view in views.values()))
    left = {n + 1 for n in range(600) if (n == 50) or 100 <= n <= 50 <= n + 5}
    entered = {n + 1 for n in range(600) if n == 7 or (n >= 100 and n <= 203 <= n + 5)}
    assert {n: one for n, one in found.items() if one} == {n: [("delete", 50)] for n in left} | {
        n: [("insert", 50)] for n in entered
    }


def take_all(client: ListenerClient, view: SubscriptionView) -> None:
    """Take frames until the stream ends with an error."""
    while True:
        for frame in client.take(WAIT_S):
            list(view.take(frame))


@pytest.mark.parametrize("limit", ["subscriptions", "subscriptions_of_client"])
def test_the_number_of_subscriptions_is_limited(tmp_path: Path, limit: str) -> None:
    broker = RealBroker(tmp_path / "data", limits=LimitsSettings(**{limit: 2}))
    feed = Feed(broker)
    feed.describe(items())
    feed.cut(put(1, "EU", 1))
    with ListenerClient(broker.address, "main") as client:
        client.open()
        client.begin(broker_pb2.SubscriptionRequest(number=n, table="items", offset=n % 2) for n in (1, 2, 3))
        view = SubscriptionView(3)
        with pytest.raises(Refused, match=r"2 subscriptions|serves 2"):
            take_all(client, view)
    broker.stop()


def test_a_client_that_does_not_read_is_disconnected_with_its_position(tmp_path: Path) -> None:
    broker = RealBroker(tmp_path / "data", limits=LimitsSettings(listener_s=4.0, slow_consumer_s=0.5))
    feed = Feed(broker)
    feed.describe(items())
    feed.cut(put(0, "EU", 1))
    with connect(broker.address) as connection, ListenerClient(broker.address, "main", credit_bytes=2000) as lazy:
        lazy.open()
        lazy.begin([broker_pb2.SubscriptionRequest(number=1, table="items", offset=broker.next_offset)])
        other = Reader(connection.changes("items"))
        for n in range(1, 60):
            feed.cut(put(n, "x" * 500, n))
        assert len(other.read_until(broker.next_offset).rows) == 60
        eventually(lambda: lazy.failure is not None)
        with pytest.raises(Unavailable, match=r"position \d+-\d+") as caught:
            take_all(lazy, SubscriptionView(1))
        text = re.search(r"position (\d+-\d+)", str(caught.value))
        assert text is not None
        position = ChangePosition.parse(text[1])
        assert 0 < position.offset < broker.next_offset
        again = Reader(connection.changes("items", start=position)).read_until(broker.next_offset)
        assert set(again.rows) == set(range(position.offset, 60))
        assert count_cut_listeners(broker) == 1
    broker.stop()


def open_changes(broker: RealBroker, receive_bytes: int = 1 << 18) -> socket.socket | None:
    """Request changes and read only the first line of the answer; return None if no slot is free."""
    host, _, port = broker.http_address.rpartition(":")
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    made.settimeout(WAIT_S)
    made.connect((host, int(port)))
    made.sendall(b"GET /v1/changes?table=shop.items HTTP/1.1\r\nHost: x\r\n\r\n")
    line = made.recv(len(b"HTTP/1.1 200"))
    if line.endswith(b"200"):
        return made
    made.close()
    assert line.endswith(b"429")
    return None


def test_an_http_client_that_does_not_read_loses_its_slot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change_events, "REQUESTS_MAX", 1)
    broker = RealBroker(tmp_path / "data", limits=LimitsSettings(listener_s=UNREAD_S))
    feed = Feed(broker)
    feed.describe(items())
    for first in range(0, 100, 10):  # more than the kernel's buffers hold
        feed.cut(*(put(n, "x" * 90_000, n) for n in range(first, first + 10)))

    def count_unsent() -> int:
        found = [one.transport.get_write_buffer_size() for one in list(GuardedProtocol._all)]
        assert sum(found) < 4 << 20
        return sum(found)

    with eventually(lambda: open_changes(broker)) as slow, slow.makefile("rb") as lines:
        eventually(lambda: count_unsent() > 1 << 16)
        assert any(b'"id": 99' in line and count_unsent() >= 0 for line in lines)
        time.sleep(UNREAD_S + 0.5)  # longer than a client may stop reading
        feed.cut(put(1, "EU", 1))
        assert any(line == b"event: update\n" for line in lines)
        assert open_changes(broker) is None
    with eventually(lambda: open_changes(broker, 1 << 12)):
        eventually(lambda: count_unsent() > 1 << 16)
        with eventually(lambda: open_changes(broker)) as other:
            assert other.recv(1 << 10)
            assert count_unsent() >= 0
    assert count_cut_listeners(broker) == 1
    broker.stop()


def count_cut_listeners(broker: RealBroker) -> int:
    """Return the metric of disconnected listeners."""
    with urlopen(f"http://{broker.http_address}/metrics", timeout=WAIT_S) as answer:
        (line,) = re.findall(r"^venus_listeners_cut_total (\S+)$", answer.read().decode(), re.MULTILINE)
    return int(float(line))


def test_a_browser_shows_rows_and_reconnects_by_itself(tmp_path: Path, browser: Browser) -> None:
    broker = RealBroker(tmp_path / "data", http=f"127.0.0.1:{free_port()}")
    feed = Feed(broker)
    feed.describe(items())
    feed.cut(put(1, "EU", 500), put(2, "US", 500))
    page = browser.new_page()
    page.goto(f"http://{broker.http_address}/alarms")
    page.evaluate(
        """where => {
            window.rows = {};
            const events = new EventSource("/v1/changes?table=items&where=" + encodeURIComponent(where));
            const put = e => { const row = JSON.parse(e.data).row; window.rows[row.id] = row.amount; };
            events.addEventListener("insert", put);
            events.addEventListener("update", put);
            events.addEventListener("delete", e => delete window.rows[JSON.parse(e.data).row.id]);
            events.addEventListener("truncate", () => { window.rows = {}; });
        }""",
        EU,
    )
    eventually(lambda: page.evaluate("window.rows") == {"1": 500})
    feed.cut(deletion(1), put(2, "EU", 200))
    eventually(lambda: page.evaluate("window.rows") == {"2": 200})
    broker.stop()
    broker.start()
    feed.cut(put(2, "EU", 1), put(3, "EU", 300))
    eventually(lambda: page.evaluate("window.rows") == {"3": 300})
    page.close()
    broker.stop()


def test_a_position_has_one_text_form(subscribe: Subscribe) -> None:
    assert ChangePosition.parse("12-3") == ChangePosition(12, 3)
    assert str(ChangePosition(12, 3)) == "12-3"
