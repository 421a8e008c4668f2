"""A login whose password may be changed while VENUS runs.

Between the change in the database and that of the file every login is refused. Ten refusals in a row lock most accounts
(FAILED_LOGIN_ATTEMPTS), so a password that was refused is tried again only after minutes, or when it is another one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from venus.adapters.dialects.oracle.codes import Action, action_of
from venus.adapters.dialects.oracle.driver import Driver, code_of, said_by
from venus.errors import LoginRefused

#: After so long a password that was refused is tried again: the database may have been made to fit it.
AGAIN_S = 300.0
HINT = "correct the password in the file, or what the command prints: each new one is tried at once"

#: What this process was refused, by the URL with its password: when, and what was said.
_refused: dict[str, tuple[float, str]] = {}


@dataclass(frozen=True, slots=True)
class RotatingDriver:
    """A driver, and the URL as it is now."""

    driver: Driver
    url: str
    monotonic: Callable[[], float] = time.monotonic

    @property
    def place(self) -> str:
        return self.driver.place

    @property
    def error(self) -> type[Exception]:
        return self.driver.error

    def connect(self) -> Any:
        """Connect. Raises LoginRefused, which may be tried again, where another password may help."""
        at, said = _refused.get(self.url, (0.0, ""))
        if said and self.monotonic() < at + AGAIN_S:
            raise LoginRefused(said, hint=HINT)
        try:
            connection = self.driver.connect()
        except self.driver.error as error:
            if action_of(code_of(error)) is not Action.DENIED:
                raise
            said = f"source {self.place} cannot be reached: {said_by(error)}"
            _refused[self.url] = self.monotonic(), said
            raise LoginRefused(said, hint=HINT) from error
        _refused.clear()
        return connection
