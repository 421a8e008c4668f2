"""Compressed bodies on one connection: whatever frames are lost or repeated, exactly the sent bodies are delivered."""

from __future__ import annotations

import random
import tracemalloc
from collections import deque

import pytest
import zstandard

from venus.errors import DigestMismatch, ProtocolError
from venus.rpc import compression
from venus.rpc.compression import BODY_BYTES_MAX, BodyCompressor, BodyDecompressor, check_frame
from venus.wire import broker_pb2

HISTORIES = 300


@pytest.fixture(autouse=True)
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compression, "LARGE_BYTES", 1000)
    monkeypatch.setattr(compression, "_WINDOW_LOG", 17)


def bodies(chance: random.Random, count: int) -> list[bytes]:
    """Return bodies: small ones, and ones that share a large object."""
    objects = [chance.randbytes(20_000) for _ in range(2)]
    return [
        b"%d" % n + (chance.choice(objects) if chance.random() < 0.6 else chance.randbytes(chance.choice((10, 3000))))
        for n in range(count)
    ]


def carry(chance: random.Random, wanted: list[bytes], *, new_stream_after_loss: bool = True) -> list[bytes]:
    """Send bodies over a line that loses frames; the receiver asks again, and ignores what comes before the answer."""
    sender, receiver = BodyCompressor(), BodyDecompressor()
    way: deque[broker_pb2.ProducerFrame] = deque()
    got: list[bytes] = []
    following = generation = 0
    expected: int | None = None
    while len(got) < len(wanted):
        if following < len(wanted) and (not way or chance.random() < 0.6):
            upto = min(len(wanted), following + chance.randrange(1, 4))
            halves = [broker_pb2.Half(batch_no=n, body=wanted[n]) for n in range(following, upto)]
            way.append(sender.halves(broker_pb2.ProducerFrame(halves=halves), generation))
            following = upto
            continue
        frame = way.popleft()
        if chance.random() < 0.15 and expected is None:
            expected = following = len(got)  # the sender learns of it while other frames are on their way
            generation += new_stream_after_loss
            continue
        for half in frame.halves:
            if half.batch_no == expected:
                expected = None
            if expected is None:
                assert half.batch_no == len(got)
                got.append(receiver.body(half))
    return got


@pytest.mark.parametrize("seed", range(HISTORIES))
def test_all_bodies_arrive_whatever_frames_are_lost(seed: int) -> None:
    chance = random.Random(seed)
    wanted = bodies(chance, 20)

    assert carry(chance, wanted) == wanted


def test_without_a_new_stream_after_a_loss_the_receiver_reports_it() -> None:
    failures = 0
    for seed in range(HISTORIES):
        chance = random.Random(seed)
        wanted = bodies(chance, 20)
        try:
            assert carry(chance, wanted, new_stream_after_loss=False) == wanted
        except DigestMismatch:
            failures += 1
    assert failures > HISTORIES // 2


def test_a_recently_sent_object_takes_next_to_nothing() -> None:
    sender, large = BodyCompressor(), random.Random(1).randbytes(50_000)
    sizes = []
    for n in range(3):
        frame = broker_pb2.DeliveryFrame(increments=[broker_pb2.Increment(base_offset=n, body=b"%d" % n + large)])
        sizes.append(sender.increments(frame).ByteSize())

    assert sizes[0] > 50_000
    assert max(sizes[1:]) < 500


def test_small_bodies_are_sent_uncompressed() -> None:
    frame = broker_pb2.ProducerFrame(halves=[broker_pb2.Half(batch_no=1, body=b"x" * 900)])

    assert BodyCompressor().halves(frame, 0).halves[0].body == b"x" * 900


def test_a_damaged_block_is_refused() -> None:
    large = random.Random(1).randbytes(50_000)
    (half,) = BodyCompressor().halves(broker_pb2.ProducerFrame(halves=[broker_pb2.Half(body=large)]), 0).halves
    half.squeezed.block = b"nothing of the kind"

    with pytest.raises(DigestMismatch, match="block 0 of a connection arrived damaged"):
        BodyDecompressor().body(half)


