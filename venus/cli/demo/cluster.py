"""`venus demo --brokers 3`: the shop with brokers that replicate each other and are killed one after the other."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from venus.cli.demo.servers import DemoFailed, EtcdNode, find_free_ports, is_listening, wait_for
from venus.cli.demo.shop import build_shop
from venus.cli.demo.story import BUSY_S, Demo, Step, elapsed_s
from venus.errors import VenusError
from venus.rpc.admin import AdminClient
from venus.wire import broker_pb2

BUSINESS = "main"
CONFIGURATION = """\
[source]
url = "sqlite:///shop.db"

[targets.main]
url = "{main}"

[broker]
addresses = [{addresses}]

[capture]
heartbeat_s = 1.0
"""
BROKER = """\
[broker]
listen = "{address}"
http = "127.0.0.1:{http}"
data_dir = "data-{name}"
free_bytes_min = 67108864
review_after_s = 1.0

[cluster]
name = "demo"
broker_id = "{name}"
etcd = ["{etcd}"]
replicas = {replicas}
"""


class ClusterDemo(Demo):
    """The steps of `venus demo --brokers 3`: the shop, with brokers that replicate each other."""

    def __init__(self, home: Path, sizes: dict[str, int], say: Callable[[str], None], brokers: int) -> None:
        super().__init__(home, sizes, say)
        self._etcd = EtcdNode(home)
        self._names = [f"b{number}" for number in range(1, brokers + 1)]
        self._addresses: dict[str, str] = {}

    def steps(self) -> tuple[Step, ...]:
        """Return the title and the function of each step, in order."""
        count = len(self._names)
        return (
            (f"A shop in SQLite, an embedded PostgreSQL, etcd, {count} brokers", self._set_up),
            ("Assess, check and install triggers", self._install),
            ("Migrate while the shop is in use", self._migrate),
            ("Synchronise while the shop is in use", self._sync),
            ("Kill the leading broker (kill -9) while the shop is in use", self._kill_the_leader),
            ("Kill another one: the rest is no majority, and nothing is acknowledged", self._kill_the_majority),
            (
                "Under the policy availability the last broker continues; what may be lost is listed",
                self._continue_alone,
            ),
            ("Repair what was lost", self._repair),
            ("Damage rows at the target: verify finds and repairs them", self._verify),
        )

    def look_around(self) -> dict[str, str]:
        """Return commands with which a user can inspect the demo."""
        found = super().look_around()
        del found["target second"]
        return found | {
            "cluster": f"cd {shlex.quote(str(self._home))} && venus cluster status -c {self._names[0]}.toml"
        }

    def close(self) -> None:
        """Stop all processes of the demo."""
        try:
            super().close()
        finally:
            self._etcd.stop()

    # -- the steps -----------------------------------------------------------------------------------------------

    def _set_up(self) -> None:
        """Create the shop and the configurations; start PostgreSQL, etcd and the brokers."""
        started = time.monotonic()
        rows = build_shop(self._source, **self._sizes)
        self._postgres.start()
        self._etcd.start()
        grpc, http = find_free_ports(len(self._names)), find_free_ports(len(self._names))
        self._ports = [grpc[0], http[0]]
        self._addresses = {name: f"127.0.0.1:{port}" for name, port in zip(self._names, grpc, strict=True)}
        listed = ", ".join(f'"{address}"' for address in self._addresses.values())
        text = CONFIGURATION.format(main=self._postgres.url("shop"), addresses=listed)
        (self._home / "venus.toml").write_text(text)
        for name, port in zip(self._names, http, strict=True):
            text = BROKER.format(
                address=self._addresses[name], http=port, name=name, etcd=self._etcd.address, replicas=len(self._names)
            )
            (self._home / f"{name}.toml").write_text(text)
            self._start(name)
        self._say(f"  {rows:,} rows in 4 tables; ready after {time.monotonic() - started:.1f} s")

    def _kill_the_leader(self) -> None:
        """Kill the leading broker under load, measure the time to the next commit, and compare the databases."""
        started = time.monotonic()
        self._wait_for_replicas()
        self._workload.start()
        self._stay_busy(BUSY_S / 2)
        leader, before = self._find_leader(), self._queue_end()
        self._commands.kill(f"broker {leader}")
        killed = time.monotonic()
        wait_for(lambda: self._queue_end() > before and self._find_leader() != leader, "another leader", every_s=0.02)
        seconds = time.monotonic() - killed
        self._figures["from kill -9 of the leader to the next commit"] = f"{seconds:.1f} s"
        self._say(f"  {self._find_leader()} leads; the first commit behind it came {seconds:.1f} s after the kill")
        self._stay_busy(BUSY_S / 2)
        self._start(leader)
        self._stay_busy(BUSY_S / 2)
        self._workload.stop()
        self._wait_for_targets("main")
        self._compare("kill -9 of the leader under load", "shop", started)

    def _kill_the_majority(self) -> None:
        """Kill two of three brokers, check that the last one refuses writes, restart both, and compare."""
        started = time.monotonic()
        self._wait_for_replicas()
        last = next(name for name in self._names if name != self._find_leader())
        gone = [name for name in self._names if name != last]
        self._workload.start()
        for name in gone:
            self._commands.kill(f"broker {name}")
        refusal = wait_for(lambda: self._find_refusal(last), "the last broker to refuse")
        self._say(f"  {last} refuses to write: {refusal}")
        before = self._queue_end()
        self._stay_busy(BUSY_S / 2)  # the shop does not notice; its changes wait at the source
        if self._queue_end() != before:
            raise DemoFailed("a broker without a majority has acknowledged something")
        self._start(gone[0])
        back = time.monotonic()
        wait_for(lambda: self._queue_end() > before, "writes to continue", every_s=0.02)
        self._say(f"  {gone[0]} is back: writes continue after {time.monotonic() - back:.1f} s")
        self._start(gone[1])
        self._stay_busy(BUSY_S / 2)
        self._workload.stop()
        self._wait_for_targets("main")
        self._compare("two of three brokers killed and back", "shop", started)

    def _continue_alone(self) -> None:
        """Let one broker continue, kill it too, and start one that lacks the changes acknowledged in between."""
        self._wait_for_replicas()
        self._commands.run("cluster", "policy", BUSINESS, "availability", "-c", f"{self._names[0]}.toml")
        self._workload.start()
        leader = self._find_leader()
        first, third = (name for name in self._names if name != leader)
        for name in (first, third):
            self._commands.kill(f"broker {name}")
        wait_for(
            lambda: self._replicas_in_sync(leader) == {leader} and not self._find_refusal(leader),
            "the last broker to continue",
        )
        before = self._queue_end()
        self._stay_busy(BUSY_S / 2)
        wait_for(lambda: self._queue_end() > before, "commits by one broker alone")
        self._say(f"  {leader} continues alone; it is killed as well, and {first} comes back without its changes")
        self._commands.kill(f"broker {leader}")
        self._start(first)
        window = wait_for(self._find_loss_window, "the range that may be lost")
        self._say(
            f"  {first} leads; what may be lost: offsets {window.first_offset:,} to {window.end_offset - 1:,}, "
            f"{window.rows:,} changes in batches {window.first_batch:,} to {window.last_batch:,}"
        )
        self._figures["changes in the window of the unclean election"] = window.rows
        self._stay_busy(BUSY_S / 2)
        for name in (leader, third):
            self._start(name)
        self._workload.stop()
        self._wait_for_targets("main")

    def _repair(self) -> None:
        """Let `venus verify --repair` close the loss window of the unclean election, and compare the databases."""
        started = time.monotonic()
        self._wait_for_replicas()
        found = self._commands.run("verify", "--target", "main", "--repair", "--wait-s", "60")
        if not found["losses"]["closed"]:
            raise DemoFailed(f"the window stays open: {found['losses']['why']}", hint=f"see {self._home / 'venus.log'}")
        self._say(f"  {found['repair']['repaired']:,} rows differed and were shipped again; the window is closed")
        self._figures["rows repaired after the unclean election"] = found["repair"]["repaired"]
        self._wait_for_targets("main")
        self._compare("an unclean election, repaired", "shop", started)

    def _install(self) -> None:
        """Assess the source, and install the triggers twice."""
        self._assess()
        self._commands.run("install-triggers")
        self._prove_installed()

    def _migrate(self) -> None:
        """Load the target while the shop is in use."""
        self._workload.start()
        started = time.monotonic()
        report = self._commands.run("migrate", "--target", "main")
        self._record_load(report["rows"], elapsed_s(started))

    def _sync(self) -> None:
        """Apply the shop's changes with `venus sync`, and compare the databases."""
        started = time.monotonic()
        self._commands.start("sync", "sync", "--target", "main")
        self._stay_busy()
        self._workload.stop()
        self._wait_for_targets("main")
        self._compare("migrate and sync under load", "shop", started)

    # -- parts of steps ------------------------------------------------------------------------------------------

    def _start(self, name: str) -> None:
        """Start a broker, and wait until it listens."""
        self._commands.start(f"broker {name}", "broker", "-c", f"{name}.toml")
        port = int(self._addresses[name].rpartition(":")[2])
        wait_for(lambda: is_listening(port) or not self._commands.is_alive(f"broker {name}"), name)
        if not self._commands.is_alive(f"broker {name}"):
            raise DemoFailed(f"broker {name} ended", hint=f"see {self._home / 'venus.log'}")

    def _read_status(self, name: str) -> broker_pb2.BusinessStatus | None:
        """Read a broker's status of the business; None if the broker is gone or does not know it."""
        try:
            with closing(AdminClient(self._addresses[name], timeout_s=2.0)) as admin:
                return next(iter(admin.status(BUSINESS).businesses), None)
        except VenusError:
            return None

    def _read_statuses(self) -> list[broker_pb2.BusinessStatus]:
        """Read the status of the business from each running broker."""
        living = [name for name in self._names if f"broker {name}" in self._commands.running]
        return [found for name in living if (found := self._read_status(name)) is not None]

    def _find_leader(self) -> str:
        """Return the leader of the newest term that a broker reports; empty if none answers."""
        newest = max(self._read_statuses(), key=lambda found: found.replication.term, default=None)
        return newest.replication.leader if newest is not None else ""

    def _queue_end(self) -> int:
        """Return the highest end of the queue that any broker reports."""
        return max((found.next_offset for found in self._read_statuses()), default=0)

    def _replicas_in_sync(self, name: str) -> set[str]:
        """Return the replicas in sync, as the broker `name` reports them."""
        found = self._read_status(name)
        return set() if found is None else {replica.broker for replica in found.replication.replicas if replica.in_sync}

    def _find_loss_window(self) -> broker_pb2.LossWindow | None:
        """Return the loss window of an unclean election, once its end is known."""
        windows = [window for found in self._read_statuses() for window in found.replication.losses]
        return next((window for window in windows if window.HasField("end_offset")), None)

    def _find_refusal(self, name: str) -> str:
        """Return why a leading broker refuses writes; empty if it accepts them."""
        found = self._read_status(name)
        return found.replication.refusal if found is not None and found.replication.leader == name else ""

    def _pids(self) -> list[int]:
        own = super()._pids()
        return own + ([pid] if (pid := self._etcd.pid) else [])

    def _wait_for_replicas(self) -> None:
        """Wait until every replica is in sync."""

        def is_done() -> bool:
            """Return whether a leading broker reports every replica in sync."""
            leading = [found for found in self._read_statuses() if not found.replication.refusal]
            return any(sum(r.in_sync for r in found.replication.replicas) == len(self._names) for found in leading)

        wait_for(is_done, "every replica to be in sync")
