"""A target with predicates has the rows that the source's own WHERE selects, under writers, and is compared so."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.places import Place, PostgresPlace, SqlitePlace
from tests.integration.verify.conftest import VerifiedSource, fill
from tests.support.pipelines.end_to_end import difference_keys, end_to_end
from venus.adapters.targets.relational.control import read_progress
from venus.adapters.verify.findings import ComparisonVerdict
from venus.adapters.verify.repair import run_repair
from venus.config import TargetSettings

pytestmark = [pytest.mark.integration, pytest.mark.timeout(540)]

#: One predicate for each kind of column, in words that both sources and the target understand.
WHERE = {
    "item": "id > 1000 and price >= 150 and ok = true and name is not null",
    "word": "n between 100 and 399",
    "line": "pos in ('p1', 'p3') and amount < 400.5",
}
NEXT = {"item": "id <= 2500 and rate < 80.5", "word": "n >= 300"}
COLUMNS = {"item": "id, name, price", "word": "w, n", "line": "no, pos, amount"}


@pytest.fixture(params=["postgresql", "sqlite"])
def sample(request: pytest.FixtureRequest, tmp_path: Path, second_database: str) -> Iterator[VerifiedSource]:
    place: Place
    if request.param == "sqlite":
        place = SqlitePlace(path=tmp_path / "app.db")
        url = f"sqlite:///{place.path}"
    else:
        url = request.getfixturevalue("database")
        place = PostgresPlace(server=request.getfixturevalue("postgres_server"), url=url)
    fill(place)
    with end_to_end(tmp_path, url, second_database) as e2e:
        made = VerifiedSource(place, e2e)
        with_where(made, WHERE)
        e2e.install()
        e2e.load()
        e2e.start()
        e2e.wait_until_caught_up()
        yield made


def with_where(sample: VerifiedSource, where: dict[str, str]) -> None:
    settings = sample.e2e.settings
    target = settings.targets["main"].model_dump(by_alias=True)
    changed = TargetSettings.model_validate({**target, "where": where})
    sample.e2e.settings = settings.model_copy(update={"targets": {"main": changed}})


@contextmanager
def writers(sample: VerifiedSource, seed: int) -> Iterator[None]:
    """Move rows into the ranges and out of them within the block, as an application."""
    stop, rng = threading.Event(), random.Random(seed)

    def write() -> None:
        with closing(sample.place.connect()) as app:
            for n in range(200):
                if stop.is_set() and n > 20:
                    return
                number = rng.randint(1, 600)
                app.execute(
                    "UPDATE item SET price = ?, ok = ? WHERE id = ?",
                    rng.randint(0, 300),
                    rng.random() < 0.7,
                    number * 7,
                )
                app.execute("UPDATE word SET n = ? WHERE n = ?", rng.randint(1, 600), number)
                app.execute("UPDATE line SET amount = ? WHERE no = ?", rng.randint(0, 800), number // 4)
                app.execute("DELETE FROM item WHERE id = ?", rng.randint(1, 600) * 7)
                app.execute(
                    "INSERT INTO item (id, name, price, rate, ok) VALUES (?, ?, ?, ?, ?)",
                    10_000 * seed + n,
                    "new",
                    rng.randint(0, 300),
                    rng.random() * 100,
                    True,
                )
                app.execute("UPDATE item SET id = ? WHERE id = ?", -10_000 * seed - n, 10_000 * seed + n - 3)
                app.commit()
                stop.wait(0.005)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def at_both(sample: VerifiedSource, table: str, where: dict[str, str]) -> tuple[list[str], list[str]]:
    """Return the rows that the source's own WHERE selects, and the target's rows, as text."""
    condition = f"WHERE {where[table]}" if table in where else ""
    with closing(sample.place.connect()) as app:
        ours = app.execute(f"SELECT {COLUMNS[table]} FROM {table} {condition}")
    schema = sample.e2e.settings.targets["main"].schema_ or "public"
    theirs = sample.e2e.at_target(f"SELECT {COLUMNS[table]} FROM {schema}.{table}")
    return format_rows(ours), format_rows(theirs)


def format_rows(rows: list[tuple[Any, ...]]) -> list[str]:
    numbers = (int, float, Decimal)
    return sorted(str([f"{v:.3f}" if isinstance(v, numbers) else str(v) for v in row]) for row in rows)


def check(sample: VerifiedSource, where: dict[str, str]) -> None:
    for table in COLUMNS:
        ours, theirs = at_both(sample, table, where)
        assert ours == theirs, table
        assert ours


def test_a_filtered_target_is_kept_equal_compared_and_repaired(sample: VerifiedSource) -> None:
    e2e = sample.e2e
    check(sample, WHERE)
    with writers(sample, seed=1):
        pass
    e2e.wait_until_caught_up()
    check(sample, WHERE)
    for options in ({}, {"leg": "all"}, {"mode": "scan"}):
        same = e2e.verify(**options)
        assert same.verdict is ComparisonVerdict.SAME, (options, same.differences, same.undecided_rows)
    notes = {t.table.partition(".")[2]: " ".join(t.notes) for t in same.tables}
    assert "the target gets the rows where n between" in notes["word"] or "n >= 100 and n <= 399" in notes["word"]

    e2e.stop("apply")
    (outside,) = [n for (n,) in e2e.at_target("SELECT max(id) + 1 FROM public.item")]
    with closing(sample.place.connect()) as app:
        (away,) = app.execute("SELECT min(id) FROM item WHERE id BETWEEN 1 AND 1000")[0]
    (inside, other), *_ = e2e.at_target("SELECT min(id), max(id) FROM public.item WHERE id < 4200")
    e2e.at_target(
        f"INSERT INTO public.item (id, name) VALUES ({outside}, 'ghost')",
        f"INSERT INTO public.item (id, name, price, ok) VALUES ({away}, 'not for this target', 200, true)",
        f"DELETE FROM public.item WHERE id = {inside}",
        f"UPDATE public.item SET price = price + 1 WHERE id = {other}",
    )
    planted = {
        ("item", (str(outside),), "extra", "apply"),
        ("item", (str(away),), "extra", "apply"),
        ("item", (str(inside),), "missing", "apply"),
        ("item", (str(other),), "different", "apply"),
    }
    ends = e2e.verify()
    assert difference_keys(ends) == planted
    assert not ends.undecided_rows
    assert difference_keys(e2e.verify(leg="target")) == planted
    e2e.start("apply")
    done = run_repair(e2e.settings, "main", ends, wait_s=120)
    assert (done.left, done.repaired) == ([], 4)
    assert e2e.verify().verdict is ComparisonVerdict.SAME
    check(sample, WHERE)


def test_a_predicate_is_changed_while_both_are_in_use(sample: VerifiedSource) -> None:
    e2e = sample.e2e
    e2e.stop("apply")
    with_where(sample, NEXT)
    with writers(sample, seed=2):
        e2e.start("apply")
        e2e.until(
            lambda: all(
                t.predicate_before is None and t.predicate.strip() == predicate_of(t.name)
                for t in read_progress(e2e.settings, "main").tables
            ),
            "the new predicates",
        )
    e2e.wait_until_caught_up()

    check(sample, NEXT)
    same = e2e.verify()
    assert same.verdict is ComparisonVerdict.SAME, (same.differences, same.undecided_rows)
    assert not same.undecided_rows


def predicate_of(table: str) -> str:
    return {"item": "id <= 2500 and rate < 80.5", "word": "n >= 300"}.get(table, "")
