"""The interface by which `venus prove` runs its cases in a scratch schema of a dialect.

Support is optional: a dialect that supports `venus prove` has a module `proving` with `open_scratch(settings)`. The
cases (venus/cli/prove/cases) write to a `Place` as an application does. Statements of the cases are plain SQL that
every database accepts; types and literals that differ come from the `Place`. A `ScratchSchema` is a `Place` on the
user's own server. Everything in a scratch schema belongs to the run, which refuses to start if the schema contains
anything else.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol, TypeVar, cast

from venus.adapters.dialects.contract import Source
from venus.adapters.dialects.registry import dialect_of, open_source
from venus.adapters.dialects.statements import RecordedStatements, Statements
from venus.config import Settings
from venus.errors import ConfigError, SourceError

#: The name that the scripts propose for the scratch schema and its user.
SCRATCH = "venus_prove"
S = TypeVar("S")


class NameNotPossible(SourceError):
    """The database cannot have an object of this name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Torture:
    """A column type with the hardest values for it.

    `values` are pairs: an SQL expression, and the canonical text that it must become.
    """

    type: str
    values: tuple[tuple[str, str | bytes | None], ...]


class Application(Protocol):
    """A session of the application. Other sessions see nothing before `commit`."""

    def execute(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run a statement; `?` stands for a value. Raises NameNotPossible."""
        ...

    def commit(self) -> None: ...

    def rollback(self) -> None: ...

    def close(self) -> None: ...


def run_transaction(app: Application, *statements: str) -> None:
    """Run statements in one transaction."""
    for statement in statements:
        app.execute(statement)
    app.commit()


def quote_name(name: str) -> str:
    """Return an identifier in the quotes of the SQL standard."""
    return '"' + name.replace('"', '""') + '"'


class Place(Protocol):
    """An empty database in which a case of `venus prove` acts as the application."""

    dialect: str

    @property
    def namespace(self) -> str: ...

    #: This dialect's spellings of int, text, blob and decimal (10,2).
    types: Mapping[str, str]
    #: Whether an empty string is NULL.
    empty_is_null: bool
    #: Whether transactions may commit in an order that differs from that of their log numbers.
    concurrent_writers: bool
    #: Whether TRUNCATE is captured as a marker.
    captures_truncate: bool
    #: Whether triggers fire for the rows that a cascade deletes.
    fires_on_cascade: bool

    def connect(self) -> Application: ...

    def open(self) -> Source: ...

    def settings(self) -> Settings:
        """Return settings whose [source] is this place."""
        ...

    def analyze(self, app: Application, *tables: str) -> None:
        """Let the database gather statistics of these tables."""
        ...

    def dump(self) -> str:
        """Return the whole catalogue as text: equal before an installation and after its removal."""
        ...

    def torture(self) -> tuple[Mapping[str, Torture], Sequence[str]]:
        """Return columns with values that are hard to carry, and the statements that create the types they need."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanCheck:
    """The execution plan of one statement of capture, and a complaint if VENUS expects another plan."""

    #: probe, claim, changes, fill.
    name: str
    #: The steps of the plan; they name only tables of the scratch schema.
    steps: tuple[str, ...]
    #: Why the plan is not what VENUS expects; empty = it is.
    complaint: str = ""


class ScratchSchema(Place, Protocol):
    """A scratch schema on the user's server, for one run."""

    #: The place of the schema, for people; never in a report.
    name: str
    #: The statements of the dialect.
    statements: Statements
    #: Blocks of its files that are parts of statements, as `file.block`.
    pieces: frozenset[str]

    def script(self) -> str:
        """Return the few lines with which a DBA creates the scratch schema."""
        ...

    def removal(self) -> str:
        """Return the statements with which a DBA removes what an interrupted run has left."""
        ...

    def read_facts(self) -> list[tuple[str, str]]:
        """Return version, patch, character sets and the like. Omits names of hosts, users and databases."""
        ...

    def list_objects(self) -> list[str]:
        """Return kind and name of each object in the schema that the DBA or a run has created."""
        ...

    def prepare(self) -> None:
        """Create what a run needs before its first table."""
        ...

    def clear(self) -> None:
        """Remove every object in the schema, those of VENUS included, and what `prepare` creates."""
        ...

    def parse(self, texts: Sequence[str]) -> int:
        """Let the database's own parser check statements, without running them. Raises the parser's error.

        Return how many statements were checked: some cannot be parsed without being run.
        """
        ...

    def explain(self, recorded: RecordedStatements) -> list[PlanCheck]:
        """Return the execution plans of the recorded statements of capture: probe, claim, changes, fill.

        The table `proof` and its log exist and have rows.
        """
        ...


class _ProvingModule(Protocol):
    """The module `proving` of a dialect."""

    def open_scratch(self, settings: Settings) -> ScratchSchema: ...


def open_scratch(settings: Settings) -> ScratchSchema:
    """Return the scratch schema that `[source] url` names. Raises ConfigError, also if the driver is missing."""
    dialect = dialect_of(settings.source.url.get_secret_value())
    try:
        module = import_module(f"venus.adapters.dialects.{dialect}.proving")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("venus"):
            raise
        raise ConfigError(
            f"--source: the driver {error.name} is not installed", hint=f"pip install 'venus-cdc[prove,{dialect}]'"
        ) from error
    return cast(_ProvingModule, module).open_scratch(settings)


class UrlPlace:
    """Base of a `Place` that a URL names; it tracks the sessions that it has opened."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._opened: weakref.WeakSet[Any] = weakref.WeakSet()

    def settings(self) -> Settings:
        """Return settings whose [source] is this place."""
        return Settings.model_validate({"source": {"url": self.url}})

    def open(self) -> Source:
        """Connect to this database as a source of capture."""
        return self.remember(open_source(self.settings()))

    def remember(self, session: S) -> S:
        """Keep a session until `close_sessions` closes it, and return it."""
        self._opened.add(session)
        return session

    def close_sessions(self) -> None:
        """Close the sessions that a case has left open: their locks would keep `clear` waiting."""
        for session in list(self._opened):
            with suppress(Exception):  # most are closed already, which some drivers report as an error
                session.close()
        self._opened.clear()


class DriverApplication:
    """A session of the application over a DB-API connection."""

    def __init__(self, connection: Any, placeholder: str) -> None:
        self.connection = connection
        self.placeholder = placeholder

    def execute(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run a statement, in which `?` stands for a value, and return its rows."""
        cursor = self.connection.cursor()
        if values:
            cursor.execute(sql.replace("?", self.placeholder), values)
        else:
            cursor.execute(sql)
        return list(cursor.fetchall()) if cursor.description else []

    def commit(self) -> None:
        """Commit."""
        self.connection.commit()

    def rollback(self) -> None:
        """Roll back."""
        self.connection.rollback()

    def close(self) -> None:
        """Close the session."""
        self.connection.close()
