"""Which errors a loop of `venus sync` waits for, and which end it. Pure.

Waiting helps where the other side may come back by itself: a server that is down or starting, a network that is away.
It does not help against a configuration that is wrong: that ends the loop with the exit code of any other command.
Whether a refused login or a missing database is one of the two shows in whether this process has worked before: then
somebody changes a password or restores a backup right now.
"""

from __future__ import annotations

from enum import Enum

from venus.errors import (
    Denied,
    Fenced,
    Held,
    LoginRefused,
    NoSuchDatabase,
    NotInstalled,
    Refused,
    UnknownHost,
    Untrusted,
    VenusError,
)

#: How often trouble that lasts is worth a line.
REMIND_S = 60.0


class Patience(Enum):
    """What a loop does about an error."""

    WAIT = "try again, with growing pauses"
    #: Another command makes it true: a target is loaded, a process ends.
    RARELY = "try again now and then, if others go on meanwhile"
    END = "end with the error's exit code"


#: The first class that fits counts: what is done before the loop has worked, and afterwards.
RULES: tuple[tuple[type[VenusError], Patience, Patience], ...] = (
    (UnknownHost, Patience.WAIT, Patience.WAIT),
    (NoSuchDatabase, Patience.END, Patience.WAIT),
    (LoginRefused, Patience.END, Patience.WAIT),
    (Untrusted, Patience.END, Patience.WAIT),
    (NotInstalled, Patience.END, Patience.END),
    (Fenced, Patience.END, Patience.END),
    (Held, Patience.END, Patience.END),
    (Denied, Patience.END, Patience.END),
    (Refused, Patience.RARELY, Patience.RARELY),
)


def patience_with(error: BaseException | None, *, has_worked: bool) -> Patience:
    """Return what a loop does about an error."""
    if not isinstance(error, VenusError):
        return Patience.END
    for kind, before, afterwards in RULES:
        if isinstance(error, kind):
            return afterwards if has_worked else before
    return Patience.WAIT if error.retryable else Patience.END


def is_waited_for(error: BaseException | None, *, has_worked: bool) -> bool:
    """Return whether a loop tries again by itself after this error."""
    return patience_with(error, has_worked=has_worked) is Patience.WAIT
