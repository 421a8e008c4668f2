"""The audit log, and the counters of refusals.

The log has one JSON line for each operator's command: when, who, from where, what, and how it ended. The log is
bounded: at FILE_BYTES_MAX the file is renamed to .1, .1 to .2 and so on; the oldest file is removed.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

NAME = "audit.jsonl"
FILE_BYTES_MAX = 10 << 20
FILES_MAX = 5
#: Limit of the characters of one text in a line.
TEXT_CHARS_MAX = 1000


class AuditLog:
    """Audit log file; thread-safe, and lines of several processes do not mix."""

    def __init__(self, path: Path, clock: Callable[[], datetime], *, file_bytes_max: int = FILE_BYTES_MAX) -> None:
        self.path = path
        self._clock = clock
        self._file_bytes_max = file_bytes_max
        self._lock = threading.Lock()
        #: Why the last line could not be written, "" if it was.
        self.problem = ""

    def write(self, *, who: str, where: str, what: str, result: str, **more: object) -> None:
        """Append a line. A failure is logged, and stays a problem until a line can be written."""
        line = {"when": self._clock().isoformat(timespec="milliseconds"), "who": who, "where": where, "what": what}
        text = json.dumps(_cut(line | more | {"result": result}), ensure_ascii=False, default=str) + "\n"
        with self._lock:
            try:
                self._append(text.encode())
                self.problem = ""
            except OSError as error:
                self.problem = f"{self.path}: {error.strerror}"
                logger.error("the audit log cannot be written: %s; the line was %s", self.problem, text.strip())  # noqa: TRY400

    def _append(self, content: bytes) -> None:
        """Append a line to the file, and first rotate a full file."""
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if _size(self.path) + len(content) > self._file_bytes_max:
            self._rotate()
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, content)
        finally:
            os.close(descriptor)

    def _rotate(self) -> None:
        """Rename the full file and the older ones; the oldest is overwritten."""
        for number in range(FILES_MAX - 1, 0, -1):
            older = self.path if number == 1 else self._rotated_path(number - 1)
            if older.exists():
                older.replace(self._rotated_path(number))

    def _rotated_path(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")


def _size(path: Path) -> int:
    """Return the size of a file, 0 if it cannot be read."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _cut(line: Mapping[str, Any]) -> dict[str, Any]:
    """Return the line with its texts truncated."""
    return {name: value[:TEXT_CHARS_MAX] if isinstance(value, str) else value for name, value in line.items()}


#: A connection without a call after this time counts as refused; gRPC ends a handshake after 10 s.
SILENT_S = 15.0
#: Connections that have made a call and are remembered; the oldest are forgotten first.
KNOWN_MAX = 4096
PENDING_MAX = 65536
#: The same refusal is written to the audit log once in this time, so that it cannot push everything else out.
REPEATED_S = 10.0


class Refusals:
    """Counters of refused calls and connections; thread-safe.

    TLS ends a connection without a valid certificate before VENUS sees a call: VENUS sees only the connection's
    beginning. An authenticated connection makes a call at once, as every client of VENUS does.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._pending: deque[float] = deque()
        self._known: OrderedDict[str, None] = OrderedDict()
        self._logged: OrderedDict[tuple[str, str], float] = OrderedDict()
        self._calls = self._connections = 0

    def on_connection_begin(self) -> None:
        """Record that a connection begins."""
        with self._lock:
            self._pending.append(self._monotonic())
            if len(self._pending) > PENDING_MAX:
                self._count_silent()
                while len(self._pending) > PENDING_MAX:
                    self._pending.popleft()
                    self._connections += 1

    def on_call(self, peer: str) -> None:
        """Record that a connection makes a call."""
        with self._lock:
            if peer in self._known:
                return
            self._known[peer] = None
            if len(self._known) > KNOWN_MAX:
                self._known.popitem(last=False)
            if self._pending:
                self._pending.popleft()

    def record_refusal(self, name: str, what: str) -> bool:
        """Count a refused call; return whether to write it to the audit log."""
        now = self._monotonic()
        with self._lock:
            self._calls += 1
            again = now - self._logged.get((name, what), float("-inf")) < REPEATED_S
            if not again:
                self._logged[name, what] = now
                self._logged.move_to_end((name, what))
                if len(self._logged) > KNOWN_MAX:
                    self._logged.popitem(last=False)
            return not again

    def counts(self) -> tuple[int, int]:
        """Return refused calls and refused connections since the start."""
        with self._lock:
            self._count_silent()
            return self._calls, self._connections

    def _count_silent(self) -> None:
        """Count the connections that made no call in time."""
        limit = self._monotonic() - SILENT_S
        while self._pending and self._pending[0] < limit:
            self._pending.popleft()
            self._connections += 1
