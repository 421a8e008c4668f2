"""Starts a peer's server on the loopback, in an empty folder, and waits until it answers."""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path

from bench.rounds import Round

START_TIMEOUT_S = 60.0


def free_port() -> int:
    """Return a free port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


class Folder:
    """Working folder of a peer, with its files and its running servers."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="venus-bench-"))
        self.processes: list[subprocess.Popen[bytes]] = []

    def run(self, *command: str | Path, port: int, user: str | None = None) -> None:
        """Start a server and wait for its port."""
        self.wait_for(self.begin(*command, user=user), port)

    def begin(self, *command: str | Path, user: str | None = None) -> subprocess.Popen[bytes]:
        """Start a server without waiting for its port."""
        with (self.path / f"{len(self.processes)}.log").open("wb") as log:
            process = subprocess.Popen(
                [str(part) for part in command], cwd=self.path, stdout=log, stderr=subprocess.STDOUT, user=user
            )
        self.processes.append(process)
        return process

    def wait_for(self, process: subprocess.Popen[bytes], port: int) -> None:
        """Wait for a server's port. Raises RuntimeError with the end of its output."""
        end = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
            except OSError as error:
                if process.poll() is not None or time.monotonic() > end:
                    log = self.path / f"{self.processes.index(process)}.log"
                    text = log.read_text("utf-8", "replace")[-2000:]
                    raise RuntimeError(f"{process.args!r} does not start: {text}") from error
                time.sleep(0.1)
            else:
                return

    def remove(self) -> None:
        """Stop the servers, newest first, and remove their files."""
        for process in reversed(self.processes):
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(self.path)


class PeerServer:
    """Base class of the peers, whose servers run in a temporary folder."""

    _folder: Folder | None = None

    def stop(self) -> None:
        """Stop the servers and remove their files."""
        if self._folder is not None:
            self._folder.remove()

    def pids(self) -> list[int]:
        """Return the servers' processes."""
        assert self._folder is not None
        return [process.pid for process in self._folder.processes]

    def finish(self, wanted: Round) -> None:
        """Do nothing: a peer has no full data."""


def row(number: int) -> bytes:
    """Return a message of 100 bytes."""
    return b"%010d" % number + b"x" * 90


def messages(batches: int, rows: int, *, envelope: bool) -> list[bytes]:
    """Return the messages of a round: a message for each row, or one for each batch."""
    if not envelope:
        return [row(n) for n in range(batches * rows)]
    return [b"".join(row(b * rows + n) for n in range(rows)) for b in range(batches)]
