"""Files of the configuration: those with secrets are their owner's alone."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from venus.errors import ConfigError

#: Others may not read a file with a secret.
OPEN_TO_OTHERS = 0o077
FILE_BYTES_MAX = 1 << 20


def read_secret(path: Path, option: str) -> bytes:
    """Read a file that holds a secret. Raises ConfigError if others may read it."""
    content = read(path, option)
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & OPEN_TO_OTHERS:
        raise ConfigError(f"{option} {path} can be read by others (mode {mode:04o})", hint=f"chmod 600 {path}")
    return content


def read(path: Path, option: str) -> bytes:
    """Read a file of the configuration. Raises ConfigError."""
    try:
        with path.open("rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        hint = f"correct it, or make a first set of certificates: venus certs init {path.parent}"
        if "password" in option or "webhook" in option:
            hint = "correct it, or make the file: its first line is the secret, and only its owner may read it"
        raise ConfigError(f"{option} {path}: no such file", hint=hint) from None
    except OSError as error:
        raise ConfigError(f"{option} {path}: {error.strerror}", hint=f"this is user {os.geteuid()}") from None
    if len(content) > FILE_BYTES_MAX:
        raise ConfigError(f"{option} {path} has more than {FILE_BYTES_MAX >> 20} MiB: it is no such file")
    return content
