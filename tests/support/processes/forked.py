"""`subprocess` for the project's commands: each process is a fork of a server that has imported everything.

A command starts in a tenth of a second, and the imports cost a second of CPU only once. The rest is as with a new
interpreter: a process id, streams, signals, an exit code, the interpreter's own end, the command line in
`/proc/PID/cmdline`. Differences: the parent and `/proc/PID/environ` are the server's, and modules that the server has
imported are not destroyed at the end. Processes that a forked `venus sync` or `venus demo` starts are forks of the same
server. TEST_NEW_INTERPRETERS=1 starts a new interpreter each time.
"""

from __future__ import annotations

import atexit
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
_SERVER = "tests.support.processes.fork_server"
#: Longest command line that /proc shows.
ROOM = 4096
#: Commands that start other processes.
_STARTERS = {"sync", "demo"}
#: Variables that a fork could not apply: the interpreter or the C library reads them at its start.
_AT_START = ("PYTHON", "LANG", "LC_", "LD_", "MALLOC_", "TZ")
#: The module path may add modules, but cannot replace imported ones.
_OBEYED = ("PYTHONUNBUFFERED", "PYTHONPATH")


class _Server:
    """The fork server, which runs from the first process on."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._control: socket.socket | None = None

    def fork(self, asked: dict[str, Any], streams: tuple[int, int, int]) -> tuple[int, socket.socket]:
        """Fork a process; return its id, and the socket that will receive its exit status."""
        receiver, tells = socket.socketpair()
        with tells, self._lock:
            control = self._control or self._start_server()
            socket.send_fds(control, [json.dumps(asked).encode()], [*streams, tells.fileno()])
        return int(receiver.makefile("rb", buffering=0).readline()), receiver

    def use(self, control: socket.socket) -> None:
        """Use the server that runs already."""
        self._control = control

    def _start_server(self) -> socket.socket:
        theirs, self._control = control()
        atexit.register(self._control.close)
        with theirs:
            subprocess.Popen(
                [sys.executable, "-W", "ignore", "-m", _SERVER, str(theirs.fileno()), "-" * ROOM],
                cwd=ROOT,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env=os.environ | {"PYTHONUNBUFFERED": "1"},
            )
        return self._control


def control() -> tuple[socket.socket, socket.socket]:
    """Return the server's end and the client's."""
    theirs, ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    return theirs, ours


_server = _Server()
use = _server.use


class Popen(subprocess.Popen[Any]):
    """`subprocess.Popen` of `[sys.executable, "-m", MODULE, ...]`, which only starts and reaps differently.

    It overrides the methods that differ between systems in `subprocess` itself (Python 3.11).
    """

    _receiver: socket.socket

    def _execute_child(self, args: Any, *rest: Any) -> None:
        (_, preexec, _, _, cwd, environ, *_, p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite) = rest[:15]
        session = rest[-2]
        assert preexec is None, "a fork of another process cannot run it"
        assert args[:2] == [sys.executable, "-m"], args
        asked = {
            "module": args[2],
            "arguments": [os.fspath(word) for word in args[3:]],
            "cwd": os.fspath(cwd or Path.cwd()),
            "environ": dict(os.environ if environ is None else environ),
            "new_session": session,
            "umask": _umask(),
            "starts_others": not _STARTERS.isdisjoint(args),
        }
        own = [own if given == -1 else given for own, given in enumerate((p2cread, c2pwrite, errwrite))]
        try:
            self.pid, self._receiver = _server.fork(asked, (own[0], own[1], own[2]))
        finally:
            self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)  # type: ignore[attr-defined]
        self._child_created = True

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        self._receiver.setblocking(not wait_flags & os.WNOHANG)
        try:
            status = self._receiver.recv(64)
        except BlockingIOError:
            return 0, 0
        self._receiver.close()
        if not status:
            raise RuntimeError("the server that has forked it is gone")
        return self.pid, int(status)

    def _internal_poll(self, _deadstate: int | None = None, **_: Any) -> int | None:
        if self.returncode is None and self._waitpid_lock.acquire(blocking=False):  # type: ignore[attr-defined]
            try:
                pid, status = self._try_wait(os.WNOHANG)
                if pid:
                    self._handle_exitstatus(status)  # type: ignore[attr-defined]
            finally:
                self._waitpid_lock.release()  # type: ignore[attr-defined]
        return self.returncode


def _umask() -> int:
    """Return the umask without setting it, which other threads would notice."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("Umask:"))
    return int(line.split()[1], 8)


def popen(command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
    """Start a command of the project; the options are those of `subprocess.Popen`."""
    return (subprocess.Popen if _new_interpreter(options.get("env")) else Popen)(list(command), **options)


def run(
    command: Sequence[str],
    *,
    timeout: float | None = None,
    capture_output: bool = False,
    input: Any = None,
    check: bool = False,
    **options: Any,
) -> subprocess.CompletedProcess[Any]:
    """Run a command to its end; the options are those of `subprocess.run`."""
    if capture_output:
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    if input is not None:
        options["stdin"] = subprocess.PIPE
    with popen(command, **options) as process:
        try:
            out, err = process.communicate(input, timeout=timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(process.args, process.returncode, out, err)
    if check:
        done.check_returncode()
    return done


def _new_interpreter(environ: Mapping[str, str] | None) -> bool:
    """Return whether a new interpreter is needed: it is requested, or the environment affects its start."""
    if os.environ.get("TEST_NEW_INTERPRETERS"):
        return True
    given = os.environ if environ is None else environ
    return any(
        given.get(name) != os.environ.get(name)
        for name in {*given, *os.environ}
        if name.startswith(_AT_START) and name not in _OBEYED
    )
