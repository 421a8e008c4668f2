"""The exceptions of VENUS.

Each class answers two questions of a caller: may the call be repeated, and what must the operator do? Driver and gRPC
exceptions are wrapped where they enter, with `raise ... from`. Exit codes: 1 differences or unhealthy, 2 usage or
configuration, 3 refused by a safety rule, 75 try again later, 12 any other error.
"""

from __future__ import annotations

from typing import ClassVar


class VenusError(Exception):
    """VENUS cannot continue."""

    retryable: ClassVar[bool] = False
    exit_code: ClassVar[int] = 12

    def __init__(self, message: str = "", *, hint: str = "") -> None:
        super().__init__(message or self.__doc__)
        #: What the operator can do about it, one sentence, or empty.
        self.hint = hint


class ConfigError(VenusError):
    """The configuration is not usable."""

    exit_code = 2

    def __init__(self, message: str = "", *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        #: A line for each of several mistakes; the message has the first one.
        self.complaints: tuple[str, ...] = ()


class Refused(VenusError):
    """A safety rule forbids this."""

    exit_code = 3


class NotInstalled(Refused):
    """The source is reachable, but VENUS is not installed there."""


class Denied(Refused):
    """The caller has no role that permits this call."""


class Unproven(Denied):
    """The caller has not proved its identity."""


class SourceError(VenusError):
    """The source database refused a statement."""


class TargetError(VenusError):
    """The target database refused a statement."""


class DatabaseUnavailable(VenusError):
    """A database cannot be reached now."""

    retryable = True
    exit_code = 75


class LockConflict(DatabaseUnavailable):
    """Another session is in the way of a transaction: the same transaction may succeed later."""


class LockTimeout(LockConflict):
    """A lock was not granted in time."""


class Deadlock(LockConflict):
    """The server has rolled back the transaction, to end a deadlock or a conflict with another one."""


class NoSuchDatabase(DatabaseUnavailable):
    """The configuration names a database that does not exist; a long-running adapter may still wait for it."""

    exit_code = 2


class LoginRefused(DatabaseUnavailable):
    """The database server refuses the configured login; a long-running adapter may still wait for another answer."""

    exit_code = 2


class UnknownHost(LoginRefused):
    """The name of the database server resolves to no address: a wrong name, or a network that is not up yet."""


class Fenced(VenusError):
    """A newer instance has taken over; this one must stop."""

    exit_code = 3


class Held(Refused):
    """Another instance is running."""


class DirectionChanged(Refused):
    """A cut-over has made another database the source: the process must open source and target again."""


class Diverged(VenusError):
    """The two sides no longer share a history."""

    exit_code = 1


class OffsetTrimmed(Diverged):
    """The broker no longer has the increments asked for: start again from the full data (offset -1)."""


class OffsetDiverged(Diverged):
    """The consumer has applied increments that this broker never had."""


class OtherRows(Diverged):
    """Another broker set has other rows at the same offset: its predicates differ."""


class SnapshotExpired(VenusError):
    """The snapshot's lease has expired and its files are removed."""


class StorageError(VenusError):
    """The broker's store failed."""


class Corruption(StorageError):
    """Stored bytes are damaged."""


class StoreFull(StorageError):
    """Too little free space: writes are refused before the disk is full."""

    retryable = True
    exit_code = 75


class ProtocolError(VenusError):
    """A peer sent something that the protocol does not allow here."""


class DigestMismatch(ProtocolError):
    """A message does not hash to the digest that it carries."""

    retryable = True


class IllegalTransition(ProtocolError):
    """A half message was decided twice, and not the same way."""


class Unavailable(VenusError):
    """The peer cannot serve this now; the same call may succeed later."""

    retryable = True
    exit_code = 75
    #: Whether the peer itself reported this; then it runs and can be reached.
    said_by_peer = False


class Untrusted(Unavailable):
    """The peer's certificate is not trusted, or ours is not; a long-running adapter may wait for new ones."""

    exit_code = 2


class Overloaded(Unavailable):
    """The peer asks to slow down."""

    def __init__(self, message: str = "", *, hint: str = "", retry_after_s: float = 0.0) -> None:
        super().__init__(message, hint=hint)
        #: When to ask again; 0 = the caller decides.
        self.retry_after_s = retry_after_s


class SlowRequest(Overloaded):
    """The request has waited too long and was not started."""


class NotLeader(Unavailable):
    """Another broker leads this business now."""

    def __init__(self, message: str = "", *, hint: str = "", leader: str = "") -> None:
        super().__init__(message, hint=hint)
        #: The address of that broker, HOST:PORT; empty = not known yet.
        self.leader = leader


class SparkFailed(VenusError):
    """Spark did not start, or a job failed for a reason of Spark's own."""


class WorkerLost(VenusError):
    """Worker processes die repeatedly."""


class UnsupportedType(Refused):
    """A column cannot be carried exactly."""
