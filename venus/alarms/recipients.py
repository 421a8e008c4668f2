"""Recipients of alarms: their channels (webhook, e-mail, command) and the kinds of alarms that they want."""

from __future__ import annotations

import contextlib
import http.client
import os
import shlex
import shutil
import signal
import smtplib
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from email.message import EmailMessage
from email.utils import formatdate, make_msgid
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal, Protocol
from urllib.parse import urlsplit

from venus.alarms.alarm_state import Message, Notification
from venus.config import AlarmsSettings, RecipientSettings
from venus.errors import ConfigError
from venus.security.secrets import read_secret


class WebhookChannel:
    """Channel that sends alarms as a POST with JSON, without redirects and proxies. Only the reply's status is read."""

    def __init__(self, url: str, timeout_s: float) -> None:
        parts = urlsplit(url)
        try:
            host, port = parts.hostname, parts.port
        except ValueError:
            host = None
        if (
            parts.scheme not in ("http", "https")
            or not host
            or not url.isascii()
            or not url.isprintable()
            or " " in url
        ):
            raise ConfigError("webhook is not a URL", hint="write https://HOST/PATH")
        if parts.username is not None:
            raise ConfigError("webhook has a user in its URL, which is not sent", hint="put a token into its path")
        self._tls, self._host, self._port = parts.scheme == "https", host, port
        self._target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._timeout_s = timeout_s
        #: For display: without the path, which may be a secret.
        self.destination = f"{parts.scheme}://{host}" + (f":{port}" if port else "")

    def send(self, message: Message) -> None:
        """Send a message. Raises OSError with the reason."""
        connection = self._open_connection()
        try:
            with limit_time(self._timeout_s, lambda: connection.sock):
                connection.request("POST", self._target, message.to_json(), {"Content-Type": "application/json"})
                status = connection.getresponse().status
        except http.client.HTTPException as error:
            raise OSError(f"{self.destination} does not speak HTTP: {type(error).__name__}") from None
        except ssl.SSLCertVerificationError as error:
            raise OSError(
                f"{self.destination}: its certificate is not accepted: {error.verify_message}; "
                "renew it, or let SSL_CERT_FILE name its authority"
            ) from None
        except OSError as error:
            raise OSError(f"{self.destination}: {error.strerror or error}") from None
        finally:
            connection.close()
        if not 200 <= status < 300:
            moved = ", which moves elsewhere: name that URL" if 300 <= status < 400 else ""
            raise OSError(f"{self.destination} answers {status}{moved}")

    def _open_connection(self) -> http.client.HTTPConnection:
        if self._tls:
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(self._host, self._port, timeout=self._timeout_s, context=context)
        return http.client.HTTPConnection(self._host, self._port, timeout=self._timeout_s)


class TooSlow(OSError):
    """The whole conversation with the server of a recipient took longer than its time limit."""


@contextlib.contextmanager
def limit_time(seconds: float, sock: Callable[[], socket.socket | None]) -> Iterator[None]:
    """Limit the time of a whole conversation: close the socket `sock()` when the time is up. Raises TooSlow.

    A socket's own time limit starts again with each byte that arrives.
    """
    over = threading.Event()

    def end_conversation() -> None:
        over.set()
        found = sock()
        if found is not None:
            with contextlib.suppress(OSError):
                found.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(seconds, end_conversation)
    timer.daemon = True
    timer.start()
    try:
        yield
    except Exception as error:
        # the socket's own limit may expire a moment earlier; errors of the kernel have a number
        if over.is_set() or (isinstance(error, TimeoutError) and error.errno is None):
            raise TooSlow(f"no answer within {seconds:g} s") from None
        raise
    finally:
        timer.cancel()
    if over.is_set():
        raise TooSlow(f"no answer within {seconds:g} s")


class CommandChannel:
    """Channel that runs a program of the operator, which gets the message on stdin.

    There is no shell. The program does not inherit the options of VENUS in the environment, which may hold secrets.
    """

    def __init__(self, command: str, timeout_s: float) -> None:
        try:
            self._arguments = shlex.split(command)
        except ValueError as error:
            raise ConfigError(f"command cannot be read: {error}", hint="quote as in a shell") from None
        if not self._arguments:
            raise ConfigError("command is empty", hint="write a program with its arguments")
        self._timeout_s = timeout_s
        self.destination = self._arguments[0]

    def send(self, message: Message) -> None:
        """Run the program. Raises OSError with the reason. The program's output may be endless and goes to stderr."""
        if shutil.which(self.destination) is None:
            raise OSError(f"{self.destination} is not an executable program")
        environ = {name: value for name, value in os.environ.items() if not name.upper().startswith("VENUS_")}
        process = subprocess.Popen(
            self._arguments,
            stdin=subprocess.PIPE,
            stdout=2,
            env=environ | {"VENUS_ALARM": message.subject},
            start_new_session=True,
        )
        try:
            process.communicate(message.to_json(), timeout=self._timeout_s)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise OSError(f"{self.destination} did not end within {self._timeout_s:g} s") from None
        if process.returncode:
            raise OSError(f"{self.destination} ended with exit code {process.returncode}")


