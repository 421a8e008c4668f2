"""Rare states of sets in tiers, counted as the others are."""

from __future__ import annotations

#: Each is reached at least 20 times in 1,000 histories.
RARE = (
    "a consumer died before it acknowledged",
    "a consumer lost its set",
    "a consumer started over: OffsetDiverged",
    "a consumer started over: OffsetTrimmed",
    "a consumer went back to a nearer set",
    "a set above that was tried was left",
    "a set left one that served",
    "a set went back to the nearest set above",
    "a set went on at another set above",
    "fault: labels",
    "fault: other network",
    "full data that was interrupted went on",
    "interrupted while it was filled",
    "power loss that took everything unsynced",
    "pulling ended: OffsetDiverged",
    "pulling ended: OffsetTrimmed",
    "the business was forgotten and made again",
    "the home was restored",
)
