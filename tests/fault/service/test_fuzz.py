"""Messages that no VENUS would send: mutated bytes, and whole messages with extreme numbers.

The broker answers or ends the call, never crashes, uses no more memory, and its business continues.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import xxhash
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from tests.support.brokers.servers import BUSINESS, BrokerProcess, RssWatch, business_status, commit, settings, take
from tests.support.engines.batches import half
from tests.support.waiting import eventually
from venus.errors import VenusError
from venus.model import Verdict
from venus.rpc.channel import open_channel
from venus.rpc.errors import from_rpc_error
from venus.rpc.limits import is_repeated
from venus.rpc.producer import Producer
from venus.rpc.sealed import TAG
from venus.rpc.snapshots import SnapshotClient
from venus.rpc.subscriber import Subscriber
from venus.wire import broker_pb2, change_pb2

pytestmark = [pytest.mark.fault, pytest.mark.integration]

#: `make test-all` sends more, with other seeds.
FRAMES_PER_METHOD = 50
FRAMES_PER_SERVICE = 10_000
GROWTH_BYTES_MAX = 150 << 20
CALL_TIMEOUT_S = 5.0

METHODS = [method for service in broker_pb2.DESCRIPTOR.services_by_name.values() for method in service.methods]
EXTREMES = {
    FieldDescriptor.CPPTYPE_UINT64: (0, 1, 2**63 - 1, 2**63, 2**64 - 2, 2**64 - 1, 2**62, 2**48),
    FieldDescriptor.CPPTYPE_INT64: (0, -1, -(2**63), 2**63 - 1, 2**62),
    FieldDescriptor.CPPTYPE_UINT32: (0, 1, 2**31, 2**32 - 1),
    FieldDescriptor.CPPTYPE_INT32: (0, -1, -(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_ENUM: (0, 1, 2, 3, 99),
    FieldDescriptor.CPPTYPE_BOOL: (False, True),
}
NAMES = (BUSINESS, "", "junk", "x" * 100_000, "a\0b", "‮", "g", "../../etc", "venus/verify")


def seal(content: bytes) -> bytes:
    return content + TAG + xxhash.xxh3_64_digest(content)[::-1]


def extreme(chance: random.Random, kind: Any, depth: int = 0) -> Message:
    """Return a message of this type with extreme values, valid only for protobuf."""
    message: Any = GetMessageClass(kind)()
    for field in kind.fields:
        if field.name == "seal" or chance.random() < 0.3:
            continue
        if field.message_type is not None:
            if field.message_type.GetOptions().map_entry or depth > 3:
                continue
            parts = [extreme(chance, field.message_type, depth + 1) for _ in range(chance.choice((1, 1, 3)))]
            if is_repeated(field):
                getattr(message, field.name).extend(parts)
            else:
                getattr(message, field.name).CopyFrom(parts[0])
        elif is_repeated(field):
            getattr(message, field.name).extend(value(chance, field) for _ in range(chance.choice((1, 50))))
        else:
            setattr(message, field.name, value(chance, field))
    return message  # type: ignore[no-any-return]


def value(chance: random.Random, field: FieldDescriptor) -> Any:
    if field.type == FieldDescriptor.TYPE_BYTES:
        return body(chance) if field.name == "body" else chance.randbytes(chance.choice((0, 1, 4, 5000)))
    if field.type == FieldDescriptor.TYPE_STRING:
        return chance.choice(NAMES)
    return chance.choice(EXTREMES[field.cpp_type])


def body(chance: random.Random) -> bytes:
    """Return the body of a batch with extreme values, or mutated bytes."""
    if chance.random() < 0.5:
        return extreme(chance, change_pb2.BatchBody.DESCRIPTOR).SerializeToString()
    return mutate(chance, half(1, rows=3).body)


def mutate(chance: random.Random, data: bytes) -> bytes:
    found = bytearray(data)
    for _ in range(chance.randrange(1, 4)):
        at = chance.randrange(len(found) + 1)
        match chance.randrange(4):
            case 0:
                found[at:at] = chance.randbytes(chance.choice((1, 8, 300)))
            case 1:
                del found[at : at + chance.randrange(1, 9)]
            case 2 if at < len(found):
                found[at] ^= 1 << chance.randrange(8)
            case _:
                found[at : at + 9] = b"\xff" * 9
    return bytes(found)


def frames(chance: random.Random, method: Any) -> list[bytes]:
    """Return the frames of one call; half of the calls begin with a valid frame, so that the broker reads the rest."""
    found = []
    if method.client_streaming and chance.random() < 0.7:
        first: Message = broker_pb2.ProducerFrame(init=broker_pb2.Init(business="fuzzed", producer="fuzz"))
        if method.name == "Subscribe":
            wanted = broker_pb2.Open(business=BUSINESS, group="fuzz", credit_bytes=1 << 20, transient=True)
            first = broker_pb2.ConsumerFrame(open=wanted)
        found.append(seal(first.SerializeToString()))
    for _ in range(chance.choice((1, 1, 4)) if method.client_streaming else 1):
        message = extreme(chance, method.input_type)
        if method.name == "Produce" and chance.random() < 0.7:
            message.ClearField("init")
            for each in message.halves:  # type: ignore[attr-defined]
                each.batch_no = chance.choice((1, 2, each.batch_no))
                each.digest = xxhash.xxh3_64_intdigest(each.body)
                each.ClearField("squeezed")
        content = message.SerializeToString()
        if chance.random() < 0.3:
            content = mutate(chance, content)
        found.append(seal(content) if chance.random() < 0.9 else content)
    return found


def send(channel: grpc.Channel, method: Any, messages: list[bytes]) -> None:
    """Make the call; check that the answer is one of the protocol's."""
    call: Any = channel.stream_stream(f"/{method.containing_service.full_name}/{method.name}")
    try:
        list(call(iter(messages), timeout=CALL_TIMEOUT_S))
    except grpc.RpcError as error:
        failure = from_rpc_error(error)
        assert "the broker failed" not in str(failure), f"{method.name}: {failure}"
        assert "\n" not in str(failure)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(settings(tmp_path / "data", snapshot_lease_s=5, review_after_s=3600)) as running:
        yield running


