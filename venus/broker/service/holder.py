"""Who may become the producer of a business: nobody while another one lives, unless he is told to take over.

A producer lives as long as its stream does. A process that was killed loses it at once; one whose machine is gone or
frozen does not answer keepalive, and loses it after that time. So whoever comes waits that long at most: until the
stream is gone, or until the holder has said something, which one at work does with every heartbeat. Only the broker's
own clock is asked, and it never steps.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Protocol

from venus.errors import Held
from venus.wire import broker_pb2

#: Between two looks at the holder.
LOOK_S = 0.05


class Holder(Protocol):
    """The stream of a producer."""

    init: broker_pb2.Init
    #: When it came, Unix seconds.
    since: float
    #: When its last frame arrived, on the monotonic clock.
    heard_at: float

    @property
    def ending(self) -> bool:
        """Whether the broker is ending it."""
        ...


def must_wait(holder: Holder | None, init: broker_pb2.Init) -> bool:
    """Say whether a holder is in the way of who comes now."""
    if holder is None or holder.ending or init.take_over:
        return False
    if init.owner and init.owner == holder.init.owner:
        return False
    return init.gives_way or not holder.init.gives_way


async def wait_for_turn(
    live: Mapping[str, Holder],
    init: broker_pb2.Init,
    *,
    patience_s: float,
    monotonic: Callable[[], float] = time.monotonic,
) -> None:
    """Return when nobody is in the way. Raises Held as soon as it is known that somebody is, and lives."""
    asked_at = monotonic()
    while (holder := live.get(init.business)) is not None and must_wait(holder, init):
        if holder.heard_at > asked_at or monotonic() - asked_at >= patience_s:
            raise _held(holder, monotonic())
        await asyncio.sleep(LOOK_S)


def _held(holder: Holder, now: float) -> Held:
    since = datetime.fromtimestamp(holder.since, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    heard_s = max(0.0, now - holder.heard_at)
    return Held(
        f"capture of business {holder.init.business} is held by {holder.init.producer}, connected since {since},"
        f" last heard from {heard_s:.1f} s ago",
        hint="stop it there, or run `venus sync --take-over`, which makes it stop for good",
    )
