"""What the operating system gives a process: a clock, open files, signals, and the folders of its user."""

from __future__ import annotations

import os
import resource
import signal
import time
from pathlib import Path

#: Absent outside Linux, where monotonic time advances during a suspend, or there is no better clock.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", None)


def steady_clock_s() -> float:
    """Return the seconds since a moment in the past, by a clock that cannot be set and that counts while suspended.

    On Linux `time.monotonic` stands still while the machine is suspended. A lease measured by it would seem valid on a
    broker that slept for an hour, although others have elected a new leader meanwhile. `time.monotonic` is right for
    pauses, retries and whatever counts only while a process runs.
    """
    return time.monotonic() if _CLOCK is None else time.clock_gettime(_CLOCK)


DESCRIPTORS_MAX = 1 << 20


def descriptor_limit() -> int:
    """Return how many descriptors this process may open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return DESCRIPTORS_MAX if soft == resource.RLIM_INFINITY else soft


def raise_descriptor_limit() -> None:
    """Raise the soft limit of descriptors to the hard one: many processes start with only 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS_MAX if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def stop_signals() -> tuple[signal.Signals, ...]:
    """Return the signals that end a process in order: SIGTERM, SIGINT, and SIGHUP unless nohup ignores it.

    A closed terminal sends SIGHUP.
    """
    always = (signal.SIGTERM, signal.SIGINT)
    return always if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (*always, signal.SIGHUP)


#: The home of a user that has none, as container runtimes set it.
ROOT = Path("/")


def state_folder() -> Path:
    """Return the folder for files kept between runs; it may be absent, and creating it may fail."""
    return _folder("XDG_STATE_HOME", ".local/state")


def cache_folder() -> Path:
    """Return the folder for caches."""
    return _folder("XDG_CACHE_HOME", ".cache")


def _folder(variable: str, below_home: str) -> Path:
    chosen = os.environ.get(variable)
    return Path(chosen or _home() / below_home) / "venus"


def _home() -> Path:
    """Return the home of this user; a container's user may have neither HOME nor a name."""
    try:
        return Path.home()
    except RuntimeError:
        return ROOT
