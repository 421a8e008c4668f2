"""The story of a target other than PostgreSQL: load of a shop and of every type, damage, repair, a resync."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from tests.support.databases.postgres import Server
from tests.support.pipelines.end_to_end import run_at
from tests.support.pipelines.pipeline import Pipeline, with_password
from venus.adapters.dialects.postgresql.torture import COLUMNS, SETUP

TARGET = "copy"
OPTIONS = f'on_error = "quarantine"\n[targets.{TARGET}.where]\nitem = "region = \'EU\'"\n'
BOTH = ("--table", "item", "--table", "piece")
ROWS = "generate_series(1, 500) n"


@dataclass(slots=True, kw_only=True)
class TargetStory:
    """A pipeline with one target, which gets only some rows of one table, and quarantines rows that do not fit."""

    pipeline: Pipeline
    #: Function that executes a statement at the target as another program does.
    at_target: Callable[[str], list[tuple[Any, ...]]]
    #: Names of the tables at the target.
    item: str = "item"
    piece: str = "piece"
    #: Rows that the load has refused, and the reasons of quarantined rows.
    refused: int = 0
    waiting: tuple[str, ...] = ()

    def venus(self, command: str, *arguments: str, code: int | tuple[int, ...] = 0) -> str:
        """Run a command for the target; return its output."""
        answer = self.pipeline.venus(command, *arguments, "--target", TARGET, code=code)
        return answer.out + answer.err

    def load(self, *, short_text: str = "text", note: str = "varchar(40)") -> str:
        """Load a shop and a table of every type, and follow; return the DDL. Values that do not fit are quarantined."""
        numbers = count(1)
        spelled = ", ".join(f"{name} {c.type}" for name, c in COLUMNS.items())
        self.run(
            *SETUP,
            f"CREATE TABLE item (id bigint PRIMARY KEY, region {short_text} NOT NULL, v {short_text} UNIQUE)",
            f"CREATE TABLE piece (id serial PRIMARY KEY, item_id bigint REFERENCES item, note {note})",
            f"INSERT INTO item SELECT n, CASE WHEN n % 2 = 0 THEN 'EU' ELSE 'US' END, 'v' || n FROM {ROWS}",
            f"INSERT INTO piece (item_id, note) SELECT n, repeat('ü', n % 40) FROM {ROWS}",
            f"CREATE TABLE torture (id int PRIMARY KEY, short varchar(9), {spelled})",
            "INSERT INTO torture (id, short) VALUES (0, '')",
            *(
                f"INSERT INTO torture (id, {name}) VALUES ({next(numbers)}, {sql})"
                for name, c in COLUMNS.items()
                for sql, _ in c.values
            ),
        )
        assert self.pipeline.ask("check")["blocks"] == 0
        ddl = self.venus("migrate", "--ddl-only")
        self.pipeline.ask("install-triggers")
        self.pipeline.start_broker()
        self.refused = self.pipeline.ask("migrate", "--target", TARGET, code=1)["refused"]
        self.start()
        waiting = self.pipeline.ask("quarantine", "list", "--target", TARGET, code=1)["quarantine"][TARGET]
        self.waiting = tuple(row["message"] for row in waiting)
        return ddl

    def run(self, *statements: str) -> None:
        """Execute statements of the application."""
        run_at(self.pipeline.source, *statements)

    def start(self) -> None:
        """Start following."""
        self.pipeline.start("sync", "sync", "--target", TARGET)

    def restart(self) -> None:
        """Kill the loop with SIGKILL, and restart it."""
        self.pipeline.kill("sync")
        self.start()

    def change(self) -> None:
        """Change rows, a column and the target's predicate, kill the loop in between, and wait until all arrived."""
        self.run(
            "UPDATE item SET v = 'w' || id WHERE id < 100",
            "UPDATE item SET region = 'EU' WHERE id = 1",
            "DELETE FROM piece WHERE id % 7 = 0",
            "ALTER TABLE piece ADD COLUMN weight numeric(8,2) DEFAULT 1.50",
            "INSERT INTO piece (item_id, note, weight) VALUES (2, 'new', 7.25)",
        )
        self.pipeline.until(lambda: self.at_target(f"SELECT 1 FROM {self.item} WHERE v = 'w2'"), "the first changes")
        self.restart()
        self.pipeline.wait_until_caught_up(TARGET)
        self.venus("verify", code=1)  # the quarantined rows
        self.venus("verify", *BOTH)
        assert self.at_target(f"SELECT count(*) FROM {self.item} WHERE region <> 'EU'") == [(0,)]
        ((weight,),) = self.at_target(f"SELECT weight FROM {self.piece} ORDER BY id DESC LIMIT 1")
        assert str(weight) == "7.25"

    def damage(self) -> None:
        """Change rows at the target as another program; find and repair them, and resync a table."""
        self.at_target(f"DELETE FROM {self.item} WHERE id = 2")
        self.at_target(f"UPDATE {self.piece} SET note = 'damaged' WHERE id = 1")
        self.venus("verify", *BOTH, code=1)
        self.venus("verify", *BOTH, "--repair", code=(0, 1))
        self.pipeline.wait_until_caught_up(TARGET)
        self.venus("verify", *BOTH)
        self.at_target(f"UPDATE {self.piece} SET note = 'damaged again'")
        self.venus("resync", "piece")
        self.pipeline.until(
            lambda: "resyncing" not in self.pipeline.venus("status", code=(0, 1)).out, "the resync", every_s=0.5
        )
        self.venus("verify", "--table", "piece")

    def end(self) -> None:
        """Check that a cut-over is refused, and stop."""
        refusal = self.venus("cutover", code=2)
        assert "on which an application relies, so it cannot be cut over" in refusal
        assert "A PostgreSQL target can be: --target NAME" in refusal
        assert self.pipeline.stop("sync") == 0


@contextmanager
def open_story(
    folder: Path,
    server: Server,
    url: str,
    at_target: Callable[[str], list[tuple[Any, ...]]],
    *,
    environ: dict[str, str] | None = None,
    item: str = "item",
    piece: str = "piece",
) -> Iterator[TargetStory]:
    """Configure a new database of the server and this target; stop everything and drop the database at the end."""
    source = server.create_database()
    pipeline = Pipeline(
        folder=folder,
        source=with_password(source),
        targets={TARGET: url},
        target_options=OPTIONS,
        environ=environ or {},
    )
    pipeline.configure()
    try:
        yield TargetStory(pipeline=pipeline, at_target=at_target, item=item, piece=piece)
    finally:
        pipeline.close()
        server.drop_database(source)
