"""`venus verify` on PostgreSQL source and target: equal tables, planted differences, and both under a write load.

`python -m bench.verify [--rows 1000000] [--runs 20] [--changes-per-s 1000] [--only equal,planted,load]`. Broker,
capture and apply are separate processes; the comparison runs in this process, with the code of `venus verify`. In every
run under load the findings must be exactly the planted differences; a false or missing finding makes the exit code 1.
"Moved" counts the keys with checksums and the rows of both sides together.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.processes import EmbeddedPostgres, VenusProcesses, exit_on_sigterm
from bench.shapes import NARROW
from venus.adapters.verify.findings import VerifyResult
from venus.adapters.verify.run import VerifyOptions, run_verify
from venus.config import Settings, load

PLANTED = 32
TRANSACTION_ROWS = 20
WAIT_S = 300.0
GOAL_MOVED = 0.02


class VerifyBench:
    """A pipeline with a table of `rows` rows, in which the benchmark plants differences."""

    def __init__(self, home: Path, rows: int) -> None:
        self.rows = rows
        self.postgres = EmbeddedPostgres(home)
        self.source = self.postgres.connect("source").cursor()
        self.target = self.postgres.connect("target").cursor()
        self.venus = VenusProcesses(home, self.postgres)
        self.settings: Settings = load(home / "venus.toml")
        self.planted: set[tuple[str, str, str]] = set()

    def start(self) -> None:
        """Fill, load, and start the processes, which keep running."""
        self.source.execute(NARROW.create)
        self.source.execute(NARROW.insert(1, self.rows))
        self.source.execute("ANALYZE")
        self.venus.run("install-triggers")
        self.venus.start("broker", "broker")
        time.sleep(2)
        self.venus.run("migrate", "--target", "main")
        self.venus.start("capture", "sync", "--capture-only")
        self.venus.start("apply", "sync", "--apply-only", "--target", "main")
        for cursor in (self.source, self.target):
            cursor.execute("VACUUM ANALYZE narrow")

    def select_planted_keys(self) -> list[int]:
        """Return keys for planted differences, which the application never touches."""
        step = self.rows // PLANTED
        return [n * step + 7 for n in range(PLANTED)]

    def plant(self) -> None:
        """Create differences: change rows of the target, and rows of the source without firing its triggers."""
        keys = self.select_planted_keys()
        self.source.execute("SET session_replication_role = replica")
        for n, key in enumerate(keys):
            kind = n % 4
            if kind == 0:
                self.target.execute(f"DELETE FROM narrow WHERE id = {key}")
                self.planted.add((str(key), "missing", "apply"))
            elif kind == 1:
                self.target.execute(f"UPDATE narrow SET city = city || '.' WHERE id = {key}")
                self.planted.add((str(key), "different", "apply"))
            elif kind == 2:
                self.target.execute(f"INSERT INTO narrow SELECT -id, name, city, score FROM narrow WHERE id = {key}")
                self.planted.add((str(-key), "extra", "apply"))
            else:
                self.source.execute(f"UPDATE narrow SET score = -score WHERE id = {key}")
                self.planted.add((str(key), "different", "capture"))
        self.source.execute("SET session_replication_role = origin")

    def verify(self, **options: Any) -> VerifyResult:
        """Compare the table at source and target."""
        self.venus.check()
        chosen: dict[str, Any] = {"target": "main", "tables": ("narrow",), "wait_s": 60.0, **options}
        return run_verify(self.settings, VerifyOptions(**chosen))

    def is_exact(self, result: VerifyResult) -> bool:
        """Return whether the findings are exactly the planted differences and nothing is undecided."""
        found = {(d.key["id"], d.kind.value, d.fault.value) for d in result.differences}
        return found == self.planted and not result.undecided_rows

    def stop(self) -> None:
        """Stop everything."""
        self.venus.stop()
        for cursor in (self.source, self.target):
            cursor.connection.close()
        self.postgres.stop()


class ChangeWriter:
    """Application that changes, inserts and deletes rows at a steady rate, in a thread."""

    def __init__(self, verified: VerifyBench, changes_per_s: int) -> None:
        self._verified = verified
        self._rate = changes_per_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._write, daemon=True)
        self.changes = 0
        self._began = time.monotonic()
        self._thread.start()

    def _write(self) -> None:
        """Commit transactions at the steady rate until the application is stopped."""
        draw, reserved = random.Random(1), set(self._verified.select_planted_keys())
        with closing(self._verified.postgres.connect("source")) as connection:
            cursor = connection.cursor()
            fresh = self._verified.rows
            while not self._stop.is_set():
                keys = [k for k in draw.sample(range(1, self._verified.rows), TRANSACTION_ROWS) if k not in reserved]
                fresh += 1
                listed = ", ".join(map(str, keys[2:]))
                cursor.execute(
                    f"BEGIN; UPDATE narrow SET score = score + 1, name = name || 'x' WHERE id IN ({listed});"
                    f"DELETE FROM narrow WHERE id IN ({keys[0]}, {keys[1]});"
                    f"INSERT INTO narrow VALUES ({fresh}, 'new', 'new', 1); COMMIT"
                )
                self.changes += TRANSACTION_ROWS
                ahead = self.changes / self._rate - (time.monotonic() - self._began)
                if ahead > 0:
                    time.sleep(ahead)

    def stop(self) -> float:
        """Stop the application; return how many changes a second it made."""
        self._stop.set()
        self._thread.join(60)
        return self.changes / (time.monotonic() - self._began)


def measure(verified: VerifyBench, table: Table, what: str, **options: object) -> VerifyResult:
    """Run one comparison, and add its figures to the printed table."""
    result = verified.verify(**options)
    share = result.moved_rows / max(1, result.rows)
    (found,) = result.tables
    table.add_row(
        what,
        f"{result.rows:,}",
        f"{result.seconds:.2f}",
        f"{result.rows / result.seconds:,.0f}",
        f"{result.moved_rows:,}",
        f"{share:.2%}",
        f"{len(result.differences)}",
        f"{found.in_flight}",
        f"{len(result.undecided_rows)}",
        result.verdict.name,
    )
    return result


def main() -> int:
    """Run the requested parts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--changes-per-s", type=int, default=1_000)
    parser.add_argument("--only", default="equal,planted,load")
    chosen = parser.parse_args()
    exit_on_sigterm()
    console = Console(width=140)
    table = Table(title=f"venus verify, {chosen.rows:,} rows, PostgreSQL to PostgreSQL")
    columns = ("", "rows", "s", "rows/s", "moved", "share", "found", "on their way", "undecided", "verdict")
    for name in columns:
        table.add_column(name, justify="left" if not name else "right")
    with tempfile.TemporaryDirectory(prefix="venus-bench-") as home:
        Path(home).chmod(0o755)
        verified = VerifyBench(Path(home), chosen.rows)
        try:
            verified.start()
            failed = compare_all(verified, table, chosen, console)
        finally:
            verified.stop()
    console.print(table)
    console.print(f"NOT EXACT: {', '.join(failed)}" if failed else "every run exact")
    return 1 if failed else 0


def compare_all(verified: VerifyBench, table: Table, chosen: argparse.Namespace, console: Console) -> list[str]:
    """Run the chosen comparisons; return the runs whose findings were not exactly the planted differences."""
    parts, failed = chosen.only.split(","), []
    if "equal" in parts:
        for what, options in (
            ("equal, checksums", {}),
            ("equal, checksums", {}),
            ("equal, rows", {"mode": "scan"}),
            ("equal, full data and target", {"leg": "target"}),
        ):
            failed += [what] * (not verified.is_exact(measure(verified, table, what, **options)))
    verified.plant()
    if "planted" in parts:
        result = measure(verified, table, f"{PLANTED} planted")
        failed += ["planted"] * (not verified.is_exact(result))
        failed += ["moved"] * (result.moved_rows >= GOAL_MOVED * result.rows)
    if "load" in parts:
        writer = ChangeWriter(verified, chosen.changes_per_s)
        time.sleep(2)
        for n in range(chosen.runs):
            result = measure(verified, table, f"run {n + 1} under load")
            failed += [f"run {n + 1}"] * (not verified.is_exact(result))
        console.print(f"{writer.stop():,.0f} changes/s at the source")
    return failed


if __name__ == "__main__":
    sys.exit(main())
