"""Frames that arrive damaged, out of order or against the protocol, over a real socket."""

from __future__ import annotations

from queue import SimpleQueue
from typing import Any, Literal

import grpc
import pytest

from tests.support.brokers.servers import BUSINESS, business_status, fill
from tests.support.engines.batches import half
from tests.support.waiting import eventually
from venus.broker.service.process import RunningBroker
from venus.broker.service.producer_stream import MISMATCHES_MAX
from venus.errors import DigestMismatch, ProtocolError, VenusError
from venus.rpc.admin import AdminClient
from venus.rpc.channel import open_channel
from venus.rpc.errors import from_rpc_error
from venus.rpc.sealed import produce
from venus.wire import broker_pb2

pytestmark = pytest.mark.integration


class RawStream:
    """A producer's stream that does not resend, as the client would."""

    def __init__(self, address: str) -> None:
        self._channel = open_channel(address)
        self._frames: SimpleQueue[broker_pb2.ProducerFrame | None] = SimpleQueue()
        self.answers = produce(self._channel, iter(self._frames.get, None))

    def send(self, **fields: Any) -> None:
        self._frames.put(broker_pb2.ProducerFrame(**fields))

    def init(self) -> broker_pb2.InitAck:
        self.send(init=broker_pb2.Init(business=BUSINESS, producer="raw"))
        return next(self.answers).init_ack

    def read_until(self, field: Literal["resend", "throttle"]) -> broker_pb2.BrokerFrame:
        return next(frame for frame in self.answers if frame.HasField(field))

    def error(self) -> VenusError:
        with pytest.raises(grpc.RpcError) as caught:
            for _ in self.answers:
                pass
        return from_rpc_error(caught.value)

    def __enter__(self) -> RawStream:
        return self

    def __exit__(self, *_: object) -> None:
        self._frames.put(None)
        self._channel.close()


def damaged_half(batch_no: int) -> broker_pb2.Half:
    message = half(batch_no)
    message.digest ^= 1
    return message


def test_a_gap_is_requested_again(broker: RunningBroker) -> None:
    with RawStream(broker.address) as raw:
        raw.init()
        raw.send(halves=[half(1)])
        raw.send(halves=[half(3)])
        assert raw.read_until("resend").resend.batch_no == 2
        raw.send(halves=[half(3)])  # half messages that were on the way when the broker asked are no second gap
        raw.send(halves=[half(2), half(3)])
        assert next(frame for frame in raw.answers if frame.halves_through == 3).resend.batch_no == 0


def test_a_damaged_half_message_is_requested_again_and_later_ones_wait(broker: RunningBroker) -> None:
    with RawStream(broker.address) as raw:
        raw.init()
        raw.send(halves=[half(1), damaged_half(2), half(3)])
        assert raw.read_until("resend").resend.batch_no == 2
        raw.send(halves=[half(4)])
        raw.send(halves=[half(2), half(3), half(4)])
        assert any(frame.halves_through == 4 for frame in raw.answers)
        counters = business_status(broker.address).counters
        assert counters["digest_mismatches"] == 1
        assert counters["resends"] == 1


def test_three_damaged_half_messages_in_a_row_end_the_stream_and_raise_an_alarm(broker: RunningBroker) -> None:
    fill(broker.address, 1, 1)
    with RawStream(broker.address) as raw:
        raw.init()
        for _ in range(MISMATCHES_MAX):
            raw.send(halves=[damaged_half(2)])
        error = raw.error()
    assert isinstance(error, DigestMismatch)
    assert "network" in error.hint
    status = business_status(broker.address)
    assert status.counters["digest_mismatches"] == MISMATCHES_MAX
    assert any("damaged" in alarm for alarm in status.alarms)
    fill(broker.address, 2, 2)
    assert business_status(broker.address).alarms == []


def test_damage_from_a_producer_without_any_intact_message_is_an_alarm_of_the_broker(broker: RunningBroker) -> None:
    with RawStream(broker.address) as raw:
        raw.init()
        for _ in range(MISMATCHES_MAX):
            raw.send(halves=[damaged_half(1)])
        raw.error()
    with AdminClient(broker.address) as admin:
        eventually(lambda: not admin.status().businesses)
        (alarm,) = admin.status().alarms
        assert alarm.startswith(f"business {BUSINESS}: ")
        assert "damaged" in alarm
        fill(broker.address, 1, 1)
        assert not admin.status().alarms


@pytest.mark.parametrize("fields", [{}, {"init": broker_pb2.Init()}, {"halves": [half(1)]}])
def test_a_stream_must_start_with_init(broker: RunningBroker, fields: dict[str, Any]) -> None:
    with RawStream(broker.address) as raw:
        raw.send(**fields)
        assert isinstance(raw.error(), ProtocolError)


def test_a_second_init_is_refused(broker: RunningBroker) -> None:
    with RawStream(broker.address) as raw:
        raw.init()
        raw.send(init=broker_pb2.Init(business=BUSINESS))
        assert isinstance(raw.error(), ProtocolError)
