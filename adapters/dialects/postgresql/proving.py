"""A PostgreSQL database as the scratch schema of `venus prove`.

VENUS captures all schemas of a database and has a schema of its own in it, so the scratch schema is a whole database.
The tables of the run are in `public`, where a pattern without a schema looks for them; objects of extensions there
stay untouched.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing

from venus.adapters.dialects.postgresql import torture
from venus.adapters.dialects.postgresql.connection import PostgresConnection, connect, split_url
from venus.adapters.dialects.postgresql.sql import OWN_SCHEMA, literal, quote, statement
from venus.adapters.dialects.proving_contract import (
    SCRATCH,
    Application,
    DriverApplication,
    PlanCheck,
    Torture,
    UrlPlace,
)
from venus.adapters.dialects.statements import RecordedStatements
from venus.config import Settings

_SCRIPT = f"""CREATE ROLE {SCRATCH} LOGIN PASSWORD 'choose one';
CREATE DATABASE {SCRATCH} OWNER {SCRATCH};
-- then, with that password:
venus prove --source postgresql://{SCRATCH}:PASSWORD@HOST/{SCRATCH}"""
_FACTS = (
    "version",
    "build",
    "encoding",
    "collation",
    "character type",
    "block size",
    "checksums",
    "wal_level",
    "isolation",
    "standard_conforming_strings",
    "session_replication_role",
    "server",
    "role",
    "extensions",
)
#: The beginnings of statements that PREPARE accepts.
_PREPARED = re.compile(r"(?:WITH|SELECT|INSERT|UPDATE|DELETE|VALUES|\()\b", re.IGNORECASE)
_COPIED = re.compile(r"COPY \((.*)\) TO STDOUT\s*", re.DOTALL)
_PARAMETER = re.compile(r"%\((\w+)\)s|%s|%%")


_OBJECTS = statement("scratch", "objects", own=literal(OWN_SCHEMA))


def open_scratch(settings: Settings) -> PostgresScratch:
    """Return the database that the settings name."""
    return PostgresScratch(settings.source.url.get_secret_value())


