"""A POST with JSON. No redirects, no proxies; the answer is read no further than its status."""

from __future__ import annotations

import http.client
import ssl
from urllib.parse import urlsplit

from venus.alarms.deadline import within
from venus.alarms.message import Message
from venus.errors import ConfigError


class Webhook:
    """A URL."""

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
        #: For people: without the path, which may be a secret.
        self.where = f"{parts.scheme}://{host}" + (f":{port}" if port else "")

    def send(self, message: Message) -> None:
        """Send it. Raises OSError with what was wrong."""
        connection = self._connection()
        try:
            with within(self._timeout_s, lambda: connection.sock):
                connection.request("POST", self._target, message.json(), {"Content-Type": "application/json"})
                status = connection.getresponse().status
        except http.client.HTTPException as error:
            raise OSError(f"{self.where} does not speak HTTP: {type(error).__name__}") from None
        except ssl.SSLCertVerificationError as error:
            raise OSError(
                f"{self.where}: its certificate is not accepted: {error.verify_message}; "
                "renew it, or let SSL_CERT_FILE name its authority"
            ) from None
        except OSError as error:
            raise OSError(f"{self.where}: {error.strerror or error}") from None
        finally:
            connection.close()
        if not 200 <= status < 300:
            moved = ", which moves elsewhere: name that URL" if 300 <= status < 400 else ""
            raise OSError(f"{self.where} answers {status}{moved}")

    def _connection(self) -> http.client.HTTPConnection:
        if self._tls:
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(self._host, self._port, timeout=self._timeout_s, context=context)
        return http.client.HTTPConnection(self._host, self._port, timeout=self._timeout_s)
