"""A seal detects every flipped bit."""

from __future__ import annotations

import pytest

from venus.rpc.sealed import SEAL_BYTES, opener, seal
from venus.wire import broker_pb2

FRAME = broker_pb2.ProducerFrame(
    halves=[broker_pb2.Half(batch_no=7, digest=99, body=b"rows")],
    decisions=[broker_pb2.Decision(epoch=3, batch_no=6, digest=5, verdict=broker_pb2.COMMIT)],
)


def test_a_sealed_frame_is_an_ordinary_protobuf_message() -> None:
    data = seal(FRAME)
    opened = opener(broker_pb2.ProducerFrame)(data)
    assert opened.seal
    opened.ClearField("seal")
    assert opened == FRAME


@pytest.mark.parametrize("bit", range(8 * (FRAME.ByteSize() + SEAL_BYTES)))
def test_every_flipped_bit_is_detected(bit: int) -> None:
    data = bytearray(seal(FRAME))
    data[bit // 8] ^= 1 << bit % 8
    assert opener(broker_pb2.ProducerFrame)(bytes(data)) is None


@pytest.mark.parametrize("data", [b"", b"\x79", FRAME.SerializeToString()])
def test_a_frame_without_a_seal_is_refused(data: bytes) -> None:
    assert opener(broker_pb2.ProducerFrame)(data) is None
