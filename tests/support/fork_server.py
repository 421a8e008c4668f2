"""Forks processes that run a module as `python -m` does, with everything imported.

`python -m tests.support.fork_server FD`, where FD is a socket. A message on it is one process: a JSON object, and with
it four descriptors: stdin, stdout, stderr, and a socket that is told the process id, and the status once the process
has ended. The server ends with the caller.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
from typing import Any

#: What most commands import before they do anything; without PySpark, which few need.
PRELOADED = (
    "venus.adapters.assess.run",
    "venus.adapters.dialects.mysql.source",
    "venus.adapters.dialects.postgresql.source",
    "venus.adapters.dialects.sqlite.source",
    "venus.adapters.targets.postgresql.apply.loop",
    "venus.adapters.targets.postgresql.load.full_sync",
    "venus.adapters.targets.registry",
    "venus.adapters.upper.capture",
    "venus.adapters.verify.losses",
    "venus.adapters.verify.repair",
    "venus.adapters.verify.run",
    "venus.broker.service.process",
    "venus.cli.app",
    "venus.cli.probes",
    "venus.cli.status",
    "grpc._channel",
    "psycopg2",
    "pymysql",
    "rich.table",
    "sqlalchemy.dialects.mysql.pymysql",
    "sqlalchemy.dialects.postgresql.psycopg2",
    "sqlalchemy.dialects.sqlite.pysqlite",
    "sqlite3",
    "typer.rich_utils",
)
MESSAGE_BYTES_MAX = 1 << 20


def serve(control: socket.socket) -> dict[str, Any] | None:
    """Fork as often as asked. Return in each fork with what it is to run; in the server None, when the caller ends."""
    ended, ends = os.pipe()
    os.set_blocking(ends, False)
    signal.set_wakeup_fd(ends, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    replies: dict[int, socket.socket] = {}
    while True:
        ready, _, _ = select.select([control.fileno(), ended], [], [])
        if ended in ready:
            os.read(ended, 4096)
            _tell_ended(replies)
        if control.fileno() not in ready:
            continue
        message, descriptors, _, _ = socket.recv_fds(control, MESSAGE_BYTES_MAX, 4)
        if not message:
            return None
        pid = os.fork()
        if pid == 0:
            _forget(control, ended, ends, *replies.values())
            _connect(descriptors)
            asked: dict[str, Any] = json.loads(message)
            return asked
        *streams, reply = descriptors
        for stream in streams:
            os.close(stream)
        replies[pid] = socket.socket(fileno=reply)
        replies[pid].sendall(f"{pid}\n".encode())


def _forget(*inherited: socket.socket | int) -> None:
    """Be no server any more."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for one in inherited:
        os.close(one) if isinstance(one, int) else one.close()


def _tell_ended(replies: dict[int, socket.socket]) -> None:
    """Reap whoever has ended, and tell who started it."""
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            pid, status = found
            with replies.pop(pid) as reply, contextlib.suppress(OSError):  # nobody may be left who wants to know
                reply.sendall(f"{status}\n".encode())


def _connect(descriptors: list[int]) -> None:
    """Make the caller's descriptors stdin, stdout and stderr."""
    for number, descriptor in enumerate(descriptors[:3]):
        os.dup2(descriptor, number)
    for descriptor in descriptors:
        os.close(descriptor)


def run(asked: dict[str, Any]) -> None:
    """Be the process that was asked for."""
    if asked["new_session"]:
        os.setsid()
    os.umask(asked["umask"])
    os.chdir(asked["cwd"])
    sys.path[0] = asked["cwd"]
    given = asked["environ"].get("PYTHONPATH", "").split(os.pathsep)
    sys.path[1:1] = [entry for entry in given if entry and entry not in sys.path]
    os.environ.clear()
    os.environ.update(asked["environ"])
    gc.enable()
    sys.argv = [asked["module"], *asked["arguments"]]
    runpy.run_module(asked["module"], run_name="__main__", alter_sys=True)


def main() -> None:
    """Import, then serve; a fork leaves `serve` as well, and ends as any interpreter does."""
    gc.disable()
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # as the command itself does before it imports gRPC
    for name in PRELOADED:
        importlib.import_module(name)
    gc.freeze()
    asked = serve(socket.socket(fileno=int(sys.argv[1])))
    if asked is not None:
        run(asked)


if __name__ == "__main__":
    main()
