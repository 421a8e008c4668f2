"""A program of the operator's own, which gets the message on stdin."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess

from venus.alarms.message import Message
from venus.errors import ConfigError


class Command:
    """A program and its arguments. No shell; VENUS's own environment, which may hold secrets, is not passed on."""

    def __init__(self, command: str, timeout_s: float) -> None:
        try:
            self._arguments = shlex.split(command)
        except ValueError as error:
            raise ConfigError(f"command cannot be read: {error}", hint="quote as in a shell") from None
        if not self._arguments:
            raise ConfigError("command is empty", hint="write a program with its arguments")
        self._timeout_s = timeout_s
        self.where = self._arguments[0]

    def send(self, message: Message) -> None:
        """Run it. Raises OSError with what was wrong. What it writes goes where our own log goes: it may be endless."""
        if shutil.which(self.where) is None:
            raise OSError(f"{self.where} is not an executable program")
        environ = {name: value for name, value in os.environ.items() if not name.upper().startswith("VENUS_")}
        process = subprocess.Popen(
            self._arguments, stdin=subprocess.PIPE, stdout=2,
            env=environ | {"VENUS_ALARM": message.subject}, start_new_session=True,
        )  # fmt: skip
        try:
            process.communicate(message.json(), timeout=self._timeout_s)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise OSError(f"{self.where} did not end within {self._timeout_s:g} s") from None
        if process.returncode:
            raise OSError(f"{self.where} ended with exit code {process.returncode}")
