"""Where a user's own files go: logs of failures, the audit log, caches."""

from __future__ import annotations

import os
from pathlib import Path

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
