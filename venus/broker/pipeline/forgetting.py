"""Removing a business for good: everything under its number, in one write batch of the commit thread."""

from __future__ import annotations

from venus.broker.machine.catalogue import Catalogue
from venus.broker.machine.state import Business
from venus.broker.pipeline.group import Group
from venus.broker.store import keys
from venus.broker.store.rocks import Store
from venus.errors import Unavailable

_NUMBERED = (keys.RLOG, keys.QUEUE, keys.ROW)


def forget(group: Group, business: Business, catalogue: Catalogue) -> None:
    """Put the removal. Raises Unavailable if something is being written for the business at the same time."""
    if business in group.touched():
        raise Unavailable(f"business {business.name!r} is being written", hint="try again")
    start, stop = _range(business)
    for family in _NUMBERED:
        group.batch.delete_range(family, start, stop)
    for prefix in keys.state_prefixes(business.number):
        group.batch.delete_range(keys.STATE, prefix, keys.after_prefix(prefix))
    catalogue.remember_number(group.batch)
    group.durable = True


def give_back(store: Store, business: Business) -> None:
    """Give back the space of what was removed."""
    start, stop = _range(business)
    for family in _NUMBERED:
        store.compact(family, start, stop)


def _range(business: Business) -> tuple[bytes, bytes]:
    prefix = keys.number_prefix(business.number)
    return prefix, keys.after_prefix(prefix)
