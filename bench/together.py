"""`venus run` beside separate processes, alternately with the same databases, broker data and configuration.

`python -m bench.together [--rate 100] [--seconds 10] [--rounds 3] [--idle 30]`. In each round, first one form and then
the other is started on the same data directory, works and is stopped, so both meet the same state of the machine and of
the databases. The measurements are those of bench/trickle.py: milliseconds from source commit to target commit, and
processor time of everything that works for VENUS. The memory of VENUS's processes at the end of a run is measured too.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.processes import VenusProcesses
from bench.trickle import PLAIN, VENUS, MeasuredRun, TrickleBench, idle_shares
from bench.usage import Usage

SERVICES, RUN = "separate processes", "venus run"
FORMS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    SERVICES: (
        ("broker", "broker"),
        ("capture", "sync", "--capture-only"),
        ("apply", "sync", "--apply-only", "--target", "main"),
    ),
    RUN: (("run", "run"),),
}
#: Wait after a start until imports and the first round of every timer are over.
SETTLE_S = 3.0


def start_form(venus: VenusProcesses, form: str) -> None:
    """Start VENUS's processes in this form."""
    for name, *words in FORMS[form]:
        venus.start(name, *words)


def end_form(venus: VenusProcesses, form: str) -> None:
    """End the processes of a form, the broker last."""
    for name, *_ in reversed(FORMS[form]):
        venus.end(name)


def rss_bytes(pid: int) -> int:
    """Return the resident memory of a process now."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@dataclass(slots=True, kw_only=True)
class FormFigures:
    """Measurements of VENUS in one form (one process, or several), a value for each round."""

    runs: list[MeasuredRun] = field(default_factory=list)
    #: Usage of the application alone, with a table that is not captured.
    bare: list[MeasuredRun] = field(default_factory=list)
    idle: list[float] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)

    def latency_ms(self, part: float) -> float:
        """Return the median over the runs of the latency percentile `part` (0 to 1)."""
        return statistics.median(run.percentile(part) for run in self.runs)

    def core_percent(self) -> float:
        """Return the percentage of a core that VENUS and the triggers use."""
        return 100 * statistics.median(
            sum(_share(run, part) for part in run.used if part != "peer") - _share(bare, "application")
            for run, bare in zip(self.runs, self.bare, strict=True)
        )

    def idle_percent(self) -> float:
        """Return the percentage of a core that VENUS uses while idle; 0 if it was not measured."""
        return 100 * statistics.median(self.idle) if self.idle else 0.0

    def memory_mib(self) -> float:
        """Return the resident memory of VENUS's processes together."""
        return statistics.median(self.memory) / (1 << 20)


def _share(run: MeasuredRun, part: str) -> float:
    """Return the share of a CPU core that a part used in a run."""
    return run.used.get(part, Usage(cpu_s=0, switches=0)).cpu_s / run.seconds


class Together(TrickleBench):
    """The two databases, with VENUS between them as one process or as several."""

    form = ""

    def install(self) -> None:
        """Install and load the empty tables; nothing of VENUS runs afterwards."""
        for table in (VENUS, PLAIN):
            self.source.execute(f"CREATE TABLE {table} (id integer PRIMARY KEY, v text)")
        self.application.open()
        text = self.venus.file.read_text()
        self.venus.file.write_text(text.replace("[source]", f'[source]\ntables = ["{VENUS}"]', 1))
        self.venus.run("install-triggers")
        self.venus.start("broker", "broker")
        time.sleep(2)
        self.venus.run("migrate", "--target", "main")
        self.venus.end("broker")

    @contextmanager
    def running_as(self, form: str) -> Iterator[None]:
        """Run VENUS in this form within the block."""
        self.form = form
        start_form(self.venus, form)
        try:
            self._wait_for_rows(VENUS, self.application.commit(VENUS, 1.0))
            time.sleep(SETTLE_S)
            yield
        finally:
            end_form(self.venus, form)

    def pids(self) -> dict[str, list[int]]:
        """Return the processes of VENUS."""
        return {name: [self.venus.pid(name)] for name, *_ in FORMS[self.form]}

    def parts(self) -> dict[str, list[int]]:
        """Return the process ids of VENUS, of the databases' backends and of the application, by part."""
        found: dict[str, list[int]] = {"source backend": [], "target backend": []}
        self.source.execute("SELECT pid, application_name FROM pg_stat_activity WHERE pid IS NOT NULL")
        for pid, name in self.source.fetchall():
            if name.startswith("venus capture"):
                found["source backend"].append(pid)
            elif name.startswith("venus apply"):
                found["target backend"].append(pid)
        return found | self.pids() | {"application": self.application.pids}

    def memory(self) -> float:
        """Return the resident memory of VENUS's processes together."""
        return float(sum(rss_bytes(pid) for pids in self.pids().values() for pid in pids))


def measure(bench: Together, rounds: int, seconds: float, idle_s: float) -> dict[str, FormFigures]:
    """Measure both forms alternately."""
    found = {form: FormFigures() for form in FORMS}
    for _ in range(rounds):
        for form, figures in found.items():
            with bench.running_as(form):
                if idle_s:
                    figures.idle.append(sum(idle_shares(bench.measure_idle(idle_s), idle_s).values()))
                figures.runs.append(bench.run(VENUS, seconds))
                figures.memory.append(bench.memory())
                figures.bare.append(bench.run(PLAIN, seconds))
    return found


@contextmanager
def open_bench(rate: int) -> Iterator[Together]:
    """Start the databases and install VENUS between them."""
    with tempfile.TemporaryDirectory(prefix="venus-bench-") as home:
        bench = Together(Path(home), rate)
        try:
            bench.install()
            yield bench
        finally:
            bench.stop()


def report(console: Console, rate: int, found: dict[str, FormFigures]) -> None:
    """Print the medians."""
    table = Table(title=f"{rate} one-row transactions/s, medians")
    for heading in ("", "p50 ms", "p99 ms", "of a core", "idle", "memory MiB"):
        table.add_column(heading, justify="left" if not heading else "right")
    for form, figures in found.items():
        table.add_row(
            form,
            f"{figures.latency_ms(0.5):.1f}",
            f"{figures.latency_ms(0.99):.1f}",
            f"{figures.core_percent():.0f} %",
            f"{figures.idle_percent():.2f} %",
            f"{figures.memory_mib():.0f}",
        )
    console.print(table)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=int, default=100, help="transactions a second")
    parser.add_argument("--seconds", type=float, default=10.0, help="of a run")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--idle", type=float, default=0.0, metavar="SECONDS", help="measure idling too")
    chosen = parser.parse_args()
    with open_bench(chosen.rate) as bench:
        report(Console(width=120), chosen.rate, measure(bench, chosen.rounds, chosen.seconds, chosen.idle))


if __name__ == "__main__":
    main()
