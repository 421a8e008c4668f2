"""Measurement of transmission: one process sends, one receives, and both read the same monotonic clock.

For each `System`, the main process starts its server, a sender process and a receiver process, and asks them for one
round after the other. Rows are made before the clock starts.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Protocol

import psutil

ANSWER_TIMEOUT_S = 300.0

spawn = multiprocessing.get_context("spawn")


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """Size of one round: `batches` times `rows` rows."""

    number: int
    rows: int
    batches: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Seconds from the first send until all is received, and until all work is done; CPU seconds of the server."""

    received_s: float
    done_s: float
    server_cpu_s: float


class Sender(Protocol):
    """The sending client of a system, in a process of its own."""

    def prepare(self, wanted: Round) -> None:
        """Make the messages of a round."""

    def send(self, wanted: Round) -> None:
        """Send the messages, and return when the server has acknowledged every one."""

    def close(self) -> None: ...


class Receiver(Protocol):
    """The receiving client of a system, in a process of its own."""

    def receive(self, wanted: Round) -> None:
        """Return when every row of the round has arrived."""

    def close(self) -> None: ...


class System(Protocol):
    """A message system to measure: its server, and its sending and receiving client."""

    name: str
    #: Maximum rows of a round: a slow system would need minutes for a fast system's second.
    rows_max: int

    def missing(self) -> str:
        """Return the missing programs as text, empty if there are none."""

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def sender(self) -> Callable[[], Sender]:
        """Return a factory of the sender, which can be pickled and called in another process."""

    def receiver(self) -> Callable[[], Receiver]:
        """Return a factory of the receiver, which can be pickled and called in another process."""

    def pids(self) -> list[int]:
        """Return the server's processes."""

    def finish(self, wanted: Round) -> None:
        """Wait until the server has done all work for a received round."""


def _run_sender(make: Callable[[], Sender], pipe: Connection) -> None:
    """Run the sender's process: prepare and send each round that the main process requests."""
    sender = make()
    pipe.send("ready")
    while (wanted := pipe.recv()) is not None:
        sender.prepare(wanted)
        pipe.send("prepared")
        pipe.recv()
        started = time.monotonic()
        sender.send(wanted)
        pipe.send((started, time.monotonic()))
    sender.close()


def _run_receiver(make: Callable[[], Receiver], pipe: Connection) -> None:
    """Run the receiver's process: receive each round, and report when it was complete."""
    receiver = make()
    pipe.send("ready")
    while (wanted := pipe.recv()) is not None:
        pipe.send("prepared")
        receiver.receive(wanted)
        pipe.send(time.monotonic())
    receiver.close()


class SenderAndReceiver:
    """The processes of a system's sender and receiver, as the main process controls them."""

    def __init__(self, system: System) -> None:
        self._system = system
        self._ends: list[tuple[Any, Connection]] = []
        for work, make in ((_run_receiver, system.receiver()), (_run_sender, system.sender())):
            ours, theirs = spawn.Pipe()
            process = spawn.Process(target=work, args=(make, theirs), daemon=True)
            process.start()
            theirs.close()
            self._ends.append((process, ours))
            self._read_answer(ours)

    @staticmethod
    def _read_answer(pipe: Connection) -> Any:
        """Return the next answer of a client process. Raises TimeoutError."""
        if not pipe.poll(ANSWER_TIMEOUT_S):
            raise TimeoutError("a client process does not answer")
        return pipe.recv()

    def run(self, wanted: Round) -> Figures:
        """Let the clients transmit one round; return its figures."""
        receiver, sender = (pipe for _, pipe in self._ends)
        for pipe in (sender, receiver):
            pipe.send(wanted)
            self._read_answer(pipe)
        before = self._cpu_s()
        sender.send("go")
        started, _ = self._read_answer(sender)
        received = self._read_answer(receiver)
        self._system.finish(wanted)
        done = max(time.monotonic(), received)
        return Figures(received_s=received - started, done_s=done - started, server_cpu_s=self._cpu_s() - before)

    def _cpu_s(self) -> float:
        times = [psutil.Process(pid).cpu_times() for pid in self._system.pids()]
        return sum(each.user + each.system for each in times)

    def close(self) -> None:
        """End the processes."""
        for process, pipe in self._ends:
            pipe.send(None)
            process.join(30)


def measure(system: System, *, rows: int, batches: int, rounds: int, warm_up: int) -> Figures:
    """Measure rounds of this size; return the medians."""
    pair = SenderAndReceiver(system)
    try:
        figures = [pair.run(Round(number=n, rows=rows, batches=batches)) for n in range(warm_up + rounds)][warm_up:]
    finally:
        pair.close()
    return Figures(
        **{
            field.name: statistics.median(getattr(figure, field.name) for figure in figures)
            for field in dataclasses.fields(Figures)
        }
    )
