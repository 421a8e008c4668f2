"""No password in any output: the last net, behind SecretStr and masked URLs.

Drivers may quote a connection string in an error message. Everything that the command line writes about a failure
passes through here.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import unquote, unquote_plus

from venus.masking import masked

if TYPE_CHECKING:
    from pydantic import SecretStr

    from venus.config import Settings

STRUCK = "***"
#: Shorter ones would strike out half the text.
SECRET_CHARS_MIN = 3


class Redactor:
    """Strikes known passwords out of text, and whatever looks like a URL with one."""

    def __init__(self) -> None:
        self._secrets: set[str] = set()
        self._urls: list[SecretStr] = []

    def learn(self, settings: Settings) -> None:
        """Remember the secrets of these settings; passwords in URLs as written and decoded."""
        for url in (settings.source.url, *(target.url for target in settings.targets.values())):
            self._secrets |= passwords(url.get_secret_value())
            self._urls.append(url)
        self._secrets |= passwords(settings.spark.remote)
        from venus.config import is_secret

        others = [value for name, value in settings.spark.conf.items() if is_secret(name)]
        others.append(settings.security.client_token.get_secret_value())
        for recipient in settings.alarms.to.values():
            others += [recipient.webhook.get_secret_value(), recipient.smtp_password.get_secret_value()]
        others.append(settings.cluster.etcd_password.get_secret_value())
        self._secrets |= {secret for secret in others if len(secret) >= SECRET_CHARS_MIN}

    def __call__(self, text: str) -> str:
        """Return the text without any password."""
        for secret in sorted(self._secrets | self._rotated(), key=len, reverse=True):
            text = text.replace(secret, STRUCK)
        return re.sub(r"\S+://\S+", lambda found: masked(found[0]), text)

    def _rotated(self) -> set[str]:
        """Return the passwords that were read since: a database's may be changed while VENUS runs."""
        known: set[str] = set()
        for url in self._urls:
            for text in getattr(url, "known", ()):
                known |= passwords(text)
        return known


def passwords(url: str) -> set[str]:
    """Return every spelling of the passwords in a URL; without those that are too short."""
    found: set[str] = set()
    if match := re.search(r"://[^:/?@]*:(.*)@", url, re.DOTALL):
        found.add(match[1])
    found |= set(re.findall(r"[?&;][^=&;]*(?:passw|secret|token)[^=&;]*=([^&;]*)", url, re.IGNORECASE))
    found |= {decode(secret) for secret in found for decode in (unquote, unquote_plus)}
    return {secret for secret in found if len(secret) >= SECRET_CHARS_MIN}
