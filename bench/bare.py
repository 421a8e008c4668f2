"""Rate of gRPC alone for one small message at a time: an upper limit for every broker that uses gRPC.

`python -m bench.bare [--seconds 3] [--bytes 150]`. A server of `grpc.aio` in a process of its own answers each frame of
a stream with one byte; if it is durable, it first appends the frame to a file and syncs that. Nothing is decoded,
checked, stored by key or handed to another thread. The client is the stub that VENUS's adapters use. A client without
gRPC's Python threads (10 thread switches a frame in place of 22) takes the same CPU, and so does a Unix socket in place
of TCP: the cost of a frame is that of gRPC's core.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import queue
import struct
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, cast

import grpc

from bench.processes import free_port
from bench.usage import Usage

_METHOD, _FAN_METHOD = "/bench.Bare/Answer", "/bench.Bare/Fan"
_WARM_UP_S = 0.5
_STAMP = struct.Struct("<d")


@dataclass(frozen=True, slots=True, kw_only=True)
class BareRates:
    """Rate of frames that are sent and answered, and the CPU milliseconds of client and server for one."""

    per_s: float
    cpu_ms: float


async def _serve(port: int, path: Path | None, ready: Connection) -> None:
    """Run a gRPC server that answers each frame of a stream, after a sync to the file if given, and fans out frames."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND) if path else None

    async def answer_frames(
        frames: AsyncIterator[bytes], _: grpc.aio.ServicerContext[bytes, bytes]
    ) -> AsyncIterator[bytes]:
        async for frame in frames:
            if file is not None:
                os.write(file, frame)
                os.fdatasync(file)
            yield b"."

    server = grpc.aio.server()
    handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
        "Answer": grpc.stream_stream_rpc_method_handler(answer_frames),
        "Fan": grpc.unary_stream_rpc_method_handler(_fan_out),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench.Bare", handlers),))
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    ready.send(os.getpid())
    await server.wait_for_termination()


async def _fan_out(first: bytes, _: grpc.aio.ServicerContext[bytes, bytes]) -> AsyncIterator[bytes]:
    """Send a frame with its time at each tick; the ticks of all streams are the same."""
    every_s, nbytes = _STAMP.unpack(first[: _STAMP.size])[0], int(first[_STAMP.size :])
    at = (time.monotonic() // every_s + 1) * every_s
    while True:
        await asyncio.sleep(max(0.0, at - time.monotonic()))
        yield _STAMP.pack(at) + bytes(nbytes)
        at += every_s


def _run_server(port: int, path: Path | None, ready: Connection) -> None:
    asyncio.run(_serve(port, path, ready))


@contextmanager
def run_server(path: Path | None) -> Iterator[tuple[int, int]]:
    """Run a server in a process of its own; yield its port and process id."""
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    port = free_port()
    process = multiprocessing.get_context("spawn").Process(target=_run_server, args=(port, path, theirs), daemon=True)
    process.start()
    try:
        yield port, ours.recv()
    finally:
        process.kill()
        process.join()


def measure_bare(*, nbytes: int, seconds: float, durable: bool, pause_s: float = 0.0) -> BareRates:
    """Send frames of this size, each after the answer to the one before; return the rates."""
    frames: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="venus-bench-")))
        port, pid = stack.enter_context(run_server(home / "log" if durable else None))
        channel = stack.enter_context(grpc.insecure_channel(f"127.0.0.1:{port}"))
        answers: Iterator[bytes] = channel.stream_stream(_METHOD)(cast("Any", iter(frames.get, None)))
        _send_frames(frames, answers, bytes(nbytes), _WARM_UP_S, pause_s)
        before, began = Usage.of([pid, os.getpid()]), time.monotonic()
        count = _send_frames(frames, answers, bytes(nbytes), seconds, pause_s)
        used, took = Usage.of([pid, os.getpid()]).since(before), time.monotonic() - began
        frames.put(None)
    return BareRates(per_s=count / took, cpu_ms=used.cpu_s / count * 1000)


def fan_out(*, streams: int, nbytes: int, every_s: float, seconds: float) -> list[float]:
    """Send frames on all streams at the same ticks; return the milliseconds of each from server to client."""
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    with run_server(None) as (port, _):
        arguments = (port, streams, _STAMP.pack(every_s) + str(nbytes).encode(), seconds, theirs)
        clients = multiprocessing.get_context("spawn").Process(target=_read_all, args=arguments, daemon=True)
        clients.start()
        found: list[float] = ours.recv()
        clients.join()
    return found


def _read_all(port: int, streams: int, first: bytes, seconds: float, results: Connection) -> None:
    """Read the streams of the fan-out in threads for a time; send back the latencies of their frames."""
    found: list[float] = []
    began = time.monotonic() + _WARM_UP_S

    def read_stream() -> None:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            frames: Iterator[bytes] = channel.unary_stream(_FAN_METHOD)(cast("Any", first))
            for frame in frames:
                now, (at,) = time.monotonic(), _STAMP.unpack(frame[: _STAMP.size])
                if at > began:
                    found.append(1000 * (now - at))
                if at > began + seconds:
                    return

    threads = [threading.Thread(target=read_stream) for _ in range(streams)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    results.send(found)


def _send_frames(
    frames: queue.SimpleQueue[bytes | None], answers: Iterator[bytes], frame: bytes, seconds: float, pause_s: float
) -> int:
    """Send frames, each after the answer to the one before, until the time is over; return their number."""
    count, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        frames.put(frame)
        next(answers)
        count += 1
        if pause_s:
            time.sleep(pause_s)
    return count


def main() -> None:
    """Print the rates of a server in memory and of one that syncs each frame."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--bytes", type=int, default=150)
    chosen = parser.parse_args()
    for durable in (False, True):
        found = measure_bare(nbytes=chosen.bytes, seconds=chosen.seconds, durable=durable)
        paced = measure_bare(nbytes=chosen.bytes, seconds=chosen.seconds, durable=durable, pause_s=0.01)
        what = "durable" if durable else "in memory"
        print(
            f"{what}: {found.per_s:,.0f} frames and answers a second one at a time, {found.cpu_ms:.2f} ms of CPU each; "
            f"one every 10 ms: {paced.cpu_ms:.2f} ms of CPU each"
        )


if __name__ == "__main__":
    main()