@pytest.mark.timeout(300)
@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_a_broker_survives_random_calls(broker: BrokerProcess, method: Any) -> None:
    send_random_calls(broker, [method], FRAMES_PER_METHOD, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("service", sorted({method.containing_service.name for method in METHODS}))
def test_a_broker_survives_ten_thousand_random_calls(broker: BrokerProcess, service: str) -> None:
    methods = [method for method in METHODS if method.containing_service.name == service]
    send_random_calls(broker, methods, FRAMES_PER_SERVICE // len(methods), seed=2)


def send_random_calls(broker: BrokerProcess, methods: list[Any], calls: int, *, seed: int) -> None:
    """Send this many random calls of each method; check that the broker runs, has not grown, serves its business."""
    halves = [half(n, rows=20) for n in range(1, 31)]
    with Producer(broker.address, BUSINESS, "p", window_bytes_max=1 << 20) as sender:
        sender.connect(0, 0)
        commit(sender, halves[:10])
        with open_channel(broker.address) as channel, RssWatch(broker) as watch:
            before = watch.peak_bytes
            for method in methods:
                chance = random.Random(f"{method.name} {seed}")
                for _ in range(calls):
                    send(channel, method, frames(chance, method))
            assert watch.peak_bytes - before < GROWTH_BYTES_MAX
    assert broker.process.poll() is None
    check_service(broker, halves)


def check_service(broker: BrokerProcess, halves: list[broker_pb2.Half]) -> None:
    """Check that the business takes a batch, decides it, delivers it, loads and shows the next one."""
    with Producer(broker.address, BUSINESS, "q", window_bytes_max=1 << 20) as sender:
        ack = sender.connect(0, 10)
        if ack.undecided:  # an operator's decision, or a fuzzed producer's
            sender.decide(ack.undecided[0].batch_no, ack.undecided[0].digest, Verdict.ROLLBACK)
            sender.wait_until_decided(ack.undecided[0].batch_no)
        assert ack.last_batch == 10
        assert commit(sender, halves[10:]).next_offset == 600
    with Subscriber(broker.address, BUSINESS, "check", credit_bytes=8 << 20, transient=True) as reader:
        reader.open(0, 0)
        assert [increment.body for increment in take(reader, 600)] == [message.body for message in halves]
    with SnapshotClient(broker.address) as snapshots:
        found = eventually(lambda: try_to_open(snapshots))
        assert sum(len(c.rows) for s in found.splits for c in snapshots.read_split(found.snapshot_id, s)) == 600
    assert business_status(broker.address).next_offset == 600


def try_to_open(snapshots: SnapshotClient) -> broker_pb2.Snapshot | None:
    """Open a snapshot that has every row; a snapshot younger than 30 s may be shared."""
    try:
        found: broker_pb2.Snapshot | None = snapshots.open(BUSINESS)
    except VenusError:
        found = None  # the fuzzed calls hold too many leases
    if found is not None and found.offset == 600:
        return found
    if found is not None:
        snapshots.close(found.snapshot_id)
    time.sleep(1)
    return None
