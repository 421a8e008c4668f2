"""The direction of `venus sync` while the application can switch between two databases (`venus cutover --fall-back`).

A switch seals the capture of one database and opens the other one. The loops of the old direction wait until that has
happened, and end with DirectionChanged; the command then starts those of the new one. Nothing of this costs anything
unless source and target are of a kind that can replicate in both directions.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from venus.cli.invocation import Invocation, may_fall_back
from venus.errors import DirectionChanged, Fenced, Held, VenusError

if TYPE_CHECKING:
    from venus.adapters.cutover.direction import FallBackState
    from venus.config import Settings

#: How often the records are read while a switch is under way.
LOOK_S = 0.5
#: How long to wait for the end of a switch that has fenced or refused this capture, and has not sealed it yet.
FENCED_S = 2.0
#: How often a loop that captures nothing itself looks whether the direction has changed.
WATCH_S = 5.0
#: How often to look for an unfinished switch, if one was ever begun, and if not.
SWITCH_S, NO_SWITCH_S = 5.0, 15.0


_TURNED = "the application has another database now, and changes flow the other way"


def flows_back(settings: Settings) -> bool:
    """Return whether changes flow from a target of the configuration to its source."""
    from venus.adapters.targets.switching import OLD

    return OLD in settings.targets


def require_direction(settings: Settings, *, is_back: bool) -> None:
    """Raise DirectionChanged in a loop that was started again after the other loops' direction has ended.

    A capture that died at a switch would otherwise begin to capture the new owner, and nothing would end the others.
    """
    if flows_back(settings) != is_back:
        raise DirectionChanged(_TURNED)


def resolve_names(run: Invocation, names: list[str] | None) -> list[str] | None:
    """Return the targets of the present direction for those of the configuration: a source's place has the old one."""
    from venus.adapters.targets.switching import OLD

    settings = run.directed_settings
    if not names or not may_fall_back(settings):
        return names
    base = run.settings
    if OLD in names and OLD not in settings.targets:
        raise DirectionChanged(f"{OLD} does not follow now")
    return [OLD if name in base.targets and name not in settings.targets else name for name in names]


class DirectionGuard:
    """Guard of one loop: it runs only in the direction for which it was started."""

    def __init__(self, run: Invocation) -> None:
        self._run = run
        self._source = run.directed_settings.source.url.get_secret_value()
        self._may_change = may_fall_back(run.directed_settings)

    def _read(self) -> FallBackState | None:
        from venus.adapters.cutover.direction import read_state

        state = read_state(self._run.settings) if self._may_change else None
        if state is not None and state.settings.source.url.get_secret_value() != self._source:
            raise DirectionChanged(_TURNED)
        return state

    def may_read_again(self) -> bool:
        """Return whether no database has been the application's that follows now: it could have newer rows."""
        state = self._read()
        return state is None or not any(record is not None and record.switch for record in state.records.values())

    def run_capture(self, body: Callable[[], None], stop: threading.Event) -> None:
        """Capture, and wait while a switch has sealed the source. Raises DirectionChanged.

        The command of the switch is the producer before, so a capture that starts again just then is refused.
        """
        while not stop.is_set():
            if self._is_sealed():
                stop.wait(LOOK_S)
                continue
            try:
                body()
            except (Fenced, Held) as error:
                state = self._read()
                if state is None or not (isinstance(error, Fenced) or state.is_switching):
                    raise
                stop.wait(FENCED_S)
            else:
                return

    def _is_sealed(self) -> bool:
        from venus.adapters.targets.switching import SideState

        state = self._read()
        return state is not None and state.state_of(state.pair.other(state.follower)) is SideState.STOPPED

    def run_apply(self, body: Callable[[], None], name: str, stop: threading.Event, *, watched: bool) -> None:
        """Apply to a target, once it follows. Raises DirectionChanged; `watched`: also in the middle of the loop.

        Beside a capture that is not necessary, because that one notices the change.
        """
        self._wait_for_follower(name, stop)
        changed = self._watch(stop) if watched and self._may_change else threading.Event()
        if not stop.is_set():
            body()
        if changed.is_set():
            stop.clear()
            raise DirectionChanged

    def _wait_for_follower(self, name: str, stop: threading.Event) -> None:
        """Wait until the database that was the application's follows."""
        from venus.adapters.targets.switching import SideState

        while not stop.is_set() and (state := self._read()) is not None:
            if name != state.follower or state.state_of(name) in (SideState.FOLLOWING, None):
                return
            stop.wait(LOOK_S)

    def _watch(self, stop: threading.Event) -> threading.Event:
        """Set `stop` when the direction changes, and the result as well."""
        changed = threading.Event()

        def watch() -> None:
            while not stop.wait(WATCH_S):
                try:
                    self._read()
                except DirectionChanged:
                    changed.set()
                    stop.set()
                except VenusError:
                    pass

        threading.Thread(target=watch, name="venus-direction", daemon=True).start()
        return changed


class SwitchMonitor:
    """Thread that looks for an unfinished switch, which one loop reports: page, metrics and alarms show it then.

    All loops of a process share it, because each look connects to both databases. While neither database accepts
    writes, capture may have ended, so that the follower's loop reports it; afterwards the new owner's capture does.
    """

    def __init__(self, run: Invocation, stop: threading.Event) -> None:
        self._run = run
        self._stop = stop
        #: The loop that reports, as in `describe`, and what it reports.
        self._found: tuple[str | None, str] = None, ""
        if may_fall_back(run.settings):
            threading.Thread(target=self._look, name="venus-switch", daemon=True).start()

    def describe(self, name: str | None) -> str:
        """Return what to do about an unfinished switch; empty = nothing, or another loop reports it.

        `name`: the target of the loop; None = capture.
        """
        reporter, advice = self._found
        return advice if name == reporter else ""

    def _look(self) -> None:
        from venus.adapters.cutover.direction import read_state
        from venus.adapters.targets.switching import describe_switch

        while True:
            state = None
            with suppress(VenusError):
                state = read_state(self._run.settings)
                owner, advice = describe_switch(state.records) if state is not None else ("", "")
                self._found = None if owner or state is None else state.follower, advice
            if self._stop.wait(SWITCH_S if state is not None else NO_SWITCH_S):
                return


def forget_owner(base: Settings) -> None:
    """Forget the consumer group of the database that is the source now, so that it does not hold back retention."""
    from venus.adapters.cutover.direction import read_state
    from venus.rpc.address import broker_address
    from venus.rpc.admin import AdminClient

    with suppress(VenusError):
        state = read_state(base)
        if state is not None and not state.is_switching:
            business, owner = base.business.name, state.pair.other(state.follower)
            with AdminClient(broker_address(base)) as admin:
                admin.forget(business, f"{business}/{owner}")
