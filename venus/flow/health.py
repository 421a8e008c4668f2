"""Facts about a broker's health, each with its reason, kept for half an hour (Tensor IV-C, table III).

A fixed list of rules, no learning: the paper's eight facts, with thresholds and times that are configured. Whoever
has had one of them lately is sub-healthy: it still serves and may lead, but comes after the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A fact: a reading that has been at `limit` or above for `sustain_s`. `text` has {value} and {limit}."""

    fact: str
    limit: float
    text: str
    sustain_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """A rule that was met: first and last time of the newest episode."""

    fact: str
    reason: str
    since: float
    seen: float


@dataclass(slots=True)
class Health:
    """The facts of the last `keep_s` seconds. The order of the rules is the order of the danger."""

    rules: tuple[Rule, ...]
    keep_s: float
    _facts: dict[str, Fact] = field(default_factory=dict)
    _above_since: dict[str, float] = field(default_factory=dict)

    def look(self, readings: Mapping[str, float], now: float) -> list[str]:
        """Compare readings with the rules; return the reasons that are new, for the log."""
        new = []
        for rule in self.rules:
            value = readings.get(rule.fact)
            if value is None or rule.limit <= 0 or value < rule.limit:
                self._above_since.pop(rule.fact, None)
                continue
            began = self._above_since.setdefault(rule.fact, now)
            if now - began < rule.sustain_s:
                continue
            known = self._facts.get(rule.fact)
            reason = rule.text.format(value=value, limit=rule.limit)
            if known is None or known.seen < began:
                new.append(reason)
                known = None
            self._facts[rule.fact] = Fact(
                fact=rule.fact, reason=reason, since=known.since if known else began, seen=now
            )
        for fact in [f for f in self._facts.values() if now - f.seen > self.keep_s]:
            del self._facts[fact.fact]
        return new

    @property
    def facts(self) -> list[Fact]:
        """Return what was seen lately, the most dangerous first."""
        return [self._facts[rule.fact] for rule in self.rules if rule.fact in self._facts]
