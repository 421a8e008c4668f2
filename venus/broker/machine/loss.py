"""What unclean elections and promotions may have lost of one business, and when a loss is closed. Pure.

The option `availability` allows unclean elections (VENUS 3.1); a promotion makes another core set the home (Minos). A
leader that may lack acknowledged data records this in the entry that begins its term; a promoted set records it in the
entry that makes it the home. The producer then reports what the source has committed; the part that the log lacks is
the loss window. Its offsets are skipped, so that none is assigned twice. Its rows are in the source, and a repair ships
them again.

`Loss` is a loss window in the log of the business. `LossWindow` is the loss window of an election in the coordinator's
record, until it is closed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import astuple, dataclass, fields, replace
from typing import Any

from venus.replication.messages import Reinstall
from venus.replication.records import Leadership, LossWindow, Policy

#: Above this the oldest are dropped; the coordinator keeps the windows that are not closed.
LOSSES_MAX = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """The loss window of one unclean election or promotion: offsets from `first_offset` to below `end_offset`.

    `end_offset` -1 means not measured yet. The loss of an election stays in the log; the coordinator's record says
    whether it is closed. The loss of a promotion has a `home_term` and no term, and is closed in the log. `verified`
    are the consumer groups whose targets were compared and repaired after the loss; `given_up` means that an operator
    has given up the loss.
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
        """Whether the producer has reported which changes are missing."""
        return self.end_offset >= 0

    @property
    def window(self) -> LossWindow:
        """The loss in the form of the coordinator's record."""
        return LossWindow(
            term=self.term,
            first_offset=self.first_offset,
            end_offset=self.end_offset,
            first_batch=self.first_batch,
            last_batch=self.last_batch,
            rows=self.rows,
        )


def add_election_loss(losses: tuple[Loss, ...], term: int, offset: int, batch_no: int) -> tuple[Loss, ...]:
    """Add an unmeasured loss of an unclean election: the log may lack everything from `offset` and `batch_no` on."""
    return (*losses, Loss(term=term, first_offset=offset, first_batch=batch_no))[-LOSSES_MAX:]


def add_promotion_loss(losses: tuple[Loss, ...], home_term: int, offset: int, batch_no: int) -> tuple[Loss, ...]:
    """Add an unmeasured loss of a promotion: the log may lack everything from `offset` and `batch_no` on."""
    return (*losses, Loss(term=0, home_term=home_term, first_offset=offset, first_batch=batch_no))[-LOSSES_MAX:]


def promotion_losses(losses: Iterable[Loss]) -> list[Loss]:
    """Return the losses of promotions that no operator has given up."""
    return [loss for loss in losses if loss.home_term and not loss.given_up]


def close_verified(
    losses: tuple[Loss, ...], home_terms: Collection[int], *, group: str, groups: Collection[str]
) -> tuple[Loss, ...]:
    """Mark losses of promotions as repaired for a consumer group; drop those repaired for all of `groups`."""
    after = []
    for loss in losses:
        if loss.home_term in home_terms and loss.home_term and loss.is_measured:
            loss = replace(loss, verified=tuple(sorted({*loss.verified, group})))
            if not set(groups) - set(loss.verified):
                continue
        after.append(loss)
    return tuple(after)


def give_up(losses: tuple[Loss, ...], home_terms: Collection[int]) -> tuple[Loss, ...]:
    """Drop losses of promotions for an operator; hide unmeasured ones instead: the producer must still be asked."""
    return tuple(
        replace(loss, given_up=True) if loss.home_term in home_terms and loss.home_term else loss
        for loss in losses
        if not (loss.home_term and loss.home_term in home_terms and loss.is_measured)
    )


def measure(losses: tuple[Loss, ...], missing: Loss) -> tuple[Loss, ...]:
    """Give every unmeasured loss the range `missing` that the producer reported; drop finished promotion losses."""

    def measured_loss(loss: Loss) -> Loss:
        return replace(
            missing, term=loss.term, home_term=loss.home_term, verified=loss.verified, given_up=loss.given_up
        )

    known = [loss if loss.is_measured else measured_loss(loss) for loss in losses]
    # no other record lists losses of promotions, so a window that is empty or given up is finished
    done = [loss for loss in known if loss.home_term and (loss.given_up or loss.end_offset == loss.first_offset)]
    return tuple(loss for loss in known if loss not in done)


def has_unmeasured(losses: Iterable[Loss]) -> bool:
    """Whether the producer has not reported yet what is missing for one of the losses."""
    return any(not loss.is_measured for loss in losses)


def encode(losses: Iterable[Loss]) -> list[tuple[Any, ...]]:
    """Encode losses for the stored record of a business."""
    return [astuple(loss) for loss in losses]


def decode(stored: Iterable[Iterable[Any]]) -> tuple[Loss, ...]:
    """Decode losses from the stored record of a business; an older broker stored fewer fields."""
    names = [field.name for field in fields(Loss)]
    found = (Loss(**dict(zip(names, values, strict=False))) for values in stored)
    return tuple(replace(loss, verified=tuple(loss.verified)) for loss in found)


def unrecorded_terms(known: Leadership) -> tuple[int, ...]:
    """Return the terms of unclean elections for which the coordinator's record has no measured loss."""
    measured = {window.term for window in known.losses if window.is_measured}
    return tuple(term for term in known.unclean_terms if term not in measured)


def record_losses(known: Leadership, losses: Iterable[Loss]) -> Leadership | None:
    """Return the coordinator's record updated with the losses in the leader's log; None = it is up to date.

    An empty window is closed: the source has nothing that the log lacks.
    """
    windows = {window.term: window for window in known.losses}
    empty: set[int] = set()
    for loss in losses:
        before = windows.get(loss.term)
        if loss.term not in known.unclean_terms or (before is not None and before.is_measured):
            continue
        windows[loss.term] = loss.window
        if loss.is_measured and loss.end_offset == loss.first_offset:
            empty.add(loss.term)
    after = replace(known, losses=tuple(windows[term] for term in sorted(windows))).without_losses(empty)
    return None if after == known else after


def record_verification(known: Leadership, group: str, terms: Collection[int], groups: Collection[str]) -> Leadership:
    """Return the coordinator's record after the target of a consumer group was compared and repaired.

    A window is closed once the targets of all `groups` were compared and repaired.
    """
    losses = tuple(
        replace(window, verified=tuple(sorted({*window.verified, group})))
        if window.term in terms and window.is_measured
        else window
        for window in known.losses
    )
    closed = {w.term for w in losses if w.term in terms and w.is_measured and not groups_to_verify(w, groups)}
    return replace(known, losses=losses).without_losses(closed)


def groups_to_verify(window: LossWindow, groups: Iterable[str]) -> list[str]:
    """Return the consumer groups whose targets are still to be compared for a loss window."""
    return sorted(set(groups) - set(window.verified))


def is_leader_complete(known: Leadership) -> bool:
    """Whether the leader must have all acknowledged entries, unless an old data directory was restored by hand."""
    return known.policy is Policy.CONSISTENCY and not known.unclean_terms


def divergence_message(effect: Reinstall) -> str:
    """Return the message that this replica has stopped because its leader lacks entries, with the ways out."""
    leader = effect.leader.broker
    return (
        f"broker {leader} leads without acknowledged changes: {effect.reason}; this replica has stopped and keeps "
        f"what it has. If an old data directory was put in place at {leader}, stop {leader}, remove that and start "
        "this broker again; if this one is the old one, stop it, remove its broker.data_dir and start it: it installs "
        "the leader's copy"
    )
