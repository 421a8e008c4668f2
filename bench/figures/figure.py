"""A figure of the papers: the paper's result, a peer's, VENUS's, and the goal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureResult:
    """One line of the table of results. `paper` and `peer` are empty without a number."""

    what: str
    ours: str
    goal: str
    met: bool
    paper: str = ""
    peer: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A figure: `measure(quick)` takes minutes, or less if `quick`, which only tries the script."""

    id: str
    title: str
    measure: Callable[[bool], Sequence[FigureResult]]


def at_most(what: str, found: float, limit: float, unit: str, *, paper: str = "", peer: str = "") -> FigureResult:
    """Return a line whose goal is a number that must not be exceeded."""
    return FigureResult(
        what=what,
        ours=_format_value(found, unit),
        goal=f"<= {_format_value(limit, unit)}",
        met=found <= limit,
        paper=paper,
        peer=peer,
    )


def at_least(what: str, found: float, limit: float, unit: str, *, paper: str = "", peer: str = "") -> FigureResult:
    """Return a line whose goal is a number that must be reached."""
    return FigureResult(
        what=what,
        ours=_format_value(found, unit),
        goal=f">= {_format_value(limit, unit)}",
        met=found >= limit,
        paper=paper,
        peer=peer,
    )


def times_peer(what: str, ours: float, peer: float | None, goal: float, *, said: str, paper: str = "") -> FigureResult:
    """Return a line whose goal is a multiple of a peer's rate. Without a peer, the goal is missed; `said` says why."""
    return FigureResult(
        what=what,
        ours=f"{ours:,.0f} rows/s" + (f", {ours / peer:.2f} x" if peer else ""),
        goal=f">= {goal:g} x",
        met=bool(peer) and ours >= goal * (peer or 0.0),
        peer=f"{said} {peer:,.0f} rows/s" if peer else said,
        paper=paper,
    )


def percentile(values: Sequence[float], percent: int) -> float:
    """Return the percentile by nearest rank: the smallest value that is not below `percent` % of all values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, -(-len(ordered) * percent // 100) - 1)]


def _format_value(value: float, unit: str) -> str:
    text = f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"
    return f"{text} {unit}".rstrip()
