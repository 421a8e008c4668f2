"""A SQLite file as the scratch schema of `venus prove`."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager

from venus.adapters.dialects.proving_contract import Application, DriverApplication, PlanCheck, Torture, UrlPlace
from venus.adapters.dialects.sqlite import torture
from venus.adapters.dialects.sqlite.connection import connect, parse_file_url, quote, translate_errors
from venus.adapters.dialects.sqlite.sql import statement
from venus.adapters.dialects.statements import RecordedStatements
from venus.config import Settings

_SCRIPT = """: > venus_prove.db
venus prove --source sqlite:///venus_prove.db"""
_PRAGMAS = ("encoding", "page_size", "auto_vacuum", "journal_mode", "synchronous")
#: Statements that the installation has run: their objects exist.
_RUN = re.compile(r"\s*(?:CREATE|DROP|PRAGMA)\b", re.IGNORECASE)
_NAMED = re.compile(r"'(?:[^']|'')*'|:([a-z_]\w*)")
_POSITIONAL = re.compile(r"'(?:[^']|'')*'|(\?)")


def open_scratch(settings: Settings) -> SqliteScratch:
    """Return the file that the settings name."""
    return SqliteScratch(settings.source.url.get_secret_value())


class SqliteScratch(UrlPlace):
    """The SQLite file in which `venus prove` runs its cases."""

    dialect = "sqlite"
    namespace = "main"
    empty_is_null = False
    concurrent_writers = False
    captures_truncate = False  # SQLite has no TRUNCATE, and DELETE without WHERE fires the row triggers
    fires_on_cascade = True
    types: Mapping[str, str] = {"int": "INTEGER", "text": "TEXT", "blob": "BLOB", "decimal": "DECIMAL(10,2)"}
    statements = statement
    pieces: frozenset[str] = frozenset()

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.path = parse_file_url(url)
        self.name = f"file {self.path}"

    def connect(self) -> Application:
        """Open a session of the application."""
        connection = sqlite3.connect(self.path, timeout=30, check_same_thread=False)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA foreign_keys = ON")
        return self.remember(DriverApplication(connection, "?"))

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        with closing(connect(self.path)) as connection, translate_errors(self.path):
            connection.execute("PRAGMA busy_timeout = 30000")
            yield connection

    def analyze(self, app: Application, *tables: str) -> None:
        """Gather statistics."""
        app.execute("ANALYZE")
        app.commit()

    def dump(self) -> str:
        """Return the definitions of all objects."""
        with self._open() as connection:
            return "\n".join(map(str, connection.execute(statement("scratch", "catalogue"))))

    def torture(self) -> tuple[Mapping[str, Torture], Sequence[str]]:
        """Return columns with the hardest values of each type, and the statements that prepare for them."""
        return torture.COLUMNS, torture.SETUP

    def script(self) -> str:
        """Return the lines that create a scratch file."""
        return _SCRIPT

    def removal(self) -> str:
        """Return the command that removes the remains of a run."""
        return f"rm {self.path}"

    def read_facts(self) -> list[tuple[str, str]]:
        """Return facts about library and file for the report of a run."""
        with self._open() as connection:
            pragmas = [(name, str(connection.execute(f"PRAGMA {name}").fetchone()[0])) for name in _PRAGMAS]
        return [("version", sqlite3.sqlite_version), *pragmas]

    def list_objects(self) -> list[str]:
        """Return the objects of the file."""
        with self._open() as connection:
            return [f"{kind} {name}" for kind, name in connection.execute(statement("scratch", "objects"))]

    def prepare(self) -> None:
        """Do nothing: a run needs only the file."""

    def clear(self) -> None:
        """Drop all objects of the file."""
        self.close_sessions()
        with self._open() as connection:
            connection.execute("PRAGMA foreign_keys = OFF")
            for kind, name in connection.execute(statement("scratch", "objects")).fetchall():
                if kind in ("table", "view"):  # indexes and triggers go with their table
                    connection.execute(f"DROP {kind} IF EXISTS {quote(name)}")
            connection.execute("DROP TABLE IF EXISTS sqlite_stat1")
            connection.execute("DROP TABLE IF EXISTS sqlite_stat4")

    def parse(self, texts: Sequence[str]) -> int:
        """Let SQLite compile these statements, by EXPLAIN; return how many it compiled."""
        queries = [text for text in texts if not _RUN.match(text)]
        with self._open() as connection:
            for query in queries:
                connection.execute(f"EXPLAIN {query}", _unbound_parameters(query))
        return len(queries)

    def explain(self, recorded: RecordedStatements) -> list[PlanCheck]:
        """Explain the statements of a cut and of a fill on the table `proof`."""
        blocks = {"probe": ("registry", "log_end"), "changes": ("cut", "changes"), "fill": ("cut", "fill")}
        checks = []
        with self._open() as connection:
            for name, block in blocks.items():
                texts = [t for t in recorded.get(block, {}) if name == "probe" or '"proof"' in t]
                behind = [t for t in texts if "WHERE" in t and "IS NOT TRUE" not in t] if name == "fill" else texts
                for text in (behind or texts)[-1:]:
                    rows = connection.execute(f"EXPLAIN QUERY PLAN {text}", _unbound_parameters(text))
                    checks.append(_check_plan(name, tuple(str(row[3]) for row in rows)))
        return checks


def _check_plan(name: str, steps: tuple[str, ...]) -> PlanCheck:
    """Return the plan with a complaint if it scans the application's table, called t, or sorts in a fill."""
    scanned = [step for step in steps if step == "SCAN t" or (name == "fill" and "TEMP B-TREE FOR ORDER BY" in step)]
    return PlanCheck(name=name, steps=steps, complaint="; ".join(scanned))


def _unbound_parameters(text: str) -> dict[str, None] | tuple[None, ...]:
    """Return a NULL for each parameter of a statement."""
    if names := [found[1] for found in _NAMED.finditer(text) if found[1]]:
        return dict.fromkeys(names)
    return (None,) * sum(found[1] is not None for found in _POSITIONAL.finditer(text))
