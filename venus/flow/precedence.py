"""Small commits take precedence: while there are any and they take too long, large work rests by a measured share.

Large work is what handles more than `SMALL_BYTES` in a turn: the full data in the making, its chunks for readers, the
groups of whoever floods. It holds the processor, the disk and the interpreter's lock, and whoever commits a row waits
for whatever turn is under way. Behind each turn it therefore rests for `share` times what the turn took.

The share follows what small commits take: each one above the goal lets it grow by a quarter, each one below shrinks it
by a 99th of that, so that it stands still where one in a hundred is above. Nothing rests while nobody small is there,
and large work always gets a part of the time.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

#: Bytes of half messages.
SMALL_BYTES = 64 << 10


#: Who has sent so much or less is small; older bytes count half after each of these seconds.
HALF_LIFE_S = 1.0
#: Small commits count as being there for so long behind the last one, and large work behind its last turn.
SEEN_S = 2.0
#: Rests, in turns: with the most, large work has a fifth of the time; at the least nothing rests.
SHARE_LEAST, SHARE_MOST = 0.1, 4.0
#: Small commits should take at most this many times what 99 of 100 take without large work, which gives up at most half
#: of its time for that. Below this part of the goal nothing rests.
TIMES_QUIET, SHARE_FOR_QUIET, GOAL_PART = 2.0, 1.0, 0.2
#: While small commits are there no turn is larger: they wait for the one that is under way.
BESIDE_BYTES = 256 << 10
#: No rest is longer, whatever the turn took.
REST_S_MAX = 0.25
#: Businesses that are remembered.
SENDERS_MAX = 10_000

_GROWS = 1.25
_SHRINKS = _GROWS ** (-1 / 99)


@dataclass(slots=True)
class _Sender:
    nbytes: float
    at: float


@dataclass(slots=True)
class Precedence:
    """Who is small, how long they wait, how much large work rests. Times are seconds of one monotonic clock.

    One thread tells what arrives and what is answered; each kind of large work asks from one thread of its own.
    A goal of 0 = nothing ever rests.
    """

    goal_s: float
    share: float = SHARE_LEAST
    #: What 99 of 100 small commits take while no large work is done; 0 = not known yet.
    quiet_s: float = 0.0
    #: For how long each kind of large work has rested.
    rested_s: dict[str, float] = field(default_factory=dict)
    _senders: dict[Hashable, _Sender] = field(default_factory=dict)
    _small: dict[Hashable, float] = field(default_factory=dict)  # when each was small, the newest last
    _small_at: float = float("-inf")  # the newest of them, for the other threads
    _large_at: float = float("-inf")

    # -- small commits -------------------------------------------------------------------------------------------

    def arrived(self, business: Hashable, nbytes: int, now: float) -> None:
        """Count half messages that have arrived."""
        sender = self._senders.pop(business, None) or _Sender(0.0, now)
        sender.nbytes = _left(sender, now) + nbytes
        sender.at = now
        if len(self._senders) >= SENDERS_MAX:
            del self._senders[next(iter(self._senders))]
        self._senders[business] = sender
        if sender.nbytes <= SMALL_BYTES:
            self._is_there(business, now)
        elif self._small.pop(business, None) is not None:  # nobody rests for what is large itself by now
            self._small_at = next(reversed(self._small.values()), float("-inf"))

    def _is_there(self, business: Hashable, now: float) -> None:
        self._small.pop(business, None)
        if len(self._small) >= SENDERS_MAX:
            del self._small[next(iter(self._small))]
        self._small[business] = self._small_at = now

    def is_small(self, business: Hashable, now: float) -> bool:
        """Whether a business has sent little lately."""
        sender = self._senders.get(business)
        return sender is None or _left(sender, now) <= SMALL_BYTES

    def answered(self, business: Hashable, took_s: float, now: float, *, asked_at: float) -> None:
        """Learn how long a commit took, unless it was a large one, or large work has nothing to do with it.

        Whether it was small is judged as of when it asked for its turn: large ones wait for longer than it takes to
        forget how large they were.
        """
        if not self.is_small(business, asked_at):
            return
        self._is_there(business, now)
        if now - self._large_at >= SEEN_S:
            self.quiet_s = self.quiet_s * (_GROWS if took_s > self.quiet_s else _SHRINKS) if self.quiet_s else took_s
        elif took_s > self.goal_s:
            self.share = min(SHARE_MOST, self.share * _GROWS)
        elif self.quiet_s and took_s > max(TIMES_QUIET * self.quiet_s, GOAL_PART * self.goal_s):
            self.share = max(self.share * _SHRINKS, min(SHARE_FOR_QUIET, self.share * _GROWS))
        else:
            self.share = max(SHARE_LEAST, self.share * _SHRINKS)

    # -- large work ----------------------------------------------------------------------------------------------

    def holds(self, now: float) -> bool:
        """Whether small commits are there, and large work is to rest for them."""
        return self.share > SHARE_LEAST and self._small_are_there(now)

    def _small_are_there(self, now: float) -> bool:
        return self.goal_s > 0.0 and now - self._small_at < SEEN_S

    def rest_s(self, kind: str, took_s: float, now: float) -> float:
        """Return how long a kind of large work rests behind a turn that took so long; it is counted as rested."""
        self._large_at = now
        if took_s <= 0.0 or not self.holds(now):
            return 0.0
        rest_s = min(REST_S_MAX, self.share * took_s)
        self.rested_s[kind] = self.rested_s.get(kind, 0.0) + rest_s
        return rest_s

    def turn_bytes(self, most: int, least: int, now: float) -> int:
        """Return how much goes into one turn of large work: the less, the more it has to rest."""
        if not self._small_are_there(now):
            return most
        part = most / (1.0 + self.share) if self.holds(now) else most
        return max(min(least, most), min(BESIDE_BYTES, round(part)))


def _left(sender: _Sender, now: float) -> float:
    return float(sender.nbytes * 0.5 ** (max(0.0, now - sender.at) / HALF_LIFE_S))
