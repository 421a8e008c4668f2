"""Loss windows: what unclean elections may have lost, in the record of a business, until they are closed. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from venus.broker.machine.loss import Loss
from venus.replication.messages import Reinstall
from venus.replication.records import Leadership, LossWindow, Policy


def unrecorded_terms(known: Leadership) -> tuple[int, ...]:
    """Return the unclean terms whose loss is not recorded yet."""
    measured = {window.term for window in known.losses if window.is_measured}
    return tuple(term for term in known.unclean_terms if term not in measured)


def record_losses(known: Leadership, losses: Iterable[Loss]) -> Leadership | None:
    """Return the record with what the leader's log knows of open windows; None = it is up to date.

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
    after = _without(replace(known, losses=tuple(windows[term] for term in sorted(windows))), empty)
    return None if after == known else after


def record_verification(known: Leadership, group: str, terms: Collection[int], groups: Collection[str]) -> Leadership:
    """Return the record after a comparison of a group's target with source and full data, and its repair.

    A window is closed once each of `groups` was compared and repaired.
    """
    losses = tuple(
        replace(window, verified=tuple(sorted({*window.verified, group})))
        if window.term in terms and window.is_measured
        else window
        for window in known.losses
    )
    closed = {w.term for w in losses if w.term in terms and w.is_measured and not groups_to_verify(w, groups)}
    return _without(replace(known, losses=losses), closed)


def groups_to_verify(window: LossWindow, groups: Iterable[str]) -> list[str]:
    """Return the groups whose targets are still to be compared."""
    return sorted(set(groups) - set(window.verified))


def _without(known: Leadership, terms: Collection[int]) -> Leadership:
    return replace(
        known,
        losses=tuple(window for window in known.losses if window.term not in terms),
        unclean_terms=tuple(term for term in known.unclean_terms if term not in terms),
    )


def is_leader_complete(known: Leadership) -> bool:
    """Whether the leader must have what others have applied, unless an old data directory was restored by hand."""
    return known.policy is Policy.CONSISTENCY and not known.unclean_terms


def divergence_message(effect: Reinstall) -> str:
    """Return the message that this replica has stopped and keeps its data, with the ways out."""
    leader = effect.leader.broker
    return (
        f"broker {leader} leads without what was acknowledged: {effect.reason}; this replica has stopped and keeps "
        f"what it has. If an old data directory was put in place at {leader}, stop {leader}, remove that and start "
        "this broker again; if this one is the old one, stop it, remove its broker.data_dir and start it: it installs "
        "the leader's copy"
    )
