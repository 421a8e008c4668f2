"""Broker sets for tests: homes and mirrors of one broker each, in threads of the test or in processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.support.brokers.feed import Feed, items, put
from tests.support.brokers.real_broker import RealBroker
from tests.support.brokers.servers import BUSINESS, business_status
from tests.support.ports import free_port
from tests.support.waiting import eventually
from venus.broker.service.process import RunningBroker, start_in_thread
from venus.config import BrokerSettings, ClusterSettings, Settings
from venus.errors import VenusError
from venus.wire import broker_pb2


def settings_of(
    data_dir: Path,
    upstream: Sequence[str],
    *,
    tier: str = "access",
    level: int = 1,
    labels: Sequence[str] = (),
    known_labels: dict[str, tuple[str, ...]] | None = None,
    set_name: str = "",
    where: dict[str, dict[str, str]] | None = None,
    site: str = "",
    near: dict[str, tuple[str, ...]] | None = None,
    **options: Any,
) -> Settings:
    """Return settings of a set of one broker, named after its directory; without an upstream it is the home."""
    place: dict[str, Any] = {"set": set_name or data_dir.name, "site": site, "near": near or {}}
    if upstream:
        place |= {"tier": tier, "level": level, "upstream": tuple(upstream), "labels": tuple(labels)}
        place |= {"where": where or {}}
    chosen: dict[str, Any] = {"listen": f"127.0.0.1:{free_port()}", "http": "127.0.0.1:0", "data_dir": data_dir}
    broker = BrokerSettings(**(chosen | options))
    return Settings(broker=broker, cluster=ClusterSettings(**place), labels=known_labels or {})


def start(data_dir: Path, *upstream: str, **options: Any) -> RunningBroker:
    """Start a set in a thread."""
    return start_in_thread(settings_of(data_dir, upstream, **options))


@contextmanager
def starting(directory: Path) -> Iterator[Callable[..., RunningBroker]]:
    """Yield a function that starts sets in threads, each in a directory of its name; they stop with the block."""
    with ExitStack() as running:

        def begin(name: str, *upstream: str, **options: Any) -> RunningBroker:
            broker = start(directory / name, *upstream, **options)
            running.callback(broker.stop)
            return broker

        yield begin


def two_regions(real: RealBroker) -> Feed:
    """Describe two tables at the home, and commit rows of EU and US."""
    found = Feed(real)
    found.describe(items(), items(2, "others"))
    found.cut(put(1, "EU", 10), put(2, "US", 20), put(1, "US", 1, table=2))
    return found


def mirror_of(address: str, business: str = BUSINESS) -> broker_pb2.MirrorStatus | None:
    """Return a mirror's status, or None if it does not exist yet."""
    try:
        return business_status(address, business).mirror
    except (StopIteration, VenusError):
        return None


def has(address: str, offset: int, business: str = BUSINESS, timeout_s: float = 60.0) -> None:
    """Wait until a mirror serves everything below an offset."""

    def has_arrived() -> bool:
        try:
            found = business_status(address, business)
        except (StopIteration, VenusError):
            return False
        return found.next_offset >= offset and found.materialised_offset >= offset and found.mirror.state == "following"

    eventually(has_arrived, timeout_s=timeout_s)


def wait_for_state(
    address: str, state: str, timeout_s: float = 60.0, business: str = BUSINESS
) -> broker_pb2.MirrorStatus:
    """Wait until a mirror is in a state."""

    def find_mirror() -> broker_pb2.MirrorStatus | None:
        mirror = mirror_of(address, business)
        return mirror if mirror is not None and mirror.state == state else None

    mirror: broker_pb2.MirrorStatus = eventually(find_mirror, timeout_s=timeout_s)
    return mirror
