"""Why a mirror is not served while its full data is on its way."""

from __future__ import annotations

from venus.broker.machine.business import Business
from venus.errors import Unavailable


def unfilled(business: Business) -> Unavailable:
    """Return the error for whoever wants to read it."""
    mirror = business.committed.mirror
    rows = business.counters["filled_rows"]
    of = f" of about {mirror.rows}" if mirror is not None and mirror.rows else ""
    source = f" from set {mirror.set}" if mirror is not None else ""
    return Unavailable(
        f"{business.name}: this mirror is taking the full data{source}, {rows} rows{of} so far",
        hint="it is served by itself once it is whole; `venus status` shows how far it is",
    )


def check(business: Business) -> None:
    """Raise Unavailable while the full data of a mirror is on its way."""
    if not business.is_filled:
        raise unfilled(business)
