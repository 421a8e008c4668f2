"""The log of a command: lines for people, or one JSON object a line for machines. No password in either."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, Literal

import typer

FORMATS = ("text", "json")
Format = Literal["text", "json"]
TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
#: These say too much.
CHATTY = ("sqlalchemy", "alembic", "asyncio", "grpc", "uvicorn", "aiosmtpd")
#: What every record has; anything else was said on purpose.
_ORDINARY = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}

LogFormatOption = Annotated[
    str, typer.Option("--log-format", metavar="text|json", help="How the log on stderr is written.")
]
Redact = Callable[[str], str]


class Redacting(logging.Formatter):
    """Lines for people, without passwords, in messages and tracebacks alike."""

    def __init__(self, redact: Redact) -> None:
        super().__init__(TEXT)
        self._redact = redact

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as a line, or several with a traceback."""
        return self._redact(super().format(record))


class JsonLines(Redacting):
    """One object a line: time (UTC), level, logger, process, message, and what was said besides, such as the cut."""

    def __init__(self, redact: Redact, role: str) -> None:
        super().__init__(redact)
        self._role = role

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as JSON."""
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line: dict[str, object] = {
            "time": at, "level": record.levelname, "logger": record.name, "role": self._role, "pid": record.process,
            "thread": record.threadName, "message": self._redact(record.getMessage()),
        }  # fmt: skip
        if record.exc_info:
            line["traceback"] = self._redact(self.formatException(record.exc_info))
        for name, value in vars(record).items():
            if name not in _ORDINARY and name not in line:
                line[name] = value if isinstance(value, int | float) else self._redact(str(value))
        return json.dumps(line, ensure_ascii=False)


def begin(level: int, log_format: str, role: str, redact: Redact) -> None:
    """Log to stderr from here on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines(redact, role) if log_format == "json" else Redacting(redact))
    logging.basicConfig(level=level, handlers=[handler], force=True)
    for chatty in CHATTY:
        logging.getLogger(chatty).setLevel(logging.WARNING)


def line(role: str, message: str, fields: dict[str, object]) -> str:
    """Return an error that has been redacted already as a line for machines."""
    record = logging.makeLogRecord(
        {"name": "venus", "levelname": "ERROR", "levelno": logging.ERROR, "msg": message} | fields
    )
    return JsonLines(str, role).format(record)
