"""A whole pipeline as a user runs it: commands as subprocesses in a folder of their own, with all output kept.

At the end of a test `close` stops all processes and checks every line of output: no traceback, and none of the
passwords in the configuration.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.ports import free_ports
from tests.support.processes import forked
from tests.support.waiting import eventually
from venus.adapters.assess.report import measure_parts
from venus.adapters.targets.registry import open_target
from venus.cli.demo.servers import is_listening
from venus.cli.probes import read_broker, read_overview, read_source
from venus.cli.status import document
from venus.config import load
from venus.errors import VenusError

TIMEOUT_S = 240.0
#: Obstacles in a rehearsal that pass by themselves; if there are no others, the command waits for their end.
_PASSING = re.compile(
    r"undecided batch|behind the broker|waiting at the source|and no process |catches up at the target"
)
PASSWORD = "s3cret/Of@Story"
#: The password in its URL-encoded form.
QUOTED = "s3cret%2FOf%40Story"

CONFIGURATION = """\
[source]
url = "{source}"
{source_options}
{targets}
[broker]
listen = "127.0.0.1:{grpc}"
http = "127.0.0.1:{http}"
data_dir = "data"
free_bytes_min = 0
review_after_s = 1.0

[capture]
heartbeat_s = 1.0
"""


def slowdown_by_others() -> float:
    """Return the factor by which other load on this machine currently slows down a piece of work."""
    return max(1.0, sum(measure_parts(time.perf_counter)) / sum(measure_parts(time.process_time)))


def with_password(url: str) -> str:
    """Add the password to the URL of a server that requires none."""
    return url.replace("://postgres@", f"://postgres:{QUOTED}@")


@dataclass(slots=True)
class Answer:
    """Output and exit code of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Return its JSON document."""
        return json.loads(self.out)


@dataclass(slots=True)
class Pipeline:
    """A configuration, its processes and their output."""

    folder: Path
    source: str
    targets: dict[str, str]
    source_options: str = ""
    target_options: str = ""
    ports: list[int] = field(default_factory=lambda: free_ports(2))
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    environ: dict[str, str] = field(default_factory=dict)
    #: Whether /proc shows each process with its own command line.
    new_interpreters: bool = False

    def configure(self) -> None:
        """Write venus.toml."""
        targets = "\n".join(
            f'[targets.{name}]\nurl = "{url}"\n{self.target_options}\n' for name, url in self.targets.items()
        )
        text = CONFIGURATION.format(
            source=self.source,
            source_options=self.source_options,
            targets=targets,
            grpc=self.ports[0],
            http=self.ports[1],
        )
        (self.folder / "venus.toml").write_text(text)

    @property
    def log(self) -> Path:
        """Return the path of the log with all output."""
        return self.folder / "said.log"

    @property
    def broker(self) -> str:
        """Return the broker's address."""
        return f"127.0.0.1:{self.ports[0]}"

    def venus(self, *arguments: str, code: int | tuple[int, ...] = 0, environ: dict[str, str] | None = None) -> Answer:
        """Run a command to its end."""
        done = self._run(
            self._command(*arguments),
            cwd=self.folder,
            env=self._environ() | (environ or {}),
            timeout=TIMEOUT_S,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
        )
        with self.log.open("a") as log:
            log.write(f"$ venus {' '.join(arguments)}\n{done.stdout}{done.stderr}=> {done.returncode}\n")
        expected = (code,) if isinstance(code, int) else code
        assert done.returncode in expected, (
            f"venus {' '.join(arguments)} => {done.returncode}\n{done.stdout}{done.stderr}"
        )
        return Answer(done.returncode, done.stdout, done.stderr)

    def ask(self, *arguments: str, code: int | tuple[int, ...] = 0) -> Any:
        """Run a command with --json and return its document."""
        return self.venus(*arguments, "--json", code=code).json

    def start(self, name: str, *arguments: str, module: str = "venus.cli") -> None:
        """Start a command in the background; `module` is the module that runs it."""
        with self.log.open("ab") as log:
            log.write(f"$ venus {' '.join(arguments)} &\n".encode())
            log.flush()
            self.running[name] = self._popen(
                self._command(*arguments, module=module),
                cwd=self.folder,
                env=self._environ(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def edit_processes(self, edits: Sequence[object]) -> None:
        """Start every process with these edits of the product's code (tests/simulation/patching.py)."""
        folder = self.folder / "edits"
        folder.mkdir()
        (folder / "sitecustomize.py").write_text(
            f"import sys\nsys.path.insert(0, {str(forked.ROOT)!r})\n"
            "from tests.simulation.patching import SourceEdit, apply_edits\n"
            f"held = apply_edits({tuple(edits)!r})\nheld.__enter__()\n"
        )
        self.environ["PYTHONPATH"] = ":".join(filter(None, (str(folder), self.environ.get("PYTHONPATH"))))
        self.new_interpreters = True

    def until_said(self, text: str, what: str) -> None:
        """Wait until a running process has written this text."""
        self.until(lambda: text in self.log.read_text(), what)

    def start_broker(self) -> None:
        """Start the broker and wait until it listens."""
        self.start("broker", "broker")
        self.until(lambda: is_listening(self.ports[0]) or self.running["broker"].poll() is not None, "the broker")
        assert self.running["broker"].poll() is None, self.tail()

    def kill(self, name: str) -> None:
        """Kill a process with SIGKILL."""
        process = self.running.pop(name)
        process.kill()
        process.wait(TIMEOUT_S)

    def stop(self, name: str) -> int:
        """Send SIGTERM and return the exit code."""
        process = self.running.pop(name)
        process.send_signal(signal.SIGTERM)
        return process.wait(TIMEOUT_S)

    def status(self) -> Any:
        """Return the status as the command computes it, but in this process, because waits read it often."""
        return document(read_overview(load(self.folder / "venus.toml")))

    def until_ok(self) -> None:
        """Wait until `venus status` says that all is well."""

        def is_ok() -> bool:
            answer = self.venus("status", code=(0, 1))
            return answer.code == 0 and answer.out.splitlines()[-1].startswith("OK: ")

        self.until(is_ok, "a healthy pipeline", every_s=0.5)

    def wait_until_connected(self, *targets: str) -> None:
        """Wait until the broker knows the process that captures, and those that apply to these targets."""
        settings = load(self.folder / "venus.toml")
        groups = {f"{settings.business.name}/{name}" for name in targets}

        def are_connected() -> bool:
            broker = read_broker(settings)
            return bool(broker.producer) and groups <= {c.group for c in broker.consumers if c.connected}

        self.until(are_connected, f"capture and {targets} to be connected", every_s=0.1)

    def wait_until_caught_up(self, *targets: str) -> None:
        """Wait until the log at the source is empty and the targets have applied everything.

        It checks from source to target: a cut that leaves the source's log during the check is then found at the
        broker, as a half message or committed.
        """
        settings = load(self.folder / "venus.toml")

        def has_caught_up() -> bool:
            source = read_source(settings)
            if source.error or sum(table.log_rows for table in source.tables):
                return False
            broker = read_broker(settings)
            if broker.error or broker.halves:
                return False
            return all(open_target(settings, name).read_view().offset >= broker.next_offset for name in targets)

        self.until(has_caught_up, f"{targets} to catch up", every_s=0.1)

    def until(self, condition: Callable[[], object], what: str, *, every_s: float = 0.05) -> None:
        """Wait for a condition."""
        eventually(condition, lambda: f"{what}\n{self.tail()}", timeout_s=TIMEOUT_S, every_s=every_s)

    def until_passes(self, check: Callable[[], None]) -> None:
        """Wait until a check passes; for checks of several places, which show a change at different times."""
        end = time.monotonic() + TIMEOUT_S
        while True:
            try:
                return check()
            except AssertionError:
                if time.monotonic() > end:
                    raise
            time.sleep(0.2)

    def rehearse(self, *command: str) -> Any:
        """Rehearse a switch that an obstacle forbids; repeat it while any obstacle can pass by itself."""
        found: list[Any] = []

        def is_settled() -> bool:
            found[:] = [self.ask(*command, "--rehearse", code=3)]
            return not any(_PASSING.search(block) for block in found[0]["blocks"])

        self.until(is_settled, "a rehearsal without what only takes time", every_s=0.2)
        return found[0]

    def tail(self) -> str:
        """Return the end of the log."""
        return self.log.read_text()[-6000:] if self.log.exists() else ""

    def close(self) -> None:
        """Stop all processes, the broker last; then check that the counters add up, and all output."""
        for name in sorted(self.running, key=lambda n: n == "broker"):
            self.running[name].send_signal(signal.SIGTERM)
            try:
                self.running[name].wait(30.0)
            except subprocess.TimeoutExpired:
                self.running[name].kill()
                self.running[name].wait()
        self.check_counters()
        said = self.log.read_text() if self.log.exists() else ""
        kept = "".join(path.read_text() for path in (self.folder / "state").rglob("*.log"))
        for secret in (PASSWORD, QUOTED):
            assert secret not in said + kept
        assert "Traceback" not in said, said[said.index("Traceback") - 500 :][:4000]
        assert not kept, kept

    def check_counters(self) -> None:
        """Check that every change below a target's offset is accounted for; reads only the targets."""
        try:
            settings = load(self.folder / "venus.toml")
        except VenusError:
            return  # a test of broken configurations, in which no process ever ran
        for name in settings.targets:
            assert open_target(settings, name).read_view().unaccounted_rows == 0, name

    @property
    def _run(self) -> Callable[..., subprocess.CompletedProcess[Any]]:
        return subprocess.run if self.new_interpreters else forked.run

    @property
    def _popen(self) -> Callable[..., subprocess.Popen[Any]]:
        return subprocess.Popen if self.new_interpreters else forked.popen

    @staticmethod
    def _command(*arguments: str, module: str = "venus.cli") -> list[str]:
        return [sys.executable, "-m", module, *arguments]

    def _environ(self) -> dict[str, str]:
        own = {name: value for name, value in os.environ.items() if not name.upper().startswith("VENUS_")}
        return own | self.environ | {"XDG_STATE_HOME": str(self.folder / "state"), "PYTHONUNBUFFERED": "1"}
