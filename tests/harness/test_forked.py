"""A forked command behaves to its caller as one in a new interpreter does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.support.processes import forked

_MODULE = """
import atexit, found_by_path, json, os, sys
from pathlib import Path
atexit.register(lambda: print("ended in order"))
class Object:
    def __del__(self, write=os.write):
        write(1, b"taken apart at the end")
held = Object()
held.itself = held
mask = os.umask(0)
os.umask(mask)
print(json.dumps([
    __name__, __spec__.name, sys.modules["__main__"].__file__, sys.argv[1:], os.getcwd(), sys.path[0], mask,
    os.environ.get("GIVEN"), os.environ.get("TAKEN"), os.getpid() == os.getsid(0), sys.stdin.read(),
    Path("/proc/self/cmdline").read_text().rstrip("\\0").split("\\0"),
]))
sys.stderr.write("complaint")
sys.exit(7)
"""
_WAITS = """
import sys, time
print("ready", flush=True)
time.sleep(60)
"""
_STARTS = """
import os, sys
from venus.cli import supervisor
words = [sys.executable, "-m", "waits"]
with supervisor.subprocess.Popen(words, stdout=supervisor.subprocess.PIPE, text=True) as process:
    process.stdout.readline()
    print(process.pid, flush=True)
    sys.stdin.read()
    process.kill()
    print(process.wait(), flush=True)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "says.py").write_text(_MODULE)
    (tmp_path / "waits.py").write_text(_WAITS)
    (tmp_path / "starts.py").write_text(_STARTS)
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "found_by_path.py").touch()
    monkeypatch.setenv("TAKEN", "this")
    monkeypatch.delenv("TEST_NEW_INTERPRETERS", raising=False)
    return tmp_path


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", *words]


def start_waiting_process(folder: Path) -> subprocess.Popen[str]:
    """Start a command that waits; return it when it is waiting."""
    process = forked.popen(command("waits"), cwd=folder, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def test_a_forked_command_behaves_as_one_in_a_new_interpreter(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environ = {name: value for name, value in os.environ.items() if name != "TAKEN"} | {"GIVEN": "that"}
    environ["PYTHONPATH"] = str(folder / "more")

    def run_child(session: bool) -> tuple[int, bytes, bytes]:
        done = forked.run(
            command("says", "a b", "c"),
            cwd=folder,
            env=environ,
            input=b"asked\n",
            capture_output=True,
            timeout=60,
            start_new_session=session,
        )
        return done.returncode, done.stdout, done.stderr

    found = [run_child(session) for session in (False, True)]
    monkeypatch.setenv("TEST_NEW_INTERPRETERS", "1")
    environ["TEST_NEW_INTERPRETERS"] = "1"
    assert found == [run_child(session) for session in (False, True)]
    assert found[0][0] == 7
    assert b'"a b"' in found[0][1]
    assert b"asked" in found[0][1]
    assert found[0][1].endswith(b"ended in order\ntaken apart at the end")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_signals_and_their_codes(folder: Path, number: signal.Signals) -> None:
    with start_waiting_process(folder) as process:
        assert process.poll() is None
        process.send_signal(number)
        assert process.wait(30) == -number
    assert process.poll() == -number


def test_a_command_that_takes_too_long_is_killed(folder: Path) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        forked.run(command("waits"), cwd=folder, timeout=0.5)


def test_many_concurrent_commands_are_kept_apart(folder: Path) -> None:
    started = [start_waiting_process(folder) for _ in range(5)]
    for process in reversed(started[1:]):
        process.kill()
        assert process.wait(30) == -signal.SIGKILL
    assert started[0].poll() is None
    started[0].terminate()
    assert started[0].wait(30) == -signal.SIGTERM
    for process in started:
        process.communicate()


@pytest.mark.parametrize(
    ("environ", "new"),
    [({"LANG": "other"}, True), ({"PYTHONUTF8": "1"}, True), ({"PYTHONUNBUFFERED": "1"}, False), ({"X": "1"}, False)],
)
def test_options_read_at_the_start_of_an_interpreter_need_a_new_one(
    folder: Path, environ: dict[str, str], new: bool
) -> None:
    with forked.popen(command("waits"), cwd=folder, env=os.environ | environ, stdout=subprocess.DEVNULL) as process:
        process.kill()
    assert isinstance(process, forked.Popen) is not new


@pytest.mark.parametrize(("new", "own"), [("", False), ("1", True)])
def test_a_fork_starts_its_own_commands_at_the_same_server(folder: Path, new: str, own: bool) -> None:
    process = forked.popen(
        command("starts", "sync"),
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"TEST_NEW_INTERPRETERS": new},
    )
    assert process.stdout is not None
    started = psutil.Process(int(process.stdout.readline()))
    assert started.ppid() == (process.pid if own else psutil.Process(process.pid).ppid())
    assert process.communicate("", timeout=60)[0] == "-9\n"
    assert process.returncode == 0
