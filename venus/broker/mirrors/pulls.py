"""The businesses that are pulled: a puller for each, and from which of the sets above it pulls (uppers.py)."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from venus.broker.core import Core
from venus.broker.mirrors.lag import Lag
from venus.broker.mirrors.progress import State, Told
from venus.broker.mirrors.puller import Puller
from venus.broker.mirrors.uppers import Away, Fitness, Kind, Times, Uppers
from venus.broker.mirrors.whom import Above, Here
from venus.errors import Diverged, OtherRows, ProtocolError, Refused, Unavailable
from venus.network.row_filters import RowFilter

logger = logging.getLogger(__name__)

#: What a set above must have: everything that was here so long ago. It may be on its way to both.
ON_THE_WAY_S = 2.0
ENDS_MAX = 64
#: What a set that is tried says once and for all; who has no other choice takes the full data, or says it.
_FOR_GOOD = (Refused, Diverged, ProtocolError)


class Pull:
    """One business; thread-safe. `above` returns how to pull from a set, `failing` hears that the one in use fails."""

    def __init__(
        self, core: Core, business: str, names: Sequence[str], above: Callable[[str], Above],
        failing: Callable[[], None], monotonic: Callable[[], float], times: Times,
    ) -> None:  # fmt: skip
        self.business = business
        self.lag = Lag()
        self.puller: Puller | None = None
        self._core, self._above, self._failing, self._monotonic = core, above, failing, monotonic
        self._lock = threading.Lock()
        self._uppers = Uppers(names, monotonic(), times)
        self._ends: deque[tuple[float, Here]] = deque(maxlen=ENDS_MAX)

    # -- what the puller asks (whom.py) ----------------------------------------------------------------------------

    def above(self) -> Above:
        """Return whom to pull from. Raises Refused, Unavailable."""
        try:
            return self._above(self._uppers.in_use)
        except (Refused, Unavailable) as error:
            self._failed(str(error), for_good=False)
            raise

    def still(self, above: Above) -> bool:
        """Whether that is still the one to pull from."""
        return self._uppers.in_use == above.set

    def pulls(self) -> None:
        """Note that what comes follows what is here."""
        with self._lock:
            self._uppers.pulls()

    def ended(self, above: Above, error: Exception) -> bool:
        """Note why a session has ended; return whether it was a try that nothing else follows from."""
        for_good = isinstance(error, _FOR_GOOD) and self._uppers.is_trial
        if isinstance(error, OtherRows) and not for_good and self._uppers.in_use == above.set:
            self._has_other_rows(str(error))
            return False
        if self._uppers.in_use != above.set or not (for_good or isinstance(error, Unavailable)):
            return False
        return self._failed(str(error), for_good=for_good)

    def _failed(self, why: str, *, for_good: bool) -> bool:
        with self._lock:
            before = self._uppers.in_use
            left = self._uppers.failed(self._monotonic(), why, for_good=for_good)
            now_at = self._uppers.in_use
        if left:
            logger.warning(
                "%s: set %s was tried, and set %s is pulled from again: %s", self.business, before, now_at, why
            )
        self._failing()
        return left

    def _has_other_rows(self, why: str) -> None:
        with self._lock:
            self._uppers.has_other_rows(self._monotonic(), why)
        self._failing()

    # -- what is seen ----------------------------------------------------------------------------------------------

    @property
    def in_use(self) -> str:
        """The set that is pulled from."""
        return self._uppers.in_use

    @property
    def is_trial(self) -> bool:
        """Whether the set that is pulled from has yet to show that it has the history that is here."""
        return self._uppers.is_trial

    @property
    def is_well(self) -> bool:
        """Whether it needs no other set than the one that is pulled from."""
        return self._uppers.is_well and self.told.state in (State.FOLLOWING, State.FILLING, State.ELSEWHERE)

    @property
    def told(self) -> Told:
        """What the puller says of itself."""
        assert self.puller is not None, "it is given one when it is made"
        return self.puller.progress.told

    def here(self) -> Here:
        """Return what is here, and what was a moment ago: a set above that has as much counts as one that does."""
        now, found = self._monotonic(), self._core.catalogue
        newest = Here()
        if found.has(self.business):
            business = found.known(self.business)
            if business.committed.mirror is not None and business.committed.mirror.end:
                newest = Here(end=business.committed.next_offset, epoch=business.epoch_at_end)
        with self._lock:
            if not self._ends or now - self._ends[-1][0] > ON_THE_WAY_S / 4:
                self._ends.append((now, newest))
            while len(self._ends) > 1 and now - self._ends[1][0] >= ON_THE_WAY_S:
                self._ends.popleft()
            before = min((self._ends[0][1], newest), key=lambda here: here.end)
            return replace(before, next=newest.end)

    def known(self, names: Sequence[str], renamed: Mapping[str, str]) -> None:
        """Take in which sets there are."""
        with self._lock:
            self._uppers.known(names, renamed, self._monotonic())

    def looked(self, name: str, found: Fitness) -> None:
        """Take note of a look at a set; move if it is time."""
        now = self._monotonic()
        with self._lock:
            self._uppers.looked(name, found, now)
            before = self._uppers.in_use
            if not self._uppers.step(now, busy=self.told.state is State.FILLING):
                return
            now_at = self._uppers.in_use
        logger.warning("%s: pulled from set %s from now on, no longer from set %s", self.business, now_at, before)

    def begin(self, found: Mapping[str, Fitness]) -> None:
        """Choose whom to pull from first, by the first look at every set, and pull."""
        with self._lock:
            for name, one in found.items():
                self._uppers.looked(name, one, self._monotonic())
            self._uppers.begin(self._monotonic())
        assert self.puller is not None, "it is given one when it is made"
        self.puller.start()

    # -- status ----------------------------------------------------------------------------------------------------

    def away(self) -> Away | None:
        """Say from where it is pulled, and why not from the nearest set; None = it is, or by another broker."""
        with self._lock:
            return None if self.told.state is State.ELSEWHERE else self._uppers.away()

    def best(self) -> Kind:
        """Return what the best set above is good for: who does not pull himself has no other word on it."""
        with self._lock:
            return self._uppers.best


class Pulls:
    """Thread-safe."""

    def __init__(
        self, core: Core, above: Callable[[str], Above], may_pull: Callable[[str], None],
        monotonic: Callable[[], float], puller: type[Puller], failing: Callable[[], None],
        times: Times,
    ) -> None:  # fmt: skip
        self._core, self._above, self._may_pull = core, above, may_pull
        self._monotonic, self._puller, self._failing = monotonic, puller, failing
        self._times = times
        self._pulls: dict[str, Pull] = {}

    def __contains__(self, business: str) -> bool:
        """Whether a business is pulled."""
        return business in self._pulls

    def get(self, business: str) -> Pull | None:
        """Return how a business is pulled, None if it is not."""
        return self._pulls.get(business)

    @property
    def all(self) -> list[Pull]:
        """Every business, by name."""
        return [pull for _, pull in sorted(self._pulls.items())]

    def begin(
        self, business: str, only: tuple[str, ...], where: tuple[RowFilter, ...], names: Sequence[str],
        judge: Callable[[str, Here], Fitness],
    ) -> None:  # fmt: skip
        """Pull a business from now on. `judge` says how fit a set is for it."""
        pull = Pull(
            self._core, business, names, self._above, self._failing, self._monotonic, self._times
        )  # fmt: skip
        pull.puller = self._puller(self._core, business, only, pull, self._may_pull, where)
        here = pull.here()
        self._pulls[business] = pull
        pull.begin({name: judge(name, here) for name in names})

    def stop(self) -> None:
        """End every thread."""
        for pull in self.all:
            if pull.puller is not None:
                pull.puller.stop()
