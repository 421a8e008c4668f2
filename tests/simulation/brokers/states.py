"""Rare states of whole brokers that the simulation counts."""

from __future__ import annotations

#: Histories reach each of them at least 100 times in 10,000.
RARE = (
    "a bit of a shipped entry flipped",
    "a consumer died before it acknowledged",
    "a damaged half message was refused",
    "a producer died before its local transaction",
    "a producer died between its local transaction and the decision",
    "consumer started over: its offset was trimmed",
    "damage was found",
    "elected from those who left last",
    "fail-over of a whole cluster",
    "forgot to decide",
    "full data read",
    "handed over",
    "leader needed a new term",
    "left undecided: COMMIT",
    "left undecided: ROLLBACK",
    "local transaction failed",
    "log truncated",
    "power loss that took a part",
    "power loss that took everything unsynced",
    "producer ended: Fenced",
    "reinstalled",
    "reviewed: COMMIT",
    "reviewed: UNKNOWN",
    "the store failed",
    "two producers at a time",
)
