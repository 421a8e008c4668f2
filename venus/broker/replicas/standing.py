"""How a replica stands, as every thread of the broker may know it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Replaced as a whole after each step of a replica.

    `refusal` says why nothing can be written here, empty = it can; `leader` is an address, if one is known.
    """

    term: int = 0
    leads: bool = False
    hands_over: bool = False  # another broker leads in a moment: clients look for it, and do not take this one for away
    refusal: str = "the cluster has not been heard of yet"
    leader: str = ""
    high: int = 0
    leads_until: float = 0.0  # nobody else leads before this time of the lease's clock; 0 = it does not lead
    needed_from: int = 2**63  # the first entry that a follower of this leader does not have
    doubted: tuple[int, ...] = ()  # unclean terms of which nobody has said yet what they lost
