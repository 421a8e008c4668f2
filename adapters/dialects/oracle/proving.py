"""An Oracle schema as the scratch of `venus prove`: a user of its own, whose objects are dropped one by one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import sqlalchemy as sa

from venus.adapters.dialects.oracle import torture
from venus.adapters.dialects.oracle.session.connection import OracleSession
from venus.adapters.dialects.oracle.session.driver import Driver, parse_driver_url
from venus.adapters.dialects.oracle.sql import literal, quote, statement
from venus.adapters.dialects.proving_contract import (
    SCRATCH,
    Application,
    DriverApplication,
    NameNotPossible,
    PlanCheck,
    Torture,
    UrlPlace,
)
from venus.adapters.dialects.statements import RecordedStatements
from venus.config import Settings
from venus.errors import SourceError

_USER = SCRATCH.upper()
_SCRIPT = f"""CREATE USER {_USER} IDENTIFIED BY "choose_one" QUOTA UNLIMITED ON USERS;
GRANT CREATE SESSION, CREATE TABLE, CREATE SEQUENCE, CREATE TRIGGER, CREATE VIEW TO {_USER};
-- then, with that password:
venus prove --source 'oracle+oracledb://{_USER}:PASSWORD@HOST:1521/?service_name=SERVICE'"""
_FACT = "fact_"
_PARSED = re.compile(r"\s*(?:SELECT|WITH|INSERT|UPDATE|DELETE|MERGE|BEGIN|DECLARE|\()\b", re.IGNORECASE)
#: A literal, a quoted name, or a word in lower case: the cases write only names in lower case.
_WORD = re.compile(r"""('(?:[^']|'')*'|"[^"]*")|\b(?!varchar\b)([a-z_]\w*)\b""")
#: How many times to drop everything: a type or a view may need another one, which is dropped later.
_ROUNDS = 3
_MORE = {"TABLE": " CASCADE CONSTRAINTS PURGE", "TYPE": " FORCE"}


def quote_names(sql: str) -> str:
    """Quote the names of a statement: Oracle would convert unquoted names to upper case, and some are keywords."""
    return _WORD.sub(lambda found: found[1] or f'"{found[2]}"', sql)


def open_scratch(settings: Settings) -> OracleScratch:
    """Return the schema of the user that the settings name."""
    return OracleScratch(settings.source.url.get_secret_value())


