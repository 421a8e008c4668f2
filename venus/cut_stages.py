"""The stages of a cut, under one id in all processes: capture, broker, apply.

The id is the business and the number of the cut's first batch, `main/17`. Capture draws that number, and every batch
carries it. The code of a stage reports its end here, which costs one comparison without a listener. `venus -v` writes a
line for each stage; `[tracing]` turns stages into spans (venus/tracing).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CutStage:
    """A finished stage of a cut. Times are Unix microseconds; `captured_at_us` is the same in all stages."""

    name: str
    business: str
    cut: int
    captured_at_us: int
    began_us: int
    ended_us: int
    facts: dict[str, int | str] = field(default_factory=dict)
    #: The steps of the stage in order, and when each was done; 0 = not known.
    steps: Mapping[str, int] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """The id of the cut."""
        return f"{self.business}/{self.cut}"


Listener = Callable[[CutStage], None]
_listeners: list[Listener] = []


def add_listener(listener: Listener) -> None:
    """Call `listener` for each stage of this process. It must not block."""
    _listeners.append(listener)


def remove_listener(listener: Listener) -> None:
    """Stop calling `listener`."""
    _listeners.remove(listener)


def has_listener() -> bool:
    """Return whether there is a listener. Ask before building a stage."""
    return bool(_listeners) or logger.isEnabledFor(logging.DEBUG)


def step_time_us() -> int:
    """Return the time for a step; 0 without a listener."""
    return time.time_ns() // 1000 if has_listener() else 0


def report_stage(stage: CutStage) -> None:
    """Report a finished stage to the log and to all listeners."""
    if logger.isEnabledFor(logging.DEBUG):
        facts = ", ".join(f"{name} {value}" for name, value in stage.facts.items())
        took_ms = (stage.ended_us - stage.began_us) / 1000
        steps = {name: at_us for name, at_us in stage.steps.items() if at_us}
        after = "".join(f", {name} after {(at_us - stage.began_us) / 1000:.1f} ms" for name, at_us in steps.items())
        logger.debug(
            "cut %s: %s in %.1f ms, %s%s",
            stage.id,
            stage.name,
            took_ms,
            facts,
            after,
            extra={
                "cut": stage.id,
                "stage": stage.name,
                "took_ms": took_ms,
                "ended_us": stage.ended_us,
                **stage.facts,
                **{f"{name}_us": at_us for name, at_us in steps.items()},
            },
        )
    for listener in _listeners:
        listener(stage)
