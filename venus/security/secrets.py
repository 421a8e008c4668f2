"""Secrets of the configuration: files that only their owner can read, and passwords of databases.

Passwords come from a command or a file and are inserted into the URLs of the settings. VENUS reads passwords again for
each new connection, so a changed password needs no restart. A URL can be pickled; a process that cannot read the
password uses the password that was known when the URL was sent.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import stat
import subprocess
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from pydantic import SecretStr

from venus.errors import ConfigError

if TYPE_CHECKING:
    from venus.config import Settings, SourceSettings, TargetSettings
    from venus.masking.functions import MaskingKey

logger = logging.getLogger(__name__)

#: Permission bits that a file with a secret must not have: other users may not read it.
OPEN_TO_OTHERS = 0o077
FILE_BYTES_MAX = 1 << 20


def read_secret(path: Path, option: str) -> bytes:
    """Read a file that holds a secret. Raises ConfigError if other users may read the file."""
    content = read_file(path, option)
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & OPEN_TO_OTHERS:
        raise ConfigError(f"{option} {path} can be read by others (mode {mode:04o})", hint=f"chmod 600 {path}")
    return content


#: A shorter masking key could be guessed.
MASKING_KEY_BYTES_MIN = 16


def read_masking_key(path: str, option: str) -> MaskingKey:
    """Read a masking key. Raises ConfigError for a file that is missing, too short, or that others may read."""
    from venus.masking.functions import MaskingKey  # it imports Arrow

    secret = read_secret(Path(path), option).strip()
    if len(secret) < MASKING_KEY_BYTES_MIN:
        raise ConfigError(
            f"{option} {path} has {len(secret)} bytes: a key needs at least {MASKING_KEY_BYTES_MIN}",
            hint=f"(umask 077; head -c 32 /dev/urandom | base64 > {path})",
        )
    return MaskingKey(secret)


def read_file(path: Path, option: str) -> bytes:
    """Read a file of the configuration. Raises ConfigError."""
    try:
        with path.open("rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        hint = f"correct it, or make a first set of certificates: venus certs init {path.parent}"
        if "password" in option or "webhook" in option or "masking" in option:
            hint = "correct it, or make the file: its first line is the secret, and only its owner may read it"
        raise ConfigError(f"{option} {path}: no such file", hint=hint) from None
    except OSError as error:
        raise ConfigError(f"{option} {path}: {error.strerror}", hint=f"this is user {os.geteuid()}") from None
    if len(content) > FILE_BYTES_MAX:
        raise ConfigError(f"{option} {path} has more than {FILE_BYTES_MAX >> 20} MiB: it is no such file")
    return content


COMMAND_TIMEOUT_S = 30.0
#: Minimum interval between two runs of a command: a refused login is retried often.
COMMAND_EVERY_S = 5.0
KNOWN_MAX = 16
PASSWORD_CHARS_MAX = 4096
_USER = re.compile(r"(://[^:/?@]+)(:[^/?]*)?@")


class RotatingUrl(SecretStr):
    """URL of a database with its password, which is read again from its origin."""

    def __init__(self, section: str, database: SourceSettings | TargetSettings) -> None:
        self._section = section
        self._database = database
        self._machine = socket.gethostname()
        super().__init__(_with_password(section, database))
        self._read_at = time.monotonic()
        self._complaint = ""  # the last failure that was logged
        #: The last URLs of this process, so that none of their passwords is shown; a command may print another
        #: password each time.
        self.known = deque([self._secret_value], maxlen=KNOWN_MAX)

    def get_secret_value(self) -> str:
        """Return the URL with the current password, or with the last one if that cannot be read."""
        if self._database.password_file or self._is_due():
            self._read_at = time.monotonic()
            self._read()
        return self._secret_value

    def _is_due(self) -> bool:
        """Return whether to run the command: only on the machine of the configuration, and not for every attempt."""
        return self._machine == socket.gethostname() and time.monotonic() - self._read_at >= COMMAND_EVERY_S

    def _read(self) -> None:
        """Read the password again; if that fails, log why and keep the last one."""
        try:
            self._secret_value, self._complaint = _with_password(self._section, self._database), ""
        except ConfigError as error:
            level = logging.WARNING if self._machine == socket.gethostname() else logging.DEBUG
            if str(error) != self._complaint:
                logger.log(level, "%s; the last password is tried", error)
            self._complaint = str(error)
        if self._secret_value not in self.known:
            self.known.append(self._secret_value)

    def __getstate__(self) -> dict[str, Any]:
        # another process has another clock
        return self.__dict__ | {"_read_at": float("-inf")}


def resolve_passwords(settings: Settings) -> Settings:
    """Return settings with passwords in their URLs. Raises ConfigError."""
    changed: dict[str, object] = {}
    if (url := _url_of("source", settings.source)) is not None:
        changed["source"] = settings.source.model_copy(update={"url": url})
    urls = {name: _url_of(f"targets.{name}", target) for name, target in settings.targets.items()}
    if any(url is not None for url in urls.values()):
        changed["targets"] = {
            name: target.model_copy(update={"url": urls[name] or target.url})
            for name, target in settings.targets.items()
        }
    return settings.model_copy(update=changed) if changed else settings


def _url_of(section: str, database: SourceSettings | TargetSettings) -> SecretStr | None:
    """Return the URL with its password, None without a password command or file."""
    if not (database.password_command or database.password_file):
        return None
    if database.password_command and database.password_file:
        raise ConfigError(f"{section} has password_command and password_file", hint="keep one of them")
    return RotatingUrl(section, database)


def _with_password(section: str, database: SourceSettings | TargetSettings) -> str:
    """Return the URL of a database with its password inserted. Raises ConfigError."""
    url = database.url.get_secret_value()
    user = _USER.search(url)
    if user is None:
        raise ConfigError(f"{section}.url names no user, whose password that would be", hint="write ://USER@HOST")
    if user[2]:
        option = "password_command" if database.password_command else "password_file"
        raise ConfigError(f"{section}.url has a password, and {option} is set", hint="take it out of the URL")
    password = _from_command(section, database) if database.password_command else _from_file(section, database)
    return f"{url[: user.end(1)]}:{quote(password, safe='')}{url[user.end(1) :]}"


def _from_file(section: str, database: SourceSettings | TargetSettings) -> str:
    """Return the password in the configured file. Raises ConfigError."""
    option = f"{section}.password_file"
    content = read_secret(Path(database.password_file), option).decode(errors="replace")
    return _first_line(content, f"{option} {database.password_file}")


def _from_command(section: str, database: SourceSettings | TargetSettings) -> str:
    """Run the command with a shell. The command inherits stderr; VENUS never shows its output."""
    option, command = f"{section}.password_command", database.password_command
    try:
        done = subprocess.run(
            ["/bin/sh", "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        hint = "it may ask for something: it has no terminal"
        raise ConfigError(f"{option} did not end within {COMMAND_TIMEOUT_S:g} s", hint=hint) from None
    except OSError as error:
        raise ConfigError(f"{option} cannot be run: {error.strerror}", hint="it is run by /bin/sh") from None
    if done.returncode:
        raise ConfigError(f"{option} ended with exit code {done.returncode}", hint=f"run it by hand: {command}")
    return _first_line(done.stdout.decode(errors="replace"), option)


def _first_line(text: str, what: str) -> str:
    """Return the first line of a text as a password. Raises ConfigError."""
    line = text.partition("\n")[0].rstrip("\r")
    if not line or len(line) > PASSWORD_CHARS_MAX:
        raise ConfigError(f"{what} gives no password in its first line", hint="its first line is the password")
    return line
