"""How a business is kept and passed on by brokers, as commands show it: its replicas, and the set above. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaView:
    """A replica as the broker that was asked knows it."""

    broker: str
    address: str
    alive: bool
    in_sync: bool
    behind: int | None = None  # log entries; None = not known there


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationView:
    """How the business is replicated."""

    term: int
    leader: str
    leader_address: str
    policy: str
    min_in_sync: int
    log_end: int
    high: int
    mode: str
    reason: str
    refusal: str
    replicas: tuple[ReplicaView, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorView:
    """How a mirror stands to the broker set above."""

    path: tuple[str, ...]  # the sets from the home to this one
    state: str
    reason: str
    since_s: float
    address: str
    lag: int  # offsets
    lag_s: float
    hop_s: float
    bytes: int
    rows: int
    rows_expected: int
    only: tuple[str, ...] = ()
    #: Of which tables some rows only are here: "TABLE where PREDICATE".
    where: tuple[str, ...] = ()
    #: The set that it should come from, for how long it has not, and why; empty = it comes from there.
    nearest: str = ""
    away_s: float = 0.0
    not_back: str = ""
