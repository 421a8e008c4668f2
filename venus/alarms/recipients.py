"""The recipients of the configuration, each with its way and the kinds of alarms that it wants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Protocol

from venus.alarms.book import Notice
from venus.alarms.command import Command
from venus.alarms.mail import Mail
from venus.alarms.message import Message
from venus.alarms.webhook import Webhook
from venus.config import Alarms, Recipient
from venus.errors import ConfigError
from venus.security.reading import read_secret


class Way(Protocol):
    """How a message travels."""

    @property
    def where(self) -> str:
        """Where it goes, without secrets."""
        ...

    def send(self, message: Message) -> None:
        """Send it; return within the recipient's time limit. Raises OSError, whose text says what was wrong."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Addressee:
    """One recipient."""

    name: str
    way: Way
    patterns: Sequence[str] = ("*",)
    #: Kinds of alarms that are sent to nobody.
    silent: frozenset[str] = field(default=frozenset())
    timeout_s: float = 10.0

    def wants(self, notice: Notice) -> bool:
        """Whether it is to be told. That it cannot be reached itself is told to the others."""
        alarm = notice.alarm
        return self.wants_rule(alarm.rule) and not (alarm.rule == "alarm_unsent" and alarm.subject == self.name)

    def wants_rule(self, rule: str) -> bool:
        """Whether it is to be told of this kind of alarm."""
        return rule not in self.silent and any(fnmatchcase(rule, pattern) for pattern in self.patterns)


def addressees(alarms: Alarms) -> list[Addressee]:
    """Return everybody who is told. Raises ConfigError, which names the option."""
    silent = frozenset(name for name, rule in alarms.rules.items() if not rule.send)
    return [
        Addressee(
            name=name, way=_way(name, found), patterns=found.rules, silent=silent, timeout_s=found.timeout_s
        )
        for name, found in alarms.to.items()
    ]  # fmt: skip


def _way(name: str, found: Recipient) -> Way:
    section = f"alarms.to.{name}"
    if any(c.isspace() for c in name) or not name.isprintable():
        raise ConfigError(f"[{section}]: its name has spaces", hint="name a recipient with one word")
    try:
        if found.way == "webhook":
            url = found.webhook.get_secret_value() or _secret(found.webhook_file, f"{section}.webhook_file")
            return Webhook(url, found.timeout_s)
        if found.way == "command":
            return Command(found.command, found.timeout_s)
        password = found.smtp_password.get_secret_value()
        if found.smtp_password_file:
            password = _secret(found.smtp_password_file, f"{section}.smtp_password_file")
        return Mail(
            to=found.mail, sender=found.mail_from, server=found.smtp, security=found.smtp_security,
            user=found.smtp_user, password=password, timeout_s=found.timeout_s,
        )  # fmt: skip
    except ConfigError as error:
        known = str(error).startswith(section)
        raise error if known else ConfigError(f"{section}: {error}", hint=error.hint) from None


def _secret(file: str, option: str) -> str:
    line = read_secret(Path(file), option).decode(errors="replace").partition("\n")[0].strip()
    if not line:
        raise ConfigError(f"{option} {file} has no first line", hint="its first line is the secret")
    return line
