"""The direction of `venus sync` while the application can switch between two databases (`venus cutover --fall-back`).

A switch ends (seals) the capture of one database and starts that of the other one. The loops of the old direction wait
for the switch, and end with DirectionChanged; the command then starts the loops of the new direction. The direction is
checked only if source and target are of kinds that can replicate in both directions.
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

#: How often the records are read during a switch.
LOOK_S = 0.5
#: How long to wait for the end of a switch that has fenced or refused this capture, but has not sealed it yet.
FENCED_S = 2.0
#: How often a loop without capture checks whether the direction has changed.
WATCH_S = 5.0
#: How often to check for an unfinished switch: if a switch was ever begun, and if not.
SWITCH_S, NO_SWITCH_S = 5.0, 15.0


_TURNED = "the application has another database now, and changes flow the other way"


def flows_back(settings: Settings) -> bool:
    """Return whether changes flow from a configured target to the configured source."""
    from venus.adapters.targets.switching import OLD

    return OLD in settings.targets


def require_direction(settings: Settings, *, is_back: bool) -> None:
    """Raise DirectionChanged if changes no longer flow in the direction for which this loop was started.

    Without this check, a capture that restarts after a switch would capture the new source, and the other loops would
    not end.
    """
    if flows_back(settings) != is_back:
        raise DirectionChanged(_TURNED)


def resolve_names(run: Invocation, names: list[str] | None) -> list[str] | None:
    """Return the present targets for configured names; the name of the new source stands for the old source."""
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
        """Read the state of a fall-back; None without one. Raises DirectionChanged after a switch."""
        from venus.adapters.cutover.direction import read_state

        state = read_state(self._run.settings) if self._may_change else None
        if state is not None and state.settings.source.url.get_secret_value() != self._source:
            raise DirectionChanged(_TURNED)
        return state

    def may_read_again(self) -> bool:
        """Return whether tables may be read again: not after a switch, when the other database may have newer rows."""
        state = self._read()
        return state is None or not any(record is not None and record.switch for record in state.records.values())

    def run_capture(self, body: Callable[[], None], stop: threading.Event) -> None:
        """Capture, and wait while a switch has sealed the source. Raises DirectionChanged.

        Before the seal, the switching command becomes the producer, so a capture that restarts meanwhile is refused.
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
        """Return whether a switch has sealed the database that was the application's until then."""
        from venus.adapters.targets.switching import SideState

        state = self._read()
        return state is not None and state.state_of(state.pair.other(state.follower)) is SideState.STOPPED

    def run_apply(self, body: Callable[[], None], name: str, stop: threading.Event, *, watched: bool) -> None:
        """Apply changes to a target once they flow to it. Raises DirectionChanged; if `watched`, also while it applies.

        A loop that runs beside capture need not be `watched`, because capture notices the change.
        """
        self._wait_for_follower(name, stop)
        changed = self._stop_on_change(stop) if watched and self._may_change else threading.Event()
        if not stop.is_set():
            body()
        if changed.is_set():
            stop.clear()
            raise DirectionChanged

    def _wait_for_follower(self, name: str, stop: threading.Event) -> None:
        """Wait until changes flow to this target, if it is the database that follows after a switch."""
        from venus.adapters.targets.switching import SideState

        while not stop.is_set() and (state := self._read()) is not None:
            if name != state.follower or state.state_of(name) in (SideState.FOLLOWING, None):
                return
            stop.wait(LOOK_S)

    def _stop_on_change(self, stop: threading.Event) -> threading.Event:
        """Start a thread that sets `stop` and the returned event when the direction changes; return the event."""
        changed = threading.Event()

        def check_direction() -> None:
            while not stop.wait(WATCH_S):
                try:
                    self._read()
                except DirectionChanged:
                    changed.set()
                    stop.set()
                except VenusError:
                    pass

        threading.Thread(target=check_direction, name="venus-direction", daemon=True).start()
        return changed


class SwitchMonitor:
    """Thread that checks for an unfinished switch. One loop reports it, for page, metrics and alarms.

    All loops of a process share this thread, because each check connects to both databases. While neither database
    accepts writes, capture may have ended, so the follower's loop reports the switch; afterwards the new owner's
    capture reports it.
    """

    def __init__(self, run: Invocation, stop: threading.Event) -> None:
        self._run = run
        self._stop = stop
        #: The loop that reports, by its name in `describe`, and the text that it reports.
        self._found: tuple[str | None, str] = None, ""
        if may_fall_back(run.settings):
            threading.Thread(target=self._check_switch, name="venus-switch", daemon=True).start()

    def describe(self, name: str | None) -> str:
        """Return what to do about an unfinished switch; empty = nothing, or another loop reports it.

        `name`: the target of the loop; None = capture.
        """
        reporter, advice = self._found
        return advice if name == reporter else ""

    def _check_switch(self) -> None:
        """Check repeatedly for an unfinished switch, and keep which loop must report it and what to do."""
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
    """Let the broker forget the consumer group of the present source, so that it does not hold back retention."""
    from venus.adapters.cutover.direction import read_state
    from venus.rpc.address import broker_address
    from venus.rpc.admin import AdminClient

    with suppress(VenusError):
        state = read_state(base)
        if state is not None and not state.is_switching:
            business, owner = base.business.name, state.pair.other(state.follower)
            with AdminClient(broker_address(base)) as admin:
                admin.forget(business, f"{business}/{owner}")