# -- blocks that are larger than stated ------------------------------------------------------------------------------


def make_bomb(nbytes: int, *, said: int, number: int = 0, one_frame: bool = False) -> broker_pb2.Half:
    """Return a half message whose small block becomes `nbytes`."""
    stream = zstandard.ZstdCompressor(level=3).compressobj(size=nbytes if one_frame else -1)
    piece = bytes(1 << 20)
    block = b"".join(stream.compress(piece) for _ in range(nbytes >> 20))
    block += stream.flush(zstandard.COMPRESSOBJ_FLUSH_FINISH if one_frame else zstandard.COMPRESSOBJ_FLUSH_BLOCK)
    return broker_pb2.Half(batch_no=1, squeezed=broker_pb2.Squeezed(block=block, number=number, size=said))


@pytest.mark.parametrize("one_frame", [False, True], ids=["without a content size", "with one"])
def test_a_block_takes_no_more_memory_than_stated(one_frame: bool) -> None:
    message = make_bomb(1 << 30, said=3 << 20, one_frame=one_frame)
    assert len(message.squeezed.block) < 1 << 17
    tracemalloc.start()
    with pytest.raises(DigestMismatch, match="more than the 3145728 bytes that it says"):
        BodyDecompressor().body(message)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 << 20


@pytest.mark.parametrize("said", [0, BODY_BYTES_MAX + 1, 2**32 - 1])
def test_a_block_with_an_impossible_size_is_refused(said: int) -> None:
    with pytest.raises(ProtocolError, match=f"says {said} bytes"):
        BodyDecompressor().body(make_bomb(1 << 20, said=said))


def test_a_block_that_is_smaller_than_stated_is_damaged() -> None:
    with pytest.raises(DigestMismatch, match="1048576 bytes of the 1048577"):
        BodyDecompressor().body(make_bomb(1 << 20, said=(1 << 20) + 1))


def test_a_frame_of_many_bombs_is_refused_before_the_first_is_decompressed() -> None:
    frame = broker_pb2.ProducerFrame(halves=[make_bomb(9 << 20, said=9 << 20)] * 2)
    with pytest.raises(ProtocolError, match="a frame has squeezed bodies"):
        check_frame(frame.halves)
    check_frame(frame.halves[:1])


def test_a_connection_continues_after_a_bomb() -> None:
    receiver = BodyDecompressor()
    with pytest.raises(DigestMismatch):
        receiver.body(make_bomb(64 << 20, said=1 << 20))
    with pytest.raises(DigestMismatch):  # the stream is broken: only a new one continues
        receiver.body(make_bomb(1 << 20, said=1 << 20, number=1))
    assert receiver.body(make_bomb(1 << 20, said=1 << 20)) == bytes(1 << 20)


@pytest.mark.parametrize("kind", ["noise", "hexadecimal", "zeros"])
@pytest.mark.parametrize("around", range(1, 5))
def test_bodies_are_decompressed_completely_at_every_boundary(around: int, kind: str) -> None:
    """The decompressor writes one MiB at a time; the rest after the last one must be written too."""
    chance = random.Random(around)
    sender, receiver = BodyCompressor(), BodyDecompressor()
    for extra in (-131_073, -131_072, -1, 0, 1, 17, 274, 1000, 65_536, 131_071, 131_072, 131_073):
        size = (around << 20) + extra
        body = {
            "noise": lambda size=size: chance.randbytes(size),
            "hexadecimal": lambda size=size: chance.randbytes(size // 2 + 1).hex().encode()[:size],
            "zeros": lambda size=size: bytes(size),
        }[kind]()
        frame = sender.halves(broker_pb2.ProducerFrame(halves=[broker_pb2.Half(batch_no=1, body=body)]), 0)
        assert receiver.body(frame.halves[0]) == body