@dataclass(frozen=True, slots=True, kw_only=True)
class MailChannel:
    """Channel that sends an e-mail by SMTP."""

    to: Sequence[str]
    sender: str
    server: str
    security: Literal["starttls", "tls", "none"]
    user: str
    password: str
    timeout_s: float

    def __post_init__(self) -> None:
        """Raise ConfigError for an invalid address: a line break in it would begin a header."""
        for address in (*self.to, self.sender):
            if "@" not in address or not address.isprintable() or any(c in address for c in " ,;<>"):
                raise ConfigError(f"{address!r} is not an e-mail address", hint="write NAME@DOMAIN")
        if self.user and self.security == "none":
            raise ConfigError("smtp_user is set, and smtp_security is none", hint="a password needs starttls or tls")

    @property
    def destination(self) -> str:
        """The addresses and the server, for display."""
        return f"{', '.join(self.to)} by {self.server}"

    def send(self, message: Message) -> None:
        """Send a message. Raises OSError with the reason."""
        opened: list[smtplib.SMTP] = []
        try:
            with limit_time(self.timeout_s, lambda: opened[0].sock if opened else None):
                self._deliver(message, opened)
        except smtplib.SMTPResponseException as error:
            answer = (
                error.smtp_error.decode(errors="replace") if isinstance(error.smtp_error, bytes) else error.smtp_error
            )
            raise OSError(f"{self.server} answers {error.smtp_code} {answer}".strip()) from None
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
        """Connect to the server and send the e-mail."""
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
        server.send_message(self._compose(message))
        server.quit()

    def _compose(self, message: Message) -> EmailMessage:
        mail = EmailMessage()
        mail["Subject"] = message.subject
        mail["From"] = self.sender
        mail["To"] = ", ".join(self.to)
        mail["Date"] = formatdate(localtime=False)
        mail["Message-ID"] = make_msgid(domain=self.sender.rpartition("@")[2])
        mail["Auto-Submitted"] = "auto-generated"
        mail.set_content(message.text + "\n")
        return mail


class AlarmChannel(Protocol):
    """Channel that delivers messages to one recipient."""

    @property
    def destination(self) -> str:
        """The destination, without secrets."""
        ...

    def send(self, message: Message) -> None:
        """Send a message within the recipient's time limit. Raises OSError with the reason."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class AlarmRecipient:
    """A configured recipient of alarms: its channel, and patterns of the kinds of alarms that it gets."""

    name: str
    channel: AlarmChannel
    patterns: Sequence[str] = ("*",)
    #: Kinds of alarms that no recipient gets.
    silent: frozenset[str] = field(default=frozenset())
    timeout_s: float = 10.0

    def should_receive(self, notice: Notification) -> bool:
        """Return whether this recipient gets a notification. An unreachable recipient's alarm goes only to others."""
        alarm = notice.alarm
        return self.should_receive_kind(alarm.rule) and not (
            alarm.rule == "alarm_unsent" and alarm.subject == self.name
        )

    def should_receive_kind(self, rule: str) -> bool:
        """Return whether this recipient gets alarms of this kind."""
        return rule not in self.silent and any(fnmatchcase(rule, pattern) for pattern in self.patterns)


def build_recipients(alarms: AlarmsSettings) -> list[AlarmRecipient]:
    """Build all configured recipients. Raises ConfigError, which names the option."""
    silent = frozenset(name for name, rule in alarms.rules.items() if not rule.send)
    return [
        AlarmRecipient(
            name=name,
            channel=_build_channel(name, found),
            patterns=found.rules,
            silent=silent,
            timeout_s=found.timeout_s,
        )
        for name, found in alarms.to.items()
    ]


def _build_channel(name: str, found: RecipientSettings) -> AlarmChannel:
    """Build the channel of a recipient. Raises ConfigError."""
    section = f"alarms.to.{name}"
    if any(c.isspace() for c in name) or not name.isprintable():
        raise ConfigError(f"[{section}]: its name has spaces", hint="name a recipient with one word")
    try:
        if found.channel == "webhook":
            url = found.webhook.get_secret_value() or _read_secret_line(found.webhook_file, f"{section}.webhook_file")
            return WebhookChannel(url, found.timeout_s)
        if found.channel == "command":
            return CommandChannel(found.command, found.timeout_s)
        password = found.smtp_password.get_secret_value()
        if found.smtp_password_file:
            password = _read_secret_line(found.smtp_password_file, f"{section}.smtp_password_file")
        return MailChannel(
            to=found.mail,
            sender=found.mail_from,
            server=found.smtp,
            security=found.smtp_security,
            user=found.smtp_user,
            password=password,
            timeout_s=found.timeout_s,
        )
    except ConfigError as error:
        known = str(error).startswith(section)
        raise error if known else ConfigError(f"{section}: {error}", hint=error.hint) from None


def _read_secret_line(file: str, option: str) -> str:
    """Return the first line of an option's file, which is the secret. Raises ConfigError."""
    line = read_secret(Path(file), option).decode(errors="replace").partition("\n")[0].strip()
    if not line:
        raise ConfigError(f"{option} {file} has no first line", hint="its first line is the secret")
    return line
