"""Brokers in processes forked from a server that has imported everything, so that a start takes a tenth of the time.

They run the product's own `serve`. A test may pass a preparation that the new process runs first, such as a clock that
jumps or a record of synced bytes; the product has no hook for it.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil

from venus.broker.service.process import Addresses, serve
from venus.config import Settings
from venus.errors import Unavailable, VenusError

START_S = 120.0
STOP_S = 60.0
SUPERVISED_S = 120.0
Preparation = Callable[[], None]

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.support.brokers.forked_brokers", "tests.support.engines.power"])


class ForkedBroker:
    """`serve` in a forked process; its output goes to `log`, and its process id to `begun` before anything else."""

    def __init__(
        self,
        chosen: Settings,
        log: Path,
        preparations: Sequence[Preparation] = (),
        begun: Callable[[int], None] = lambda _: None,
    ) -> None:
        self.log = log
        said, says = _context.Pipe(duplex=False)
        go, begin = _context.Pipe(duplex=False)
        arguments = (chosen.model_dump_json(), log, preparations, says, go)
        self._process = _context.Process(target=_main, args=arguments)
        self._process.start()
        says.close()
        go.close()
        begun(self.pid)
        begin.send(True)
        begin.close()
        try:
            assert said.poll(START_S), "the broker did not start in time"
            self.address, self.http_address = said.recv()
        except EOFError:
            self._process.join(STOP_S)
            raise DidNotStart(self.output(), self.exit_code) from None
        finally:
            said.close()

    @property
    def pid(self) -> int:
        """Return its process id."""
        assert self._process.pid is not None
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Return whether its process is there."""
        return self._process.is_alive()

    @property
    def exit_code(self) -> int | None:
        """Return its exit code, or None while it runs."""
        return self._process.exitcode

    def output(self, nbytes: int = 4000) -> str:
        """Return the end of its log, to which earlier processes may have written."""
        return self.log.read_text("utf-8", "replace")[-nbytes:] if self.log.exists() else ""

    def send(self, number: signal.Signals) -> None:
        """Send a signal."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """Send SIGKILL."""
        with contextlib.suppress(ProcessLookupError):  # the process has just ended
            self.send(signal.SIGKILL)
        self._process.join(STOP_S)

    def stop(self) -> int | None:
        """Send SIGTERM; return the exit code."""
        if self.is_alive:
            self.send(signal.SIGTERM)
        self._process.join(STOP_S)
        assert not self.is_alive, f"it does not end: {self.output()}"
        return self.exit_code

    def limit_files(self, nbytes: int | None) -> None:
        """Limit the size of the process's files, as a full disk or a quota does."""
        most = psutil.RLIM_INFINITY
        psutil.Process(self.pid).rlimit(psutil.RLIMIT_FSIZE, (most if nbytes is None else nbytes, most))


def start_supervised(*arguments: Any) -> ForkedBroker:
    """Start a broker again until it serves, as a supervisor does: a broker that finds no etcd exits for a retry."""
    end = time.monotonic() + SUPERVISED_S
    while True:
        try:
            return ForkedBroker(*arguments)
        except DidNotStart as refused:
            if refused.exit_code != Unavailable.exit_code or time.monotonic() > end:
                raise


class DidNotStart(AssertionError):
    """A broker ended before it served; the text is its output."""

    def __init__(self, said: str, exit_code: int | None) -> None:
        super().__init__(said)
        self.exit_code = exit_code


def _main(settings: str, log: Path, preparations: Sequence[Preparation], says: Any, go: Any) -> None:
    """Serve in the forked process: redirect its output to the log, run the preparations, then the broker."""
    go.recv()
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for stream in (1, 2):
        os.dup2(out, stream)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    for prepare in preparations:
        prepare()

    def announce(addresses: Addresses) -> None:
        says.send((addresses.grpc, addresses.http))
        says.close()

    try:
        serve(Settings.model_validate_json(settings), announce)
    except VenusError as error:
        sys.stderr.write(f"venus broker: {error}\n")
        sys.stderr.flush()
        os._exit(error.exit_code)
