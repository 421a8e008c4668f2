"""What unclean elections and promotions may have lost of one business, as its log has it. Pure.

VENUS 3.1, `availability`; Minos: the home is gone and another core set becomes it. A leader that may lack acknowledged
data records that with the entry that begins its term; a promoted set records it with the entry that makes it the home.
The producer then reports what the source has committed. What the log lacks of that is the window. Its offsets are
passed over, so that none is assigned twice. Its rows are in the source, and a repair ships them again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import astuple, dataclass, fields, replace
from typing import Any

from venus.replication.records import LossWindow

#: Above this the oldest are dropped; the coordinator keeps those that are not closed.
LOSSES_MAX = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """The window of one unclean election or promotion: offsets from `first_offset` to below `end_offset`.

    -1 = not measured yet. The loss of an election stays here; the coordinator's record says whether it is closed. The
    loss of a promotion has a `home_term` and no term, and is closed here. `verified` are the consumer groups whose
    targets were compared and repaired since; `given_up` = an operator has given it up.
    """

    term: int
    first_offset: int
    end_offset: int = -1
    first_batch: int = 0
    last_batch: int = 0
    rows: int = 0
    home_term: int = 0
    verified: tuple[str, ...] = ()
    given_up: bool = False

    @property
    def is_measured(self) -> bool:
        """Whether a producer has reported what is missing."""
        return self.end_offset >= 0

    @property
    def window(self) -> LossWindow:
        """The window as the coordinator's record has it."""
        return LossWindow(
            term=self.term,
            first_offset=self.first_offset,
            end_offset=self.end_offset,
            first_batch=self.first_batch,
            last_batch=self.last_batch,
            rows=self.rows,
        )


def add_election_loss(losses: tuple[Loss, ...], term: int, offset: int, batch_no: int) -> tuple[Loss, ...]:
    """Add the loss of a leader whose log ends before `offset` and `batch_no`, and may lack what follows."""
    return (*losses, Loss(term=term, first_offset=offset, first_batch=batch_no))[-LOSSES_MAX:]


def add_promotion_loss(losses: tuple[Loss, ...], home_term: int, offset: int, batch_no: int) -> tuple[Loss, ...]:
    """Add the loss of a promoted mirror, which may lack what its home had from `offset` and `batch_no` on."""
    return (*losses, Loss(term=0, home_term=home_term, first_offset=offset, first_batch=batch_no))[-LOSSES_MAX:]


def promotion_losses(losses: Iterable[Loss]) -> list[Loss]:
    """Return the losses of promotions that are not given up."""
    return [loss for loss in losses if loss.home_term and not loss.given_up]


def close_verified(
    losses: tuple[Loss, ...], home_terms: Collection[int], *, group: str, groups: Collection[str]
) -> tuple[Loss, ...]:
    """Record that a group's target equals the source; drop a window once all of `groups` are recorded."""
    after = []
    for loss in losses:
        if loss.home_term in home_terms and loss.home_term and loss.is_measured:
            loss = replace(loss, verified=tuple(sorted({*loss.verified, group})))
            if not set(groups) - set(loss.verified):
                continue
        after.append(loss)
    return tuple(after)


def give_up(losses: tuple[Loss, ...], home_terms: Collection[int]) -> tuple[Loss, ...]:
    """Give up losses of promotions. An unmeasured one stays, to ask the producer, and is not shown."""
    return tuple(
        replace(loss, given_up=True) if loss.home_term in home_terms and loss.home_term else loss
        for loss in losses
        if not (loss.home_term and loss.home_term in home_terms and loss.is_measured)
    )


def measure(losses: tuple[Loss, ...], missing: Loss) -> tuple[Loss, ...]:
    """Set what is missing after the newest entry, in every window that is not measured."""

    def with_end(loss: Loss) -> Loss:
        return replace(
            missing, term=loss.term, home_term=loss.home_term, verified=loss.verified, given_up=loss.given_up
        )

    known = [loss if loss.is_measured else with_end(loss) for loss in losses]
    # a promotion has no other record: one that has lost nothing, or was given up, is finished
    done = [loss for loss in known if loss.home_term and (loss.given_up or loss.end_offset == loss.first_offset)]
    return tuple(loss for loss in known if loss not in done)


def has_unmeasured(losses: Iterable[Loss]) -> bool:
    """Whether any loss is not measured yet."""
    return any(not loss.is_measured for loss in losses)


def encode(losses: Iterable[Loss]) -> list[tuple[Any, ...]]:
    """Return the rows to store."""
    return [astuple(loss) for loss in losses]


def decode(stored: Iterable[Iterable[Any]]) -> tuple[Loss, ...]:
    """Read the rows of `encode`; an older broker stored fewer fields."""
    names = [field.name for field in fields(Loss)]
    found = (Loss(**dict(zip(names, values, strict=False))) for values in stored)
    return tuple(replace(loss, verified=tuple(loss.verified)) for loss in found)
