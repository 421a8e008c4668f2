"""An upper adapter in a process of its own that kills itself at the n-th step of the protocol.

Wrappers around source and producer count the steps (watched.py); the product has no hook. The processes are forked from
a server that has imported everything, so a fork takes milliseconds, and it dies by SIGKILL as the real process does.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from typing import Any

import psutil

from tests.fault.upper.watched import Hook, watched_producer, watched_source
from tests.support.processes.memory import peak_bytes
from tests.support.waiting import eventually
from venus.adapters.dialects.contract import Cut, Source, SourceCapture, SourceRegistry
from venus.adapters.dialects.registry import open_source
from venus.adapters.upper.capture import CaptureDependencies, connect_producer, run_capture
from venus.adapters.upper.ingest import IngestClient
from venus.config import Settings
from venus.errors import VenusError

#: A step is counted before and after each of these calls, which make something durable at the source or at the broker.
STEPS = {
    "raise_epoch",
    "write_heartbeat",
    "commit",
    "connect",
    "send_half",
    "wait_until_persisted",
    "decide",
    "rollback",
    "halt",
}
assert {*dir(SourceRegistry), *dir(SourceCapture), *dir(Cut), *dir(IngestClient)} >= STEPS, (
    "a step that was renamed would not be counted"
)
NEVER = 1 << 30
TIMEOUT_S = 120.0

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(
    [
        "tests.fault.upper.process",
        "venus.adapters.dialects.postgresql.source",
        "venus.adapters.dialects.sqlite.source",
    ]
)


def run_until_killed(settings: Settings, step: int = NEVER) -> tuple[bool, str]:
    """Capture until nothing is left, or until the process kills itself; return whether it ended, and at which step."""
    receiver, sender = _context.Pipe(duplex=False)
    process = _context.Process(target=_main, args=(settings.model_dump_json(), _source_url(settings), step, sender))
    process.start()
    sender.close()
    process.join(TIMEOUT_S)
    assert process.exitcode in (0, -signal.SIGKILL), process.exitcode
    at = ""
    try:
        while receiver.poll():
            at = receiver.recv()
    except EOFError:
        pass
    receiver.close()
    ended = process.exitcode == 0
    process.close()
    return ended, at


def run_and_measure_memory(settings: Settings) -> int:
    """Capture until nothing is left; return the peak of the process' resident memory in bytes."""
    receiver, sender = _context.Pipe(duplex=False)
    process = _context.Process(target=_measure_memory, args=(settings.model_dump_json(), _source_url(settings), sender))
    process.start()
    sender.close()
    peak = int(receiver.recv())
    process.join(TIMEOUT_S)
    return peak


def _measure_memory(settings_json: str, url: str, said: Any) -> None:
    _run(_settings_of(settings_json, url), lambda step: None)
    said.send(peak_bytes())


def _source_url(settings: Settings) -> str:
    return settings.source.url.get_secret_value()


def _settings_of(settings_json: str, url: str) -> Settings:
    settings = Settings.model_validate_json(settings_json)
    source = settings.source.model_copy(update={"url": type(settings.source.url)(url)})
    return settings.model_copy(update={"source": source})


def _run(settings: Settings, hook: Hook) -> None:
    stop = threading.Event()
    outside = CaptureDependencies(
        source=lambda s: _StoppingSource.wrap_source(watched_source(open_source(s), hook), stop),
        ingest=lambda s: watched_producer(connect_producer(s), hook),
    )
    run_capture(settings, stop, outside=outside)


def _main(settings_json: str, url: str, kill_at: int, steps: Any) -> None:
    passed = 0

    def hook(step: str) -> None:
        nonlocal passed
        if step.split(".")[1] not in STEPS:
            return
        if passed == kill_at:
            steps.send(step)
            os.kill(os.getpid(), signal.SIGKILL)
        passed += 1

    _run(_settings_of(settings_json, url), hook)


class Zombie:
    """An adapter process that freezes at a step, as on a suspended machine, until it is thawed."""

    def __init__(self, settings: Settings, step: str) -> None:
        self._receiver, sender = _context.Pipe(duplex=False)
        self._process = _context.Process(
            target=_freeze, args=(settings.model_dump_json(), _source_url(settings), step, sender)
        )
        self._process.start()
        sender.close()

    def wait_frozen(self) -> None:
        """Wait until the process is frozen at the step."""
        assert self._receiver.poll(TIMEOUT_S)
        assert self._receiver.recv() == "frozen"
        assert self._process.pid is not None
        process = psutil.Process(self._process.pid)
        eventually(lambda: process.status() == psutil.STATUS_STOPPED)

    def thaw(self) -> None:
        """Let the process continue."""
        assert self._process.pid is not None
        os.kill(self._process.pid, signal.SIGCONT)

    def error(self) -> str:
        """Return the class of the error with which the process ended."""
        assert self._receiver.poll(TIMEOUT_S)
        said: str = self._receiver.recv()
        return said

    def __enter__(self) -> Zombie:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.join(TIMEOUT_S)
        self._receiver.close()


def _freeze(settings_json: str, url: str, freeze_at: str, said: Any) -> None:
    def hook(step: str) -> None:
        if step == freeze_at:
            said.send("frozen")
            os.kill(os.getpid(), signal.SIGSTOP)

    try:
        _run(_settings_of(settings_json, url), hook)
        said.send("ended")
    except VenusError as e:
        said.send(type(e).__name__)


class _StoppingSource:
    """A source that asks the adapter to stop when there is nothing left to capture."""

    def __init__(self, source: Source, stop: threading.Event) -> None:
        self._source = source
        self.capture = _StoppingCapture(source.capture, stop)

    @classmethod
    def wrap_source(cls, source: Source, stop: threading.Event) -> Any:
        """Wrap a source."""
        return cls(source, stop)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)


class _StoppingCapture:
    def __init__(self, capture: SourceCapture, stop: threading.Event) -> None:
        self._capture = capture
        self._stop = stop

    def open_cut(self, fills: Any) -> Any:
        cut = self._capture.open_cut(fills)
        if cut is None and not fills:
            self._stop.set()
        return cut

    def __getattr__(self, name: str) -> Any:
        return getattr(self._capture, name)
