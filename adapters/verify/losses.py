"""Windows of unclean elections and promotions: which are open, and that a comparison with its repair closes them.

A row whose change was lost at the broker differs between source and full data, or between full data and target: where
the target had it already, it may even be that source and target are equal and the full data is not. So all three are
compared. What differs is shipped again; then all three are equal, and the broker is told so.
"""

from __future__ import annotations

from dataclasses import dataclass

from venus.adapters.verify.findings import Result
from venus.adapters.verify.options import Options
from venus.adapters.verify.repair import Repaired
from venus.config import Settings
from venus.rpc.address import broker_of
from venus.rpc.admin import Admin


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """Open windows: the terms of unclean elections, and the home terms of promotions."""

    terms: tuple[int, ...] = ()
    home_terms: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.terms or self.home_terms)

    def __str__(self) -> str:
        elections = [f"the unclean election of term {term}" for term in self.terms]
        return " and ".join([*elections, *(f"the promotion of home term {term}" for term in self.home_terms)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Closing:
    """What became of the windows that were open when a comparison began."""

    terms: tuple[int, ...]
    home_terms: tuple[int, ...] = ()
    closed: bool = False
    why: str = ""  # not closed


def open_windows(settings: Settings) -> Windows:
    """Return what may be lost, as the leader knows it. Raises Unavailable."""
    with Admin(broker_of(settings)) as admin:
        business = settings.business.name
        found = [entry for entry in admin.status(business).businesses if entry.business == business]
    return Windows(
        terms=tuple(window.term for entry in found for window in entry.replication.losses),
        home_terms=tuple(window.home_term for entry in found for window in entry.losses),
    )


def close(settings: Settings, options: Options, result: Result, repaired: Repaired, windows: Windows) -> Closing:
    """Tell the broker that source, full data and this target are equal again, if the comparison has shown it."""
    terms, home_terms = windows.terms, windows.home_terms
    why = _unproved(options, result, repaired)
    if why:
        return Closing(terms=terms, home_terms=home_terms, why=why)
    with Admin(broker_of(settings)) as admin:
        business = settings.business.name
        waiting = admin.close_losses(business, f"{business}/{options.target}", terms, home_terms)
    if waiting:
        why = f"still to be compared and repaired: {', '.join(waiting)}"
        return Closing(terms=terms, home_terms=home_terms, why=why)
    return Closing(terms=terms, home_terms=home_terms, closed=True)


def _unproved(options: Options, result: Result, repaired: Repaired) -> str:
    """Return why a comparison does not show that everything is equal; empty = it does."""
    if result.leg != "all":
        return f"--leg {result.leg} does not compare source, full data and target with each other: use --leg all"
    if options.tables or options.where or options.sample < 1.0:
        return "only a part was compared"
    if repaired.left:
        return f"{len(repaired.left):,} rows are still wrong"
    if result.undecided:
        return f"{len(result.undecided):,} rows or tables could not be decided"
    if result.cut_short:
        return "the comparison stopped at the limit of differences: run it again"
    return ""
