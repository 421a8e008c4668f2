"""What `venus sync` says: everything as JSON lines for machines; for people what has changed, and a line a minute.

A loop reports its counters about once a second. Nobody reads that, but everybody wants to know at once that it waits
for the broker, that a table halted, or that it was started again.
"""

from __future__ import annotations

import dataclasses
import logging
import re
import time
from typing import Any

from venus.cli.grid import cell
from venus.cli.invocation import Invocation
from venus.flow.breaker import Circuit

logger = logging.getLogger(__name__)

#: How often counters alone are worth a line.
EVERY_S = 60.0
#: A change of one of these is worth a line at once.
TELLING = ("event", "circuit", "blocked_by", "error", "constraints")
#: These alternate while the other side is away; one line says it.
AWAY = ("connecting", "reconnecting", "waiting to reconnect")
#: What says that a loop does not work, and what follows from that and is not said again and again.
TROUBLE, STARTS, BETWEEN = ("waiting", "restarts"), ("started", "running"), ("connecting", "failed")
QUIET = ("report", *TROUBLE)
_FIGURES = re.compile(r"\d[\d,.]*")
#: In these states the last error is history.
WELL = ("capturing", "filling", "stopped")
#: What a person wants to see of a report, in this order.
SHOWN = ("state", "rows", "batches", "transactions", "offset", "lag_s", "circuit", "in_s", "retry_in_s", "pid", "code",
         "blocked_by", "last_error", "error", "constraints", "text")  # fmt: skip
#: What a circuit breaker's states mean to a person; a closed one is nothing to speak of.
CIRCUIT = {Circuit.OPEN.value: "the target is left alone for a while", Circuit.HALF_OPEN.value: "the target is tried"}
#: Fields that have another name for people.
CALLED = {"circuit": ""}


class Narrator:
    """Tells the events of all loops of one `venus sync`."""

    def __init__(self, run: Invocation) -> None:
        self._run = run
        self._told: dict[str, tuple[object, float]] = {}
        self._trouble: dict[str, str] = {}  # what each loop waits for or was ended by
        self._filled: dict[str, object] = {}  # the fills of each loop's last report

    def report(self, loop: str, found: Any) -> None:
        """Take a loop's own report, a frozen dataclass. Fills that have all ended are passed on once."""
        fills = getattr(found, "fills", ())
        if fills and fills is self._filled.get(loop):
            found = dataclasses.replace(found, fills=())
        else:
            self._filled[loop] = fills if all(fill.done for fill in fills) else ()
        self.event(loop, {"event": "report", **dataclasses.asdict(found)})

    def event(self, loop: str, found: dict[str, Any]) -> None:
        """Take anything that happened to a loop, here or in a child."""
        is_news = self._is_news(loop, found)
        if is_news and found["event"] in (*TROUBLE, "stays down") and self._logs:
            logger.warning("%s: %s", loop, self._run.redactor(sentence(found)))
        if not self._run.json and not is_news:
            return
        self._run.out.event({"loop": loop, **found}, self._run.redactor(f"{loop}: {sentence(found)}"))

    @property
    def _logs(self) -> bool:
        """Whether the log says trouble as well: where standard output, which says it too, is not for people."""
        return (self._run.json or self._run.log_format != "text") and not self._run.supervised

    def _is_news(self, loop: str, found: dict[str, Any]) -> bool:
        what, error, state = found["event"], found.get("error") or "", found.get("state")
        if what in TROUBLE and error:
            self._trouble[loop] = error
        elif what == "report" and not error and (state is None or state in WELL):
            self._trouble.pop(loop, None)
        elif loop in self._trouble and (what in STARTS or state in BETWEEN):
            return False
        key = self._key(found)
        last_key, last_s = self._told.get(loop, (None, 0.0))
        if what in QUIET and key == last_key and time.monotonic() - last_s < EVERY_S:
            return False
        self._told[loop] = (key, time.monotonic())
        return True

    def _key(self, found: dict[str, Any]) -> object:
        """Return what must differ from the last line for another one to be worth it."""
        error, state = found.get("error") or "", found.get("state")
        if found["event"] in TROUBLE and error:
            return _FIGURES.sub("#", error)
        held = tuple(t.get("source_name") for t in found.get("held", ()) if isinstance(t, dict))
        # a target that cannot be reached opens its circuit a little later: that is the same trouble
        telling = ("event", "error", "constraints") if error else TELLING
        return (*(found.get(name) for name in telling), "away" if state in AWAY else state, held)


def sentence(found: dict[str, Any]) -> str:
    """Return an event for people: what happened, then the figures that are not empty."""
    if found["event"] in ("restarts", "stays down", "waiting"):
        then = f"starts again in {found['in_s']:.0f} s" if found["event"] == "restarts" else found["event"]
        hint = f"; {found['hint']}" if found.get("hint") else ""
        return f"{then}: {found['error'] or 'it ended with code ' + str(found['code'])}{hint}"
    figures = {name: found.get(name) for name in SHOWN if name != "state"}
    if found.get("state") in WELL:
        figures["last_error"] = None
    figures["circuit"] = CIRCUIT.get(str(figures["circuit"]))
    parts = [
        " ".join(filter(None, (CALLED.get(name, name), cell(value))))
        for name, value in figures.items()
        if value not in (None, "")
    ]
    what = found.get("state") or ("" if found["event"] == "report" else found["event"])
    parts += [f"{t['source_name']} {t['state'].lower()}" for t in found.get("held", ()) if isinstance(t, dict)]
    parts += [f"{f['table']} {f['rows_done']:,} of about {f['rows_estimate']:,}" for f in unfinished(found)]
    return ", ".join(part for part in (what, *parts) if part)


def unfinished(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the first fills that go on."""
    return [f for f in found.get("fills", ()) if isinstance(f, dict) and not f["done"]]
