"""Speed at which a new replica installs the full data, beside `venus migrate` of the same rows into PostgreSQL.

    python -m bench.figures.installation [--rows 1000000]

Three replicated brokers have a table of 4 columns, read from a PostgreSQL source. Two measurements alternate, twice
each. A load into an empty target takes the seconds that `venus migrate` itself reports (without the start of the
command). A follower gets an empty disk; its time runs from when it serves until its full data has all rows. The log is
trimmed first, so the follower cannot read it from the beginning and copies the leader's full data.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from bench.figures.figure import FigureResult, at_least, at_most
from bench.loading import LoadSite
from bench.processes import EmbeddedPostgres
from bench.shapes import NARROW
from bench.venus_cluster import MIB, Brokers, run_brokers, wait_for
from venus.wire import broker_pb2

ROWS = 1_000_000
TURNS = 2
GOAL_PERCENT = 60.0
GOAL_MEMORY_MIB = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """Seconds of each repetition; `in_sync_s` runs from when a replica has all rows until it is in sync."""

    rows: int
    load_s: tuple[float, ...]
    install_s: tuple[float, ...]
    in_sync_s: tuple[float, ...]
    peak_bytes: int

    @property
    def percent(self) -> float:
        """The speed of an installation in percent of the speed of a load; medians."""
        return 100 * statistics.median(self.load_s) / statistics.median(self.install_s)

    @property
    def summary(self) -> str:
        """Both rates as text, and how long the replica took to be in sync afterwards."""
        install, load = (self.rows / statistics.median(times) for times in (self.install_s, self.load_s))
        return f"{install:,.0f} of {load:,.0f} rows/s, in sync {max(self.in_sync_s):.2f} s later"


def measure_installation(rows: int = ROWS) -> Installation:
    """Measure loads by `venus migrate` and installations of a replica alternately."""
    with (
        run_brokers(broker={"retain_bytes": 0}, follower_backlog_bytes=0) as cluster,
        tempfile.TemporaryDirectory(prefix="venus-bench-") as folder,
        closing(_Server(Path(folder))) as server,
    ):
        home = LoadSite(Path(folder), server.postgres, NARROW, rows, reach=cluster.reach)
        home.fill()
        cluster.wait_in_sync()
        wait_for(lambda: _is_trimmed(cluster.status(cluster.leader())))
        loads, installs, in_syncs = [], [], []
        for _ in range(TURNS):
            loads.append(home.load())
            install_s, in_sync_s = _measure_installation(cluster, rows)
            installs.append(install_s)
            in_syncs.append(in_sync_s)
        return Installation(
            rows=rows,
            load_s=tuple(loads),
            install_s=tuple(installs),
            in_sync_s=tuple(in_syncs),
            peak_bytes=cluster.peak_rss_bytes(),
        )


def findings(found: Installation) -> list[FigureResult]:
    """Return the result lines, which compare the installation with its goals."""
    return [
        at_least(
            f"an empty replica installs {found.summary}, of a load into PostgreSQL", found.percent, GOAL_PERCENT, "%"
        ),
        at_most("largest memory of a broker meanwhile", found.peak_bytes / MIB, GOAL_MEMORY_MIB, "MiB"),
    ]


class _Server:
    """An embedded PostgreSQL server with the source and the target."""

    def __init__(self, folder: Path) -> None:
        self.postgres = EmbeddedPostgres(folder)

    def close(self) -> None:
        self.postgres.stop()


def _measure_installation(cluster: Brokers, rows: int) -> tuple[float, float]:
    """Give a follower an empty disk; return the seconds until it has all rows, and then until it is in sync."""
    name = cluster.followers()[0]
    cluster.kill(name)
    shutil.rmtree(cluster.data(name))
    cluster.start(name)
    began = time.monotonic()
    wait_for(lambda: _is_whole(cluster.status(name), rows), every_s=0.05)  # each request costs the replica time
    whole = time.monotonic()
    cluster.wait_in_sync()
    return whole - began, time.monotonic() - whole


def _is_trimmed(status: broker_pb2.BusinessStatus | None) -> bool:
    """Return whether the leader's log begins near its end."""
    return status is not None and status.log_start >= status.next_offset - 1


def _is_whole(status: broker_pb2.BusinessStatus | None, rows: int) -> bool:
    """Return whether a replica has all rows in its full data. Raises RuntimeError if it replayed the log instead."""
    if status is None or status.materialised_offset < rows:
        return False
    if not status.log_start:
        raise RuntimeError("the replica has followed the log from its beginning: nothing was installed")
    return True


def main() -> int:
    """Print the findings."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=ROWS)
    found = measure_installation(parser.parse_args().rows)
    for n, (load_s, install_s) in enumerate(zip(found.load_s, found.install_s, strict=True), 1):
        print(
            f"turn {n}: load {load_s:.2f} s, {found.rows / load_s:,.0f} rows/s; "
            f"installation {install_s:.2f} s, {found.rows / install_s:,.0f} rows/s"
        )
    held = findings(found)
    for finding in held:
        print(f"{finding.what:110} {finding.ours:>9} goal {finding.goal:>10} {'met' if finding.met else 'MISSED'}")
    return 0 if all(finding.met for finding in held) else 1


if __name__ == "__main__":
    sys.exit(main())
