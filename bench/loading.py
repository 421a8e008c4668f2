"""Set-up of the load benchmark: an embedded PostgreSQL, a broker that holds one table, any number of targets."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil

from bench.processes import ENVIRONMENT, EmbeddedPostgres, free_port, process_cpu_s, server_cpu_s, venus_command
from bench.shapes import Shape
from bench.venus_transmission import BUSINESS

WORKERS = 2


class LoadSite:
    """A folder with an embedded server, a broker that holds one table, and any number of targets.

    With `reach` the brokers are external, and the business has the name that the other figures use.
    """

    def __init__(self, folder: Path, postgres: EmbeddedPostgres, shape: Shape, rows: int, *, reach: str = "") -> None:
        self._folder = folder
        self.postgres = postgres
        self.shape = shape
        self.rows = rows
        self._targets: list[str] = []
        self._reach = reach
        self._address = f"127.0.0.1:{free_port()}"
        self._log = (folder / f"{shape.name}.log").open("a")
        self._source = f"{shape.name}_{rows}"
        self._broker: subprocess.Popen[bytes] | None = None

    def fill(self) -> float:
        """Create the rows at the source and send them to the broker; return how many rows a second it received."""
        self.run_sql("postgres", f"CREATE DATABASE {self._source}")
        self.run_sql(self._source, self.shape.create)
        self.run_sql(self._source, self.shape.insert(1, self.rows))
        first = self.new_target()
        self.run("install-triggers")
        if not self._reach:
            self._broker = subprocess.Popen(self.command("broker"), stdout=self._log, stderr=self._log, env=ENVIRONMENT)
            wait_for(self._broker_answers)
        answer = self.run("migrate", "--target", first, "--engine", "local")
        return self.rows / float(answer["first_fill_seconds"])

    def load(self) -> float:
        """Load an empty target; return the seconds that the command reports."""
        answer = self.run("migrate", "--target", self.new_target(), "--engine", "local")
        assert answer["rows"] == self.rows
        return float(answer["seconds"])

    def _broker_answers(self) -> bool:
        done = subprocess.run(self.command("status", "--json"), capture_output=True, text=True)
        return bool(done.stdout) and not json.loads(done.stdout)["broker"]["error"]

    def new_target(self) -> str:
        """Create an empty database, and write it into the configuration as a target."""
        name = f"t{len(self._targets)}_{self._source}"
        self.run_sql("postgres", f"CREATE DATABASE {name}")
        self._targets.append(name)
        targets = "\n".join(f'[targets.{name}]\nurl = "{self.postgres.url(name)}"' for name in self._targets)
        text = f"""
[source]
url = "{self.postgres.url(self._source)}"
{targets}
{self._of_broker()}
[apply]
load_workers = {WORKERS}
"""
        self._file.write_text(text)
        return name

    def _of_broker(self) -> str:
        """Return the part of the configuration that describes the broker."""
        if self._reach:
            return f'[business]\nname = "{BUSINESS}"\n[broker]\naddresses = {json.dumps(self._reach.split(","))}'
        data = self._folder / f"broker-{self._source}"
        return f'[broker]\nlisten = "{self._address}"\nhttp = ""\ndata_dir = "{data}"'

    def drop(self, name: str) -> None:
        """Drop the database of a target, to free its space."""
        self.run_sql("postgres", f"DROP DATABASE {name} WITH (FORCE)")

    @property
    def _file(self) -> Path:
        """The configuration file of VENUS."""
        return self._folder / f"{self._source}.toml"

    def run_sql(self, database: str, *statements: str) -> None:
        """Run statements."""
        with closing(self.postgres.connect(database)) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def text(self) -> bytes:
        """Return the source's rows as COPY text."""
        out = io.BytesIO()
        with closing(self.postgres.connect(self._source)) as connection, connection.cursor() as cursor:
            cursor.copy_expert(f"COPY {self.shape.name} TO STDOUT", out)
        return out.getvalue()

    def command(self, *words: str) -> list[str]:
        """Return a command line of VENUS."""
        return venus_command(*words, file=self._file)

    def run(self, *words: str) -> Any:
        """Run a command and return its answer."""
        done = subprocess.run(self.command(*words, "--json"), capture_output=True, text=True, env=ENVIRONMENT)
        if done.returncode:
            raise RuntimeError(f"venus {' '.join(words)}: {done.stdout}{done.stderr}")
        return json.loads(done.stdout)

    @property
    def broker_pid(self) -> int:
        """The broker's process."""
        assert self._broker is not None
        return self._broker.pid

    def window_s(self, name: str) -> float:
        """Return the seconds from the start of the first split's transaction to the commit of the last split."""
        with closing(self.postgres.connect(name)) as connection, connection.cursor() as cursor:
            cursor.execute(
                "SELECT extract(epoch FROM max(pg_xact_commit_timestamp(xmin)) - min(done_at)) FROM venus.load_manifest"
            )
            (seconds,) = cursor.fetchone() or (0,)
        return float(seconds)

    def cpu_s(self) -> dict[str, float]:
        """Return the processor time that broker and server have used so far."""
        broker = process_cpu_s(psutil.Process(self.broker_pid))
        return {"broker": broker, "PostgreSQL": server_cpu_s(self.postgres.pid)}

    def stop(self) -> None:
        """End the broker."""
        if self._broker is not None:
            self._broker.send_signal(signal.SIGTERM)
            self._broker.wait(60)
        for name in [*self._targets, self._source]:
            self.run_sql("postgres", f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


def wait_for(condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("waited in vain")
        time.sleep(0.2)
