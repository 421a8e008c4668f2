"""Rare states of sets in tiers that the simulation counts."""

from __future__ import annotations

#: Histories reach each of them at least 20 times in 1,000.
RARE = (
    "a consumer died before it acknowledged",
    "a consumer lost its set",
    "a consumer started over: OffsetDiverged",
    "a consumer started over: OffsetTrimmed",
    "a consumer found other rows",
    "a consumer went back to a nearer set",
    "a set above that was tried was left",
    "a set left one that served",
    "a set learned at its own offset that the set above was filled again",
    "a set went back to the nearest set above",
    "a set continued at another set above",
    "a set with predicates continued at another set with the same rows",
    "a set without another choice found other rows",
    "fault: refill there",
    "fault: change labels",
    "fault: lost disk",
    "fault: start other network",
    "fault: change predicates",
    "full data by other predicates",
    "full data that was interrupted continued",
    "full data waited for a later cut",
    "interrupted while it was filled",
    "power loss that took everything unsynced",
    "pulling ended: OffsetDiverged",
    "pulling ended: OffsetTrimmed",
    "pulling ended: OtherRows",
    "the business was forgotten and made again",
    "the home was restored",
)
