"""A producer's frame is split before it is written to the disk, into smaller pieces while small senders wait."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from venus.broker.pipeline.producer_commands import ShippedHalf
from venus.broker.service.traffic import Traffic
from venus.config import BrokerSettings
from venus.flow.precedence import BESIDE_BYTES, Precedence

NOW = 1000.0
HALF_BYTES = 100 << 10


def sizes(precedence: Precedence) -> list[int]:
    """Return how many of sixteen half messages are in each piece."""
    core = SimpleNamespace(precedence=precedence)
    traffic = Traffic(cast("Any", core), BrokerSettings(), monotonic=lambda: NOW)
    frame = [ShippedHalf(batch_no=n, digest=n, body=bytes(HALF_BYTES)) for n in range(1, 17)]
    pieces = list(traffic.split_halves(frame))
    assert [half.batch_no for piece in pieces for half in piece] == list(range(1, 17))
    return [len(piece) for piece in pieces]


def test_a_frame_is_one_piece_without_small_senders() -> None:
    assert sizes(Precedence(0.05)) == [16]


def test_pieces_are_small_while_small_commits_wait() -> None:
    """A piece is never divided again: otherwise a row would wait for a whole frame of 1 MiB on its way to the disk."""
    precedence = Precedence(0.05)
    precedence.on_arrival("trickle", 100, NOW)
    assert sizes(precedence) == [BESIDE_BYTES // HALF_BYTES] * 8
