"""Forks processes that run a module as `python -m` does, with everything imported.

`python -m tests.support.processes.fork_server FD ROOM`: FD is a socket, and ROOM is as long as the longest command line
of a process, which /proc shows in its place. A message on the socket requests one process: a JSON object with four
descriptors, for stdin, stdout, stderr, and a socket that receives the process id, and the status once it has ended. The
server ends with the caller. What `venus sync` and `venus demo` start is forked as well; such a fork has its own socket.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

from tests.support.processes import forked
from venus.cli import supervisor
from venus.cli.demo import servers

#: Modules that most commands import first; PySpark is not among them, because few need it.
PRELOADED = (
    "venus.adapters.assess.report",
    "venus.adapters.cutover.run",
    "venus.adapters.dialects.mysql.source",
    "venus.adapters.dialects.postgresql.source",
    "venus.adapters.dialects.postgresql.verify",
    "venus.adapters.dialects.sqlite.source",
    "venus.adapters.dialects.sqlite.verify",
    "venus.adapters.targets.relational.apply_session",
    "venus.adapters.targets.relational.full_sync",
    "venus.adapters.targets.postgresql.target",
    "venus.adapters.targets.postgresql.target",
    "venus.adapters.targets.registry",
    "venus.adapters.upper.capture",
    "venus.adapters.verify.repair",
    "venus.adapters.verify.run",
    "venus.broker.service.process",
    "venus.cli.app",
    "venus.cli.probes",
    "venus.cli.status",
    "venus.cli.install",
    "venus.rpc.channel",
    "venus.security.authority",
    "venus.security.certificate_files",
    "venus.security.secrets",
    "venus.spark.session",
    "venus.process.tracing",
    "alembic.command",
    "alembic.context",
    "grpc._channel",
    "numpy.ma",
    "psycopg2",
    "psycopg2.extras",
    "pymysql",
    "rich.table",
    "sqlalchemy.dialects.mysql.pymysql",
    "sqlalchemy.dialects.postgresql.psycopg2",
    "sqlalchemy.dialects.sqlite.pysqlite",
    "sqlite3",
    "typer._adapters",
    "typer.rich_utils",
    "uvicorn.lifespan.off",
)
MESSAGE_BYTES_MAX = 1 << 20


def serve(control: socket.socket) -> dict[str, Any] | None:
    """Fork on each request. Return in a fork its command; in the server None, when the caller ends."""
    ended, ends = os.pipe()
    os.set_blocking(ends, False)
    signal.set_wakeup_fd(ends, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    replies: dict[int, socket.socket] = {}
    controls = {control.fileno(): control}
    while True:
        ready, _, _ = select.select([*controls, ended], [], [])
        if ended in ready:
            os.read(ended, 4096)
            _report_ended_processes(replies)
        for asking in [controls[number] for number in ready if number != ended]:
            message, descriptors = _receive(asking)
            if not message and asking is control:
                return None
            if not message:  # a fork that could send requests has ended
                controls.pop(asking.fileno()).close()
                continue
            asked: dict[str, Any] = json.loads(message)
            pair = forked.control() if asked["starts_others"] else ()
            pid = os.fork()
            if pid == 0:
                _forget(ended, ends, *pair[:1], *controls.values(), *replies.values())
                _connect(descriptors)
                for theirs in pair[1:]:
                    forked.use(theirs)
                return asked
            controls |= {ours.fileno(): ours for ours in pair[:1]}
            for theirs in pair[1:]:
                theirs.close()
            replies[pid] = _confirm(pid, descriptors)


def _receive(asking: socket.socket) -> tuple[bytes, list[int]]:
    """Return a message with its descriptors; empty if the peer has gone."""
    try:
        message, descriptors, _, _ = socket.recv_fds(asking, MESSAGE_BYTES_MAX, 4)
    except ConnectionError:
        return b"", []
    return message, descriptors


def _confirm(pid: int, descriptors: list[int]) -> socket.socket:
    """Report the process id, and close all descriptors except the socket that receives the exit status."""
    *streams, reply = descriptors
    for stream in streams:
        os.close(stream)
    receiver = socket.socket(fileno=reply)
    with contextlib.suppress(OSError):  # the process may have been killed
        receiver.sendall(f"{pid}\n".encode())
    return receiver


def _forget(*inherited: socket.socket | int) -> None:
    """Reset the state of the server in a fork."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for one in inherited:
        os.close(one) if isinstance(one, int) else one.close()


def _report_ended_processes(replies: dict[int, socket.socket]) -> None:
    """Reap the processes that have ended, and send their status."""
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            pid, status = found
            with replies.pop(pid) as reply, contextlib.suppress(OSError):  # the receiver may have gone
                reply.sendall(f"{status}\n".encode())


def _connect(descriptors: list[int]) -> None:
    """Replace stdin, stdout and stderr by the caller's descriptors."""
    for number, descriptor in enumerate(descriptors[:3]):
        os.dup2(descriptor, number)
    for descriptor in descriptors:
        os.close(descriptor)


def _show(words: list[str]) -> None:
    """Write this command line over the server's own, for /proc."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])
    shown = "\0".join(words).encode()[: end - start - 1]
    ctypes.memmove(start, shown.ljust(end - start, b"\0"), end - start)


def run(asked: dict[str, Any]) -> None:
    """Run the requested command in this process."""
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
    if asked["starts_others"]:
        here = types.SimpleNamespace(**vars(subprocess) | {"Popen": forked.popen, "run": forked.run})
        for starter in (supervisor, servers):
            vars(starter)["subprocess"] = here
    _show([sys.executable, "-m", asked["module"], *asked["arguments"]])
    sys.argv = [asked["module"], *asked["arguments"]]
    runpy.run_module(asked["module"], run_name="__main__", alter_sys=True)


def _spare(imported: dict[str, types.ModuleType]) -> None:
    """Keep the interpreter from destroying the server's modules at its end.

    It would destroy each one, and the system would copy 90 MB page by page for that: 0.12 s for a command that takes
    0.05 s.
    """
    for kept in (imported, sys.path_importer_cache):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))  # never freed
    for name in imported.keys() - {"sys", "builtins"}:
        if sys.modules.get(name) is imported[name]:
            del sys.modules[name]


def main() -> None:
    """Import the modules, then serve; a fork returns from `serve` too, and ends as any interpreter does."""
    gc.disable()
    imported: dict[str, types.ModuleType] = {}
    atexit.register(_spare, imported)  # registered first, so called last
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # as the command itself does before it imports gRPC
    for name in PRELOADED:
        importlib.import_module(name)
    imported |= sys.modules
    gc.freeze()
    asked = serve(socket.socket(fileno=int(sys.argv[1])))
    if asked is not None:
        run(asked)


if __name__ == "__main__":
    main()
