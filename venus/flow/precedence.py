"""Precedence of small commits: while they take too long, large work pauses for a measured share of the time.

Large work handles more than `SMALL_BYTES` in a slice: building the full data, its chunks for readers, groups of large
senders. It holds the CPU, the disk and the interpreter's lock, so a small commit waits for the slice under way. After
each slice large work therefore pauses for `share` times the duration of the slice.

The share follows the latency of small commits: each one above the goal raises it by a quarter, each one below lowers
it by a 99th of that, so it is stable where one in a hundred is above. Large work does not pause without small
senders, and always gets a part of the time.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

#: A sender that has recently sent no more bytes of half messages than this is small, and does not wait for large ones.
SMALL_BYTES = 64 << 10
#: The counted bytes of a sender are halved after each period of this length.
HALF_LIFE_S = 1.0
#: Small commits and large work count as active for this long after the last one.
SEEN_S = 2.0
#: Limits of the share: with the largest, large work gets a fifth of the time; below the least nothing pauses.
SHARE_LEAST, SHARE_MOST = 0.1, 4.0
#: Small commits should take at most this many times as long as 99 of 100 take without large work. Large work yields at
#: most half of its time for that. Below this part of the goal nothing pauses.
TIMES_QUIET, SHARE_FOR_QUIET, GOAL_PART = 2.0, 1.0, 0.2
#: No slice is larger than this while small commits are active, because they wait for the slice under way.
BESIDE_BYTES = 256 << 10
#: The longest pause, however long the slice took.
REST_S_MAX = 0.25
#: Businesses whose traffic is kept.
SENDERS_MAX = 10_000

_GROWS = 1.25
_SHRINKS = _GROWS ** (-1 / 99)


@dataclass(slots=True)
class _Sender:
    """The recent bytes of a sender, and when they were counted."""

    nbytes: float
    at: float


@dataclass(slots=True)
class Precedence:
    """State that decides how long large work pauses for small commits. Times are seconds of one monotonic clock.

    One thread reports arrivals and answers; each kind of large work calls from one thread of its own.
    A goal of 0 disables all pauses.
    """

    goal_s: float
    share: float = SHARE_LEAST
    #: What 99 of 100 small commits take without large work; 0 means not known yet.
    quiet_s: float = 0.0
    #: How long each kind of large work has paused.
    rested_s: dict[str, float] = field(default_factory=dict)
    _senders: dict[Hashable, _Sender] = field(default_factory=dict)
    _small: dict[Hashable, float] = field(default_factory=dict)  # when each was small, the newest last
    _small_at: float = float("-inf")  # the newest of them, for the other threads
    _large_at: float = float("-inf")

    # -- small commits -------------------------------------------------------------------------------------------

    def on_arrival(self, business: Hashable, nbytes: int, now: float) -> None:
        """Count half messages that have arrived."""
        sender = self._senders.pop(business, None) or _Sender(0.0, now)
        sender.nbytes = _decay(sender, now) + nbytes
        sender.at = now
        if len(self._senders) >= SENDERS_MAX:
            del self._senders[next(iter(self._senders))]
        self._senders[business] = sender
        if sender.nbytes <= SMALL_BYTES:
            self._note_sender(business, now)
        elif self._small.pop(business, None) is not None:  # large by now, so large work does not pause for it
            self._small_at = next(reversed(self._small.values()), float("-inf"))

    def _note_sender(self, business: Hashable, now: float) -> None:
        """Record that a business counts as a small sender now."""
        self._small.pop(business, None)
        if len(self._small) >= SENDERS_MAX:
            del self._small[next(iter(self._small))]
        self._small[business] = self._small_at = now

    def is_small(self, business: Hashable, now: float) -> bool:
        """Return whether a business has recently sent little."""
        sender = self._senders.get(business)
        return sender is None or _decay(sender, now) <= SMALL_BYTES

    def on_answer(self, business: Hashable, took_s: float, now: float, *, asked_at: float) -> None:
        """Adapt to the latency of a small commit; large commits are ignored.

        A commit is small or large as of `asked_at`, when it requested its slot: a large commit may wait so long that
        its bytes no longer count.
        """
        if not self.is_small(business, asked_at):
            return
        self._note_sender(business, now)
        if now - self._large_at >= SEEN_S:
            self.quiet_s = self.quiet_s * (_GROWS if took_s > self.quiet_s else _SHRINKS) if self.quiet_s else took_s
        elif took_s > self.goal_s:
            self.share = min(SHARE_MOST, self.share * _GROWS)
        elif self.quiet_s and took_s > max(TIMES_QUIET * self.quiet_s, GOAL_PART * self.goal_s):
            self.share = max(self.share * _SHRINKS, min(SHARE_FOR_QUIET, self.share * _GROWS))
        else:
            self.share = max(SHARE_LEAST, self.share * _SHRINKS)

    # -- large work ----------------------------------------------------------------------------------------------

    def should_rest(self, now: float) -> bool:
        """Return whether large work has to pause for small commits."""
        return self.share > SHARE_LEAST and self._has_small(now)

    def _has_small(self, now: float) -> bool:
        """Return whether small commits are active."""
        return self.goal_s > 0.0 and now - self._small_at < SEEN_S

    def rest_s(self, kind: str, took_s: float, now: float) -> float:
        """Return how long a kind of large work pauses after a slice that took `took_s`; count the pause."""
        self._large_at = now
        if took_s <= 0.0 or not self.should_rest(now):
            return 0.0
        rest_s = min(REST_S_MAX, self.share * took_s)
        self.rested_s[kind] = self.rested_s.get(kind, 0.0) + rest_s
        return rest_s

    def slice_bytes(self, most: int, least: int, now: float) -> int:
        """Return the bytes of one slice of large work: the fewer, the more it has to pause."""
        if not self._has_small(now):
            return most
        part = most / (1.0 + self.share) if self.should_rest(now) else most
        return max(min(least, most), min(BESIDE_BYTES, round(part)))


def _decay(sender: _Sender, now: float) -> float:
    """Return the bytes of a sender that still count."""
    return float(sender.nbytes * 0.5 ** (max(0.0, now - sender.at) / HALF_LIFE_S))
