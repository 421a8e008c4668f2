"""Rules for the fields of messages: ranges of numbers, lengths of names and bytes, numbers of items.

The tables of rules are in limits.py and network_limits.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from venus.model import is_address, is_name


@dataclass(frozen=True, slots=True)
class Number:
    """Rule for a number from `low` to `high`; NaN is in no range."""

    low: float
    high: float

    def complaint(self, value: Any) -> str:
        """Return what is wrong with a value, or an empty string."""
        return "" if self.low <= value <= self.high else f"is {value}: it must be from {self.low} to {self.high}"


@dataclass(frozen=True, slots=True)
class Name:
    """Rule for printable characters without a space at either end."""

    chars_max: int
    may_be_empty: bool = False

    def complaint(self, value: Any) -> str:
        """Return what is wrong with a value, or an empty string."""
        if is_name(value, self.chars_max) or (self.may_be_empty and not value):
            return ""
        shown = repr(value[:40])
        return (
            f"is {shown} ({len(value)} characters): it must have 1 to {self.chars_max} printable ones, no space outside"
        )


@dataclass(frozen=True, slots=True)
class AddressRule:
    """Rule for HOST:PORT, with an IPv6 host in brackets."""

    def complaint(self, value: Any) -> str:
        """Return what is wrong with a value, or an empty string."""
        return "" if is_address(value) else f"is {value[:40]!r} ({len(value)} characters): it must be HOST:PORT"


@dataclass(frozen=True, slots=True)
class Bytes:
    """Rule for bytes of limited length."""

    most: int

    def complaint(self, value: Any) -> str:
        """Return what is wrong with a value, or an empty string."""
        return "" if len(value) <= self.most else f"has {len(value)} bytes: it must have {self.most} at most"


@dataclass(frozen=True, slots=True)
class ListRule:
    """Rule for a list: its length, and a rule for each item."""

    most: int
    rule: Number | Bytes | Name | AddressRule | None = None

    def complaint(self, value: Any) -> str:
        """Return what is wrong with a value, or an empty string."""
        if len(value) > self.most:
            return f"has {len(value)} items: it must have {self.most} at most"
        if self.rule is None or (isinstance(self.rule, Bytes) and max(map(len, value), default=0) <= self.rule.most):
            return ""  # thousands of keys and values a frame: no call for each
        return next((complaint for item in value if (complaint := self.rule.complaint(item))), "")


Rule = Number | Name | AddressRule | Bytes | ListRule
