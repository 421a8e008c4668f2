"""A column type with the values that are hardest on it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Torture:
    """`values` are pairs: an SQL expression, and the canonical text that it must become."""

    type: str
    values: tuple[tuple[str, str | bytes | None], ...]