class PostgresScratch(UrlPlace):
    """The PostgreSQL database in which `venus prove` runs its cases."""

    dialect = "postgresql"
    namespace = "public"
    empty_is_null = False
    concurrent_writers = True
    captures_truncate = True
    fires_on_cascade = True
    types: Mapping[str, str] = {"int": "integer", "text": "text", "blob": "bytea", "decimal": "numeric(10,2)"}
    statements = statement
    #: Parts of statements, and lists of settings that a session executes in one string.
    pieces = frozenset(
        (
            "check.keyless",
            "check.with_keyless",
            "cut.look",
            "cut.absent",
            "cut.noted",
            "cut.small_log",
            "cut.has_row",
            "registry.mark",
        )
    )

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.name = f"database {split_url(url)[0].database}"

    def connect(self) -> Application:
        """Open a session of the application."""
        dsn = split_url(self.url)[0].render_as_string(hide_password=False)
        raw = connect(dsn, application_name="venus prove")
        with raw.cursor() as cursor:
            cursor.execute(f"SET search_path = {quote(self.namespace)}")
        raw.autocommit = False
        return self.remember(DriverApplication(raw, "%s"))

    def _open(self) -> PostgresConnection:
        return PostgresConnection(self.url, application="venus prove")

    def analyze(self, app: Application, *tables: str) -> None:
        """Gather statistics."""
        for table in tables:
            app.execute(f"ANALYZE {quote(table)}")
        app.commit()

    def dump(self) -> str:
        """Return the definitions of all objects."""
        with closing(self._open()) as connection:
            return "\n".join(str(line) for (line,) in connection.rows(statement("scratch", "catalogue")))

    def torture(self) -> tuple[Mapping[str, Torture], Sequence[str]]:
        """Return columns with the hardest values of each type, and the statements that prepare for them."""
        return torture.COLUMNS, torture.SETUP

    def script(self) -> str:
        """Return the lines that create a scratch database."""
        return _SCRIPT

    def removal(self) -> str:
        """Return the statement that removes the remains of a run."""
        with closing(self._open()) as connection:
            return "; ".join(self._drop_statements(connection))

    def read_facts(self) -> list[tuple[str, str]]:
        """Return facts about the server for the report of a run."""
        with closing(self._open()) as connection:
            row = connection.row(statement("scratch", "facts"))
        return [(name, str(value)) for name, value in zip(_FACTS, row, strict=True)]

    def list_objects(self) -> list[str]:
        """Return everything that does not come with the server or an extension."""
        with closing(self._open()) as connection:
            return [f"{kind} {name}" for kind, name, _ in self._read_objects(connection)]

    def _read_objects(self, connection: PostgresConnection) -> list[tuple[str, str, str | None]]:
        return [(kind, name, dropped) for kind, name, dropped in connection.rows(_OBJECTS)]

    def _drop_statements(self, connection: PostgresConnection) -> list[str]:
        """Return the statements that drop what a run creates; what is in VENUS's schema is dropped with it."""
        objects = self._read_objects(connection)
        return [dropped for _, name, dropped in objects if dropped and not name.startswith(f"{OWN_SCHEMA}.")]

    def prepare(self) -> None:
        """Require that the role may create VENUS's schema; otherwise only the first case would reveal it."""
        with closing(self._open()) as connection, connection.transaction():
            connection.run(f"CREATE SCHEMA {OWN_SCHEMA}; DROP SCHEMA {OWN_SCHEMA}")

    def clear(self) -> None:
        """Drop everything that a run creates."""
        self.close_sessions()
        with closing(self._open()) as connection:
            for text in self._drop_statements(connection):
                connection.run(text)

    def parse(self, texts: Sequence[str]) -> int:
        """Let the server parse these statements, by PREPARE; return how many it parsed."""
        queries = [query for query in map(_unwrap_copy, texts) if _PREPARED.match(query)]
        with closing(self._open()) as connection:
            for query in queries:
                connection.run(f"PREPARE venus_parsed AS {_number_parameters(query)}")
                connection.run("DEALLOCATE venus_parsed")
        return len(queries)

    def explain(self, recorded: RecordedStatements) -> list[PlanCheck]:
        """Explain the statements of a cut and of a fill on the table `proof`."""
        settings = {"changes": statement("cut", "keyed_plan"), "fill": statement("cut", "fill_plan")}
        with closing(self._open()) as connection:
            connection.run("BEGIN")
            checks = []
            for name, query in self._find_queries(recorded):
                if name in settings:
                    connection.run(settings[name])
                rows = connection.rows(statement("scratch", "explain", query=query))
                checks.append(_check_plan(name, tuple(str(step).rstrip() for (step,) in rows)))
            connection.rollback()
        return checks

    def _find_queries(self, recorded: RecordedStatements) -> Iterator[tuple[str, str]]:
        """Yield the last rendered query of each name; for fills, the last one that continues after a key."""
        places = {"probe": "dirty", "claim": "log_taken", "changes": "changes", "fill": "fill"}
        for name, block in places.items():
            texts = [t for t in recorded.get(("cut", block), {}) if name == "probe" or _concerns_proof_table(t, name)]
            if texts:
                text = next((t for t in reversed(texts) if "WHERE" in t), texts[-1]) if name == "fill" else texts[-1]
                yield name, _unwrap_copy(text).removeprefix("PREPARE venus_dirty AS")


def _unwrap_copy(text: str) -> str:
    """Return the query inside a COPY; return any other statement unchanged."""
    found = _COPIED.fullmatch(text.strip())
    return found[1].strip() if found else text.strip()


def _concerns_proof_table(text: str, name: str) -> bool:
    """Return whether to explain a recorded statement: it names the table `proof`, or reads a log."""
    return name == "claim" or '"proof"' in text


def _check_plan(name: str, steps: tuple[str, ...]) -> PlanCheck:
    """Return the plan with a complaint if it scans the application's table instead of using the key's index."""
    scanned = [step.strip() for step in steps if re.search(r"Seq Scan on proof\b", step)]
    sorted_ = [step.strip() for step in steps if name == "fill" and re.search(r"^\W*Sort\b", step)]
    return PlanCheck(name=name, steps=steps, complaint="; ".join([*scanned, *sorted_]))


def _number_parameters(text: str) -> str:
    """Replace the driver's parameters by those of PREPARE."""
    names: dict[str, int] = {}

    def number_parameter(found: re.Match[str]) -> str:
        if found[0] == "%%":
            return "%"
        return f"${names.setdefault(found[1] or f'?{found.start()}', len(names) + 1)}"

    return _PARAMETER.sub(number_parameter, text) if _PARAMETER.search(text) else text
