"""The businesses of a broker by name. A business exists from its first half message until it is forgotten (removed).

A producer that has only opened a connection has a *new* business, which lives in memory while a client is connected to
it and leaves no trace. A name without data is therefore never stored. Numbers are never reused, because the remains of
a forgotten business (a lease, a cached body) must not be taken for data of another business.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable

from venus.broker.machine.business import Business
from venus.broker.store import keys
from venus.broker.store.rocks import Store, StoreBatch
from venus.errors import Overloaded, Refused, Unavailable

#: The maximum number of connected businesses that have shipped nothing yet.
NEW_MAX = 1000


class BusinessCatalogue:
    """The businesses of a broker, by name; thread-safe. `make` creates a business from its number and name."""

    def __init__(self, make: Callable[[int, str], Business]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._stored: dict[str, Business] = {}
        self._new: dict[str, Business] = {}
        self._leaving: dict[str, Business] = {}
        self._closed: set[str] = set()
        self._holders: Counter[Business] = Counter()
        self._number = 0  # the highest that was ever used

    # -- lookup ------------------------------------------------------------------------------------------------

    def list_stored(self) -> list[Business]:
        """Return the businesses that have data on disk."""
        with self._lock:
            return list(self._stored.values())

    def list_all(self) -> list[Business]:
        """Return the stored businesses, and the new ones that a client is connected to."""
        with self._lock:
            return [*self._stored.values(), *self._new.values()]

    def find_name(self, number: int) -> str:
        """Return the name of the business with this number, even while it is being removed; "" if there is none."""
        with self._lock:
            known = (*self._stored.values(), *self._new.values(), *self._leaving.values())
            return next((found.name for found in known if found.number == number), "")

    def is_stored(self, business: Business) -> bool:
        """Whether a business has data on disk and is not being forgotten."""
        with self._lock:
            return self._stored.get(business.name) is business

    def has_stored(self, name: str) -> bool:
        """Whether a business of this name has data on disk."""
        with self._lock:
            return name in self._stored

    def find(self, name: str) -> Business:
        """Return the business with this name, even a new one without data. Raises Unavailable if there is none."""
        with self._lock:
            return self._find(name)

    def find_stored(self, name: str) -> Business:
        """Return the business with this name. Raises Unavailable unless it has data on disk."""
        with self._lock:
            found = self._find(name)
            if name not in self._stored:
                raise Unavailable(f"business {name!r} has nothing yet", hint="its capture has just begun; try again")
            return found

    # -- connections -------------------------------------------------------------------------------------------

    def enter(self, name: str) -> Business:
        """Return the business that a producer connects to, a new one if needed; it is in use until `release`.

        Raises Unavailable while it is being forgotten, Overloaded if there are too many new businesses.
        """
        with self._lock:
            if name in self._leaving or name in self._closed:
                raise _forgetting_error(name)
            found = self._stored.get(name) or self._new.get(name)
            if found is None:
                if len(self._new) >= NEW_MAX:
                    raise Overloaded(f"{NEW_MAX} businesses are connected that have shipped nothing yet")
                self._number += 1
                found = self._new[name] = self._make(self._number, name)
            self._holders[found] += 1
            return found

    def hold(self, name: str) -> Business:
        """Return the business that a consumer connects to; it is in use until `release`. Raises Unavailable."""
        with self._lock:
            self._check_open(name)
            found = self._find(name)
            self._holders[found] += 1
            return found

    def release(self, business: Business) -> None:
        """End the use of a business by one client; a new business is dropped with its last client."""
        with self._lock:
            self._holders[business] -= 1
            if self._holders[business] > 0:
                return
            del self._holders[business]
            if self._new.get(business.name) is business:
                del self._new[business.name]

    def close(self, name: str) -> None:
        """Refuse connections to a name until `reopen`. Raises Refused while in use, Unavailable if already closed."""
        with self._lock:
            self._check_open(name)
            found = self._stored.get(name) or self._new.get(name)
            if found is not None and self._holders[found]:
                raise in_use_error(name, self._holders[found])
            self._closed.add(name)

    def reopen(self, name: str) -> None:
        """Accept connections to a name again after `close`."""
        with self._lock:
            self._closed.discard(name)

    def _check_open(self, name: str) -> None:
        """Raise Unavailable if the business of this name is closed."""
        if name in self._closed:
            raise _forgetting_error(name)

    # -- adding and removing -----------------------------------------------------------------------------------

    def load(self, store: Store, businesses: Iterable[Business]) -> None:
        """Set the stored businesses to those read from the store, and continue after the highest number."""
        found = {business.name: business for business in businesses}
        highest = int.from_bytes(store.get(keys.STATE, keys.NUMBER) or b"", "big")
        with self._lock:
            self._stored = found
            self._number = max([highest, *(business.number for business in found.values())])

    def adopt(self, name: str) -> Business:
        """Return this broker's copy of a business of the cluster; create it if it is missing, as its log follows."""
        with self._lock:
            found = self._stored.get(name) or self._new.pop(name, None)
            if found is None:
                self._number += 1
                found = self._make(self._number, name)
            self._stored[name] = found
            return found

    def reserve_number(self) -> int:
        """Return a new number for a business; no business has had it before."""
        with self._lock:
            self._number += 1
            return self._number

    def mark_stored(self, business: Business) -> None:
        """Record that a new business now has data on disk."""
        with self._lock:
            if self._new.pop(business.name, None) is not None:
                self._stored[business.name] = business

    def begin_forgetting(self, name: str) -> Business:
        """Begin to remove a business: it is no longer found. Raises Unavailable, or Refused while it is in use."""
        with self._lock:
            found = self._find(name)
            if self._holders[found]:
                raise in_use_error(name, self._holders[found])
            self._stored.pop(name, None)
            self._new.pop(name, None)
            self._leaving[name] = found
            return found

    def cancel_forgetting(self, business: Business) -> None:
        """Make a business available again, because its removal has failed."""
        with self._lock:
            self._leaving.pop(business.name, None)
            self._stored[business.name] = business

    def finish_forgetting(self, name: str) -> None:
        """Complete the removal of a business: its name may be used again."""
        with self._lock:
            self._leaving.pop(name, None)

    def save_number(self, batch: StoreBatch) -> None:
        """Put the highest business number ever used into a write batch."""
        with self._lock:
            batch.put(keys.STATE, keys.NUMBER, self._number.to_bytes(4, "big"))

    # -- internal ----------------------------------------------------------------------------------------------

    def _find(self, name: str) -> Business:
        """Return a stored or new business; the caller holds the lock. Raises Unavailable."""
        found = self._stored.get(name) or self._new.get(name)
        if found is None and name in self._leaving:
            raise Unavailable(f"business {name!r} is being removed or installed again", hint="try again, or elsewhere")
        if found is None:
            raise Unavailable(
                f"this broker does not know business {name!r}", hint="start its capture, or correct business.name"
            )
        return found


def _forgetting_error(name: str) -> Unavailable:
    """Return the error for a business that is being forgotten."""
    return Unavailable(f"business {name!r} is being forgotten", hint="try again in a moment")


def in_use_error(name: str, connected: int) -> Refused:
    """Return the error for a business that cannot be forgotten now."""
    return Refused(
        f"{connected} producers and consumers of {name!r} are connected", hint="stop its capture and its targets first"
    )
