"""Where a user's own files go: logs of failures, the audit log, caches."""

from __future__ import annotations

import os
import resource
import signal
import time
from pathlib import Path

#: Elsewhere monotonic time goes on, or nothing better is known.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", None)


def steady() -> float:
    """Return seconds since some moment in the past."""
    return time.monotonic() if _CLOCK is None else time.clock_gettime(_CLOCK)


DESCRIPTORS_MAX = 1 << 20


def limit() -> int:
    """Return how many descriptors this process may have."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return DESCRIPTORS_MAX if soft == resource.RLIM_INFINITY else soft


def raise_limit() -> None:
    """Let this process have as many descriptors as it may: many are started with no more than 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS_MAX if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def stop_signals() -> tuple[signal.Signals, ...]:
    """Return SIGTERM, SIGINT, and SIGHUP, which a closed terminal sends, unless it is ignored, as nohup has it."""
    always = (signal.SIGTERM, signal.SIGINT)
    return always if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (*always, signal.SIGHUP)


#: The home of a user without one, as container runtimes set it.
ROOT = Path("/")


def state_folder() -> Path:
    """Return the folder for what is kept between runs; it need not exist, and perhaps cannot be made."""
    return _folder("XDG_STATE_HOME", ".local/state")


def cache_folder() -> Path:
    """Return the folder for what can be made again."""
    return _folder("XDG_CACHE_HOME", ".cache")


def _folder(variable: str, below_home: str) -> Path:
    chosen = os.environ.get(variable)
    return Path(chosen or _home() / below_home) / "venus"


def _home() -> Path:
    """Return the home of this user, who may have neither HOME nor a name."""
    try:
        return Path.home()
    except RuntimeError:
        return ROOT