class OracleScratch(UrlPlace):
    """The scratch schema of `venus prove` on an Oracle server: the schema of a user of its own."""

    dialect = "oracle"
    empty_is_null = True
    concurrent_writers = True
    captures_truncate = True
    fires_on_cascade = True
    types: Mapping[str, str] = {"int": "NUMBER(9)", "text": "CLOB", "blob": "BLOB", "decimal": "NUMBER(10,2)"}
    statements = statement
    pieces = frozenset(("cut.probe_log", "cut.probe_paused", "proving.uuid", "proving.bigint", "proving.boolean"))

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.name = f"schema {self.namespace}"

    @property
    def namespace(self) -> str:
        """The name of the schema."""
        return str(sa.make_url(self.url).username or "").upper()

    def _driver(self) -> Driver:
        return parse_driver_url(self.url)[0]

    def connect(self) -> Application:
        """Open a session of the application."""
        return self.remember(OracleApplication(self._driver().connect(), ""))

    @contextmanager
    def _open(self) -> Iterator[OracleSession]:
        session = OracleSession(self._driver())
        try:
            yield session
            session.commit()
        finally:
            session.close()

    def analyze(self, app: Application, *tables: str) -> None:
        """Let the server gather statistics of these tables."""
        with self._open() as session:
            for table in tables:
                session.run(statement("scratch", "analyze", table=literal(quote(table))))

    def dump(self) -> str:
        """Return the definitions of all objects in the schema as text."""
        names = [block for file, block in statement.names() if file == "scratch" and block.startswith("catalogue_")]
        with self._open() as session:
            return "\n".join(str(row) for name in names for row in session.fetch_rows(statement("scratch", name)))

    def torture(self) -> tuple[Mapping[str, Torture], Sequence[str]]:
        """Return columns with values that are hard to carry."""
        return torture.COLUMNS, ()

    def script(self) -> str:
        """Return the lines that create a scratch schema."""
        return _SCRIPT

    def removal(self) -> str:
        """Return the statement that removes the remains of a run; the script creates the user again."""
        return f"DROP USER {quote(self.namespace)} CASCADE"

    def read_facts(self) -> list[tuple[str, str]]:
        """Return the facts of the database, as far as this user may see them."""
        facts = []
        with self._open() as session:
            for file, block in statement.names():
                if file == "scratch" and block.startswith(_FACT):
                    value = "not visible to this user"
                    with suppress(SourceError, IndexError):
                        value = str(session.fetch_rows(statement(file, block))[0][0])
                    facts.append((block.removeprefix(_FACT).replace("_", " "), value))
        return facts

    def list_objects(self) -> list[str]:
        """Return the objects of the schema, those in the recycle bin included."""
        with self._open() as session:
            return [f"{kind} {name}" for kind, name in session.fetch_rows(statement("scratch", "objects"))]

    def prepare(self) -> None:
        """Do nothing: a run needs only the schema."""

    def clear(self) -> None:
        """Drop all objects of the schema. Raises SourceError if an object cannot be dropped."""
        self.close_sessions()
        with self._open() as session:
            for last in (False,) * (_ROUNDS - 1) + (True,):
                found = session.fetch_rows(statement("scratch", "objects"))
                # a dropped table is in the recycle bin under a name of its own
                for kind, name in sorted(found, key=lambda row: row[0] != "trigger"):
                    if not str(name).startswith("BIN$"):
                        _drop(session, str(kind).upper(), str(name), must_work=last)
                with suppress(SourceError):
                    session.run("PURGE RECYCLEBIN")

    def parse(self, texts: Sequence[str]) -> int:
        """Let the server parse these statements; return how many it has parsed."""
        queries = [text for text in texts if _PARSED.match(text)]
        with self._open() as session:
            for query in queries:
                session.run(statement("scratch", "parse"), {"text": query})
        return len(queries)

    def explain(self, recorded: RecordedStatements) -> list[PlanCheck]:
        """Explain the statements of a cut and of a fill on the table `proof`."""
        checks = []
        with self._open() as session:
            for name, query in _find_queries(recorded):
                session.run(statement("scratch", "forget_plan"))
                session.run(statement("scratch", "explain", query=query))
                rows = session.fetch_rows(statement("scratch", "plan"))
                session.rollback()
                checks.append(_check_plan(name, [(str(step), str(of or "")) for step, of in rows]))
        return checks


def _drop(session: OracleSession, kind: str, name: str, *, must_work: bool) -> None:
    """Drop an object. In early rounds this may fail: another object may need it, or it was dropped with another."""
    try:
        session.run(statement("scratch", "drop", kind=kind, name=quote(name), more=_MORE.get(kind, "")))
    except SourceError:
        if must_work:
            raise


def _find_queries(recorded: RecordedStatements) -> Iterator[tuple[str, str]]:
    """Yield the last recorded query of each name, to explain it; for a fill, the last that continues after a key."""
    for name in ("probe", "claim", "changes", "fill"):
        texts = list(recorded.get(("cut", name), {}))
        if name in ("changes", "fill"):
            texts = [t for t in texts if '"proof"' in t]
        behind = [t for t in texts if " WHERE " in t.partition(" FROM ")[2]] if name == "fill" else texts
        yield from ((name, text) for text in (behind or texts)[-1:])


def _check_plan(name: str, rows: list[tuple[str, str]]) -> PlanCheck:
    """Return the execution plan, with a complaint if it scans the application's table, or sorts in a fill."""
    steps = tuple(f"{step} {of}".rstrip() for step, of in rows)
    scanned = [
        text.strip()
        for text, (step, of) in zip(steps, rows, strict=True)
        if ("TABLE ACCESS FULL" in step and of == "proof") or (name == "fill" and "SORT ORDER BY" in step)
    ]
    return PlanCheck(name=name, steps=steps, complaint="; ".join(scanned))


class OracleApplication(DriverApplication):
    """A session of the application at Oracle, which quotes the lower-case names in the statements of the cases."""

    def execute(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run a statement. Raises NameNotPossible."""
        if '""' in sql:
            raise NameNotPossible("Oracle cannot have such a name")
        parts = quote_names(sql).split("?") if values else [quote_names(sql)]
        text = "".join(part + (f":{n}" if n < len(parts) else "") for n, part in enumerate(parts, 1))
        with self.connection.cursor() as cursor:
            cursor.execute(text, values)
            return list(cursor.fetchall()) if cursor.description else []
