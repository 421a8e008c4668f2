"""How patient replicas are; seconds. The defaults are for a local network."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """Safety depends on none of these."""

    lag_s: float = 10.0  # a follower that was not caught up for so long leaves the in-sync set
    idle_s: float = 0.5  # a fetch is answered after so long, even if there is nothing new
    ballot_s: float = 0.5  # how long an election waits for ballots
    election_every_s: float = 1.0  # before the next try
    turn_s: float = 0.3  # how much later each further broker begins an election
    hand_over_s: float = 3.0  # a hand-over that takes longer is given up
    silent_s: float = 4.0  # a write that waits for a follower which says nothing is refused
    silence_s: float = 5.0  # a follower that has made no progress for so long counts as unreachable
    fetch_s: float = 3.0  # a fetch without an answer is repeated
