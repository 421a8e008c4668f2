"""A frame of a producer is cut before it goes to the disk, into smaller pieces while small senders wait."""

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
    """Return how many of sixteen half messages go together."""
    core = SimpleNamespace(precedence=precedence)
    traffic = Traffic(cast("Any", core), BrokerSettings(), monotonic=lambda: NOW)
    frame = [ShippedHalf(batch_no=n, digest=n, body=bytes(HALF_BYTES)) for n in range(1, 17)]
    pieces = list(traffic.split_halves(frame))
    assert [half.batch_no for piece in pieces for half in piece] == list(range(1, 17))
    return [len(piece) for piece in pieces]


def test_a_frame_is_one_piece_without_small_senders() -> None:
    assert sizes(Precedence(0.05)) == [16]


def test_a_piece_is_small_while_small_commits_are_there() -> None:
    """A piece is never divided again: a row waited for the whole frame that was on its way to the disk, 1 MiB."""
    precedence = Precedence(0.05)
    precedence.on_arrival("trickle", 100, NOW)
    assert sizes(precedence) == [BESIDE_BYTES // HALF_BYTES] * 8
