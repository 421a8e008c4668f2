"""Options of [alarms]: which recipient gets which alarm, and when (docs/OPERATING.md, venus/alarms)."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, SecretStr, field_validator, model_validator

from venus.alarm_rules import NAMES
from venus.config.values import Address, Patterns, Seconds, SettingsSection
from venus.text.hints import suggest_nearest


def _check_rule_name(name: str) -> str:
    if name not in NAMES:
        raise ValueError(f"is not a kind of alarm{suggest_nearest(name, NAMES)}; `venus alarms rules` lists them")
    return name


class AlarmRuleSettings(SettingsSection):
    """Options of one kind of alarm."""

    #: How long it must last before it is sent; 0 = the default of this kind, often at once.
    after_s: float = Field(default=0.0, ge=0)
    #: How long until it is sent again; 0 = alarms.repeat_s.
    repeat_s: float = Field(default=0.0, ge=0)
    #: Whether it is sent at all; page, status and metrics show it anyway.
    send: bool = True


class RecipientSettings(SettingsSection):
    """A recipient of alarms, by one of three channels."""

    #: A URL that takes a POST with JSON. Knowing it is often enough to write there, so it counts as a secret.
    webhook: SecretStr = SecretStr("")
    webhook_file: str = ""
    #: Addresses of e-mail.
    mail: Patterns = ()
    mail_from: str = ""
    smtp: Address = ""
    smtp_security: Literal["starttls", "tls", "none"] = "starttls"
    smtp_user: str = ""
    smtp_password: SecretStr = SecretStr("")
    smtp_password_file: str = ""
    #: A program with its arguments; it gets the JSON of the webhook on stdin. No shell.
    command: str = ""
    #: Which kinds of alarms, as shell patterns.
    rules: Patterns = ("*",)
    timeout_s: float = Field(default=10.0, gt=0, le=300)

    @field_validator("rules")
    @classmethod
    def _check_patterns(cls, patterns: tuple[str, ...]) -> tuple[str, ...]:
        for pattern in patterns:
            if not any(fnmatchcase(name, pattern) for name in NAMES):
                raise ValueError(f"has {pattern!r}, which is not a kind of alarm{suggest_nearest(pattern, NAMES)}")
        return patterns

    @model_validator(mode="after")
    def _check_channel(self) -> RecipientSettings:
        webhook = bool(self.webhook.get_secret_value() or self.webhook_file)
        if [webhook, bool(self.mail), bool(self.command)].count(True) != 1:
            raise ValueError("one of webhook (or webhook_file), mail and command must be set")
        if self.mail and not (self.smtp and self.mail_from):
            raise ValueError("mail needs smtp, the server as HOST:PORT, and mail_from, the sender's address")
        for option in ("webhook", "smtp_password"):
            if getattr(self, option).get_secret_value() and getattr(self, f"{option}_file"):
                raise ValueError(f"{option} and {option}_file are both set: keep one of them")
        return self

    @property
    def channel(self) -> str:
        """webhook, mail or command."""
        return "mail" if self.mail else "command" if self.command else "webhook"


class AlarmsSettings(SettingsSection):
    """When an alarm is raised, repeated and cleared, and where it is sent."""

    #: How often a broker checks for alarms.
    check_s: Seconds = 5.0
    #: After how long an active alarm is sent again.
    repeat_s: Seconds = 4 * 3600.0
    #: How long an alarm must be gone before it is over, which is sent too.
    clear_s: float = Field(default=30.0, ge=0)
    #: A target this far behind is an alarm, and so is a source without captured changes for this long.
    late_s: Seconds = 60.0
    to: dict[str, RecipientSettings] = {}
    rules: dict[Annotated[str, AfterValidator(_check_rule_name)], AlarmRuleSettings] = {}

    def rule_settings(self, name: str) -> AlarmRuleSettings:
        """Return what is configured for a kind of alarm."""
        return self.rules.get(name, AlarmRuleSettings())
