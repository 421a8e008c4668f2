"""Rules of the loops of `venus sync`: which errors they retry, and which end them.

A retry helps where the other side may come back by itself: a server is down or starts, or the network is interrupted.
It does not help against a wrong configuration, which ends the loop with the exit code of any other command. A refused
login or a missing database can be either. If the process has worked before, an operator is probably changing a password
or restoring a backup at this moment, and the loop retries.
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

#: How often a lasting problem is worth a line in the log.
REMIND_S = 60.0


class RetryPolicy(Enum):
    """Reaction of a loop to an error."""

    WAIT = "try again, with growing pauses"
    #: Another command has to act first: a target is loaded, a process ends.
    RARELY = "try again at long intervals, if other loops continue meanwhile"
    END = "end with the error's exit code"


#: The first matching class counts: the reaction before the loop has worked, and afterwards.
RULES: tuple[tuple[type[VenusError], RetryPolicy, RetryPolicy], ...] = (
    (UnknownHost, RetryPolicy.WAIT, RetryPolicy.WAIT),
    (NoSuchDatabase, RetryPolicy.END, RetryPolicy.WAIT),
    (LoginRefused, RetryPolicy.END, RetryPolicy.WAIT),
    (Untrusted, RetryPolicy.END, RetryPolicy.WAIT),
    (NotInstalled, RetryPolicy.END, RetryPolicy.END),
    (Fenced, RetryPolicy.END, RetryPolicy.END),
    (Held, RetryPolicy.END, RetryPolicy.END),
    (Denied, RetryPolicy.END, RetryPolicy.END),
    (Refused, RetryPolicy.RARELY, RetryPolicy.RARELY),
)


def find_retry_policy(error: BaseException | None, *, has_worked: bool) -> RetryPolicy:
    """Return the reaction of a loop to an error."""
    if not isinstance(error, VenusError):
        return RetryPolicy.END
    for kind, before, afterwards in RULES:
        if isinstance(error, kind):
            return afterwards if has_worked else before
    return RetryPolicy.WAIT if error.retryable else RetryPolicy.END


def should_retry(error: BaseException | None, *, has_worked: bool) -> bool:
    """Return whether a loop retries by itself after this error."""
    return find_retry_policy(error, has_worked=has_worked) is RetryPolicy.WAIT
