"""A disk: after a crash everything written remains, after a power loss everything synced."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

from venus.replication.position import TermCache

Entry = tuple[int, int]  # term and value; value 0 = the first entry of a term
Change = tuple[Any, ...]


def encode(entry: Entry) -> bytes:
    """Return the entry in its shipped form."""
    return b"%d:%d" % entry


def decode(data: bytes) -> Entry:
    """Return a shipped entry."""
    term, value = data.split(b":")
    return int(term), int(value)


@dataclass(slots=True)
class Content:
    """A log, and its state machine: the applied entries in order."""

    start: int = 1
    entries: list[Entry] = field(default_factory=list)
    terms: TermCache = field(default_factory=TermCache)
    applied: list[Entry] = field(default_factory=list)
    whole: bool = True

    @property
    def end(self) -> int:
        return self.start + len(self.entries)

    def copy(self) -> Content:
        return Content(self.start, self.entries[:], self.terms, self.applied[:], self.whole)

    def change(self, change: Change) -> None:
        """Apply a change to the log or the state machine."""
        match change:
            case ("append", entry):
                self.terms = self.terms.append(entry[0], self.end)
                self.entries.append(entry)
            case ("truncate", end):
                del self.entries[end - self.start :]
                self.terms = self.terms.truncate(end)
            case ("trim", start):
                del self.entries[: start - self.start]
                self.start = start
                self.terms = self.terms.trim(start)
            case ("apply", entries):
                self.applied.extend(entries)
            case ("wipe",):
                self.start, self.entries, self.terms, self.applied = 1, [], TermCache(), []
                self.whole = False
            case ("install", start, terms, applied):
                self.start, self.entries, self.terms, self.applied = start, [], terms, list(applied)
                self.whole = True


class Disk:
    """The disk of one broker: the content that the process sees, and the content that survives a power loss."""

    def __init__(self, store: str) -> None:
        self.store = store
        self.content = Content()
        self.durable_end = 1
        self.lag_s = 0.0  # additional duration of a sync in seconds
        self._saved = Content()
        self.unsynced: list[Change] = []

    def has(self, index: int, entry: Entry) -> bool:
        """Return whether an entry would survive a power loss."""
        content = self.content
        if index >= self.durable_end:
            return False
        if index < content.start:
            return content.applied[index - 1] == entry
        return content.entries[index - content.start] == entry

    def change(self, change: Change) -> None:
        """Apply a change, which is not synced yet."""
        self.content.change(change)
        self.unsynced.append(change)
        if change[0] in ("truncate", "wipe", "install"):
            self.durable_end = min(self.durable_end, self.content.end)

    def sync(self, changes: int) -> None:
        """Mark the first `changes` unsynced changes as synced."""
        saved = self._saved
        for change in self.unsynced[:changes]:
            saved.change(change)
        del self.unsynced[:changes]
        cuts = [change[1] for change in self.unsynced if change[0] == "truncate"]
        self.durable_end = min([saved.end, self.content.end, *cuts])

    def lose_power(self, random: Random) -> str:
        """Drop unsynced changes, except some that happened to reach the disk; describe the loss in words."""
        kept = random.choice((0, random.randint(0, len(self.unsynced))))
        lost = "nothing" if kept == len(self.unsynced) else "a part" if kept else "everything unsynced"
        for change in self.unsynced[:kept]:
            self._saved.change(change)
        self.unsynced.clear()
        self.content = self._saved.copy()
        self.durable_end = self.content.end
        return lost

    def crash(self) -> None:
        """End the process, not the machine: the operating system writes the remaining changes."""
        self.sync(len(self.unsynced))
