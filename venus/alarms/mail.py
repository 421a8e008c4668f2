"""An e-mail by SMTP."""

from __future__ import annotations

import smtplib
import socket
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from email.message import EmailMessage
from email.utils import formatdate, make_msgid
from typing import Literal

from venus.alarms.deadline import within
from venus.alarms.message import Message
from venus.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Mail:
    """Addresses, and the server that takes mail for them."""

    to: Sequence[str]
    sender: str
    server: str
    security: Literal["starttls", "tls", "none"]
    user: str
    password: str
    timeout_s: float

    def __post_init__(self) -> None:
        """Raise ConfigError for what cannot be an address: a line break would begin a header."""
        for address in (*self.to, self.sender):
            if "@" not in address or not address.isprintable() or any(c in address for c in " ,;<>"):
                raise ConfigError(f"{address!r} is not an e-mail address", hint="write NAME@DOMAIN")
        if self.user and self.security == "none":
            raise ConfigError("smtp_user is set, and smtp_security is none", hint="a password needs starttls or tls")

    @property
    def where(self) -> str:
        """For people."""
        return f"{', '.join(self.to)} by {self.server}"

    def send(self, message: Message) -> None:
        """Send it. Raises OSError with what was wrong."""
        opened: list[smtplib.SMTP] = []
        try:
            with within(self.timeout_s, lambda: opened[0].sock if opened else None):
                self._deliver(message, opened)
        except smtplib.SMTPResponseException as error:
            said = (
                error.smtp_error.decode(errors="replace") if isinstance(error.smtp_error, bytes) else error.smtp_error
            )
            raise OSError(f"{self.server} answers {error.smtp_code} {said}".strip()) from None
        except smtplib.SMTPRecipientsRefused as error:
            raise OSError(f"{self.server} takes no mail for {', '.join(error.recipients)}") from None
        except ssl.SSLCertVerificationError as error:
            raise OSError(f"{self.server}: its certificate is not accepted: {error.verify_message}") from None
        except OSError as error:
            raise OSError(f"{self.server}: {error.strerror or error}") from None
        finally:
            for server in opened:
                server.close()

    def _deliver(self, message: Message, opened: list[smtplib.SMTP]) -> None:
        host, _, port = self.server.rpartition(":")
        host = host.strip("[]")
        server: smtplib.SMTP
        if self.security == "tls":
            server = smtplib.SMTP_SSL(timeout=self.timeout_s, context=ssl.create_default_context())
        else:
            server = smtplib.SMTP(timeout=self.timeout_s, local_hostname=socket.gethostname())
        opened.append(server)
        server._host = host  # type: ignore[attr-defined]  # the name that TLS compares: connect() alone does not set it
        server.connect(host, int(port))
        if self.security == "starttls":
            server.starttls(context=ssl.create_default_context())
        if self.user:
            server.login(self.user, self.password)
        server.send_message(self._composed(message))
        server.quit()

    def _composed(self, message: Message) -> EmailMessage:
        mail = EmailMessage()
        mail["Subject"] = message.subject
        mail["From"] = self.sender
        mail["To"] = ", ".join(self.to)
        mail["Date"] = formatdate(localtime=False)
        mail["Message-ID"] = make_msgid(domain=self.sender.rpartition("@")[2])
        mail["Auto-Submitted"] = "auto-generated"
        mail.set_content(message.text + "\n")
        return mail
