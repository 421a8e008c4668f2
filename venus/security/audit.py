"""The audit log: one JSON line for each operator's command: when, who, from where, what, and how it ended.

It is bounded: at FILE_BYTES_MAX the file is renamed to .1, .1 to .2 and so on; the last one goes.
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
#: Of one text in a line.
TEXT_CHARS_MAX = 1000


class Audit:
    """One log file; thread-safe, and a line of another process is never torn."""

    def __init__(self, path: Path, clock: Callable[[], datetime], *, file_bytes_max: int = FILE_BYTES_MAX) -> None:
        self.path = path
        self._clock = clock
        self._file_bytes_max = file_bytes_max
        self._lock = threading.Lock()
        #: Why the last line could not be written, or nothing.
        self.problem = ""

    def write(self, *, who: str, where: str, what: str, result: str, **more: object) -> None:
        """Append a line. What cannot be written is logged, and is a problem until something can be."""
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
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if _size(self.path) + len(content) > self._file_bytes_max:
            self._rotate()
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, content)
        finally:
            os.close(descriptor)

    def _rotate(self) -> None:
        for number in range(FILES_MAX - 1, 0, -1):
            older = self.path if number == 1 else self._numbered(number - 1)
            if older.exists():
                older.replace(self._numbered(number))

    def _numbered(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _cut(line: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value[:TEXT_CHARS_MAX] if isinstance(value, str) else value for name, value in line.items()}


#: A connection that has made no call after this long is counted as refused; gRPC ends a handshake after 10 s.
SILENT_S = 15.0
#: Connections that have made a call: by then they are known. Older ones are forgotten first.
KNOWN_MAX = 4096
PENDING_MAX = 65536
#: The same refusal is written to the audit log once in this time, so that it cannot push everything else out.
REPEATED_S = 10.0


class Refusals:
    """Counters; thread-safe.

    TLS ends a connection without a valid certificate before anybody of ours sees it. What is seen is that a connection
    began; one that proved itself makes a call at once, as every client of VENUS does.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._pending: deque[float] = deque()
        self._known: OrderedDict[str, None] = OrderedDict()
        self._told: OrderedDict[tuple[str, str], float] = OrderedDict()
        self._calls = self._connections = 0

    def begun(self) -> None:
        """Note that a connection begins."""
        with self._lock:
            self._pending.append(self._monotonic())
            if len(self._pending) > PENDING_MAX:
                self._count_silent()
                while len(self._pending) > PENDING_MAX:
                    self._pending.popleft()
                    self._connections += 1

    def connected(self, peer: str) -> None:
        """Note that a connection makes a call."""
        with self._lock:
            if peer in self._known:
                return
            self._known[peer] = None
            if len(self._known) > KNOWN_MAX:
                self._known.popitem(last=False)
            if self._pending:
                self._pending.popleft()

    def refused(self, name: str, what: str) -> bool:
        """Count a refused call; return whether it is to be written down."""
        now = self._monotonic()
        with self._lock:
            self._calls += 1
            again = now - self._told.get((name, what), float("-inf")) < REPEATED_S
            if not again:
                self._told[name, what] = now
                self._told.move_to_end((name, what))
                if len(self._told) > KNOWN_MAX:
                    self._told.popitem(last=False)
            return not again

    def counts(self) -> tuple[int, int]:
        """Return refused calls and refused connections since the start."""
        with self._lock:
            self._count_silent()
            return self._calls, self._connections

    def _count_silent(self) -> None:
        limit = self._monotonic() - SILENT_S
        while self._pending and self._pending[0] < limit:
            self._pending.popleft()
            self._connections += 1
