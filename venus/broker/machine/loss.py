"""What unclean elections may have lost of one business, as its log knows it (VENUS 3.1, `availability`). Pure.

A leader that is not known to have everything notes it with the entry that begins its term. The producer then says what
the source has committed. What the log lacks of that is the window: its offsets are passed over, so that none is given
twice, and its rows are in the source, from where a repair ships them again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple, dataclass, replace

#: The oldest ones are forgotten; the coordinator has those that are not closed.
LOSSES_MAX = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """The window of one unclean election: offsets from `first_offset` to below `end_offset`, -1 = not measured yet."""

    term: int
    first_offset: int
    end_offset: int = -1
    first_batch: int = 0
    last_batch: int = 0
    rows: int = 0

    @property
    def measured(self) -> bool:
        """Whether a producer has said what is missing."""
        return self.end_offset >= 0


def begun(losses: tuple[Loss, ...], term: int, offset: int, batch_no: int) -> tuple[Loss, ...]:
    """Note that a leader begins whose log ends before `offset` and `batch_no`, and may lack what follows."""
    return (*losses, Loss(term=term, first_offset=offset, first_batch=batch_no))[-LOSSES_MAX:]


def measured(
    losses: tuple[Loss, ...], *, first_offset: int, end_offset: int, first_batch: int, last_batch: int, rows: int
) -> tuple[Loss, ...]:
    """Note what is missing behind the newest entry, for every window that is not measured."""
    window = {
        "first_offset": first_offset, "end_offset": end_offset, "first_batch": first_batch, "last_batch": last_batch,
        "rows": rows,
    }  # fmt: skip
    return tuple(loss if loss.measured else replace(loss, **window) for loss in losses)


def in_doubt(losses: Iterable[Loss]) -> bool:
    """Whether nobody has said yet what is missing."""
    return any(not loss.measured for loss in losses)


def encode(losses: Iterable[Loss]) -> list[tuple[int, ...]]:
    """Return what is stored."""
    return [astuple(loss) for loss in losses]


def decode(stored: Iterable[Iterable[int]]) -> tuple[Loss, ...]:
    """Read what `encode` returned."""
    names = ("term", "first_offset", "end_offset", "first_batch", "last_batch", "rows")
    return tuple(Loss(**dict(zip(names, fields, strict=True))) for fields in stored)
