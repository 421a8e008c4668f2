"""A double of python-oracledb for what no Oracle-like server here can show: how values are fetched, which errors come.

It does what the driver's documentation says, and nothing in it was observed on an Oracle. The pages, at
https://python-oracledb.readthedocs.io/en/latest/ :

- api_manual/connection.html, Connection.outputtypehandler: called as handler(cursor, metadata) for each column of a
  query, before rows are fetched; returns a variable made by cursor.var(), or None for the default.
- user_guide/sql_execution.html, "Changing Fetched Data Types with Output Type Handlers" and "Fetched Number
  Precision": a NUMBER is fetched as int or float by default; with var(decimal.Decimal) as Decimal.
- user_guide/lob_data.html, "Fetching LOBs as Strings and Bytes": CLOB and BLOB are fetched as LOB objects by default;
  with var(DB_TYPE_LONG) and var(DB_TYPE_LONG_RAW) as str and bytes, up to 1 GB.
- user_guide/exception_handling.html: an exception's args[0] has code, full_code ("ORA-01555", "DPY-4011"), message,
  isrecoverable; messages end with a line that names a help page.
- api_manual/cursor.html: Cursor.rowcount, arraysize, executemany with a sequence of sequences or mappings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

NUMBER, CLOB, NCLOB, BLOB, VARCHAR = "number", "clob", "nclob", "blob", "varchar"


class Error(Exception):
    """oracledb.Error."""


@dataclass(slots=True)
class Detail:
    """What the exception's args[0] has."""

    full_code: str
    message: str

    def __str__(self) -> str:
        return (
            f"{self.full_code}: {self.message}\nHelp: https://docs.oracle.com/error-help/db/{self.full_code.lower()}/"
        )


def error(full_code: str, message: str = "said so") -> Error:
    """Return an exception as the driver raises it."""
    return Error(Detail(full_code, message))


@dataclass(slots=True)
class Lob:
    """A LOB object: what comes if nobody asks for anything else."""

    content: str | bytes

    def read(self, offset: int = 1, amount: int | None = None) -> str | bytes:
        return self.content[offset - 1 : None if amount is None else offset - 1 + amount]


@dataclass(slots=True)
class Answer:
    """What a statement gives: column types and rows of what is stored, or an error."""

    types: Sequence[str] = ()
    rows: Sequence[Sequence[Any]] = ()
    rowcount: int = 0
    error: Error | None = None


@dataclass(slots=True)
class Module:
    """The module: types, and connections that answer from `answers` by the beginning of a statement."""

    answers: dict[str, list[Answer]] = field(default_factory=dict)
    said: list[tuple[str, Any]] = field(default_factory=list)
    connections: int = 0
    DB_TYPE_NUMBER: str = NUMBER
    DB_TYPE_CLOB: str = CLOB
    DB_TYPE_NCLOB: str = NCLOB
    DB_TYPE_BLOB: str = BLOB
    DB_TYPE_LONG: str = "long"
    DB_TYPE_LONG_NVARCHAR: str = "long nvarchar"
    DB_TYPE_LONG_RAW: str = "long raw"
    Error: type[Error] = Error

    def connect(self) -> Connection:
        self.connections += 1
        self.answer("connect")
        return Connection(self)

    def answer(self, statement: str) -> Answer:
        for beginning, answers in self.answers.items():
            if statement.startswith(beginning) and answers:
                answer = answers.pop(0) if len(answers) > 1 else answers[0]
                if answer.error:
                    answers[:] = answers if answers[0] is not answer else []
                    raise answer.error
                return answer
        return Answer()


@dataclass(slots=True)
class Connection:
    """oracledb.Connection."""

    module: Module
    outputtypehandler: Any = None
    ended: list[str] = field(default_factory=list)

    def cursor(self) -> Cursor:
        return Cursor(self)

    def commit(self) -> None:
        self.module.said.append(("COMMIT", None))
        self.module.answer("COMMIT")

    def rollback(self) -> None:
        self.module.said.append(("ROLLBACK", None))

    def close(self) -> None:
        self.module.said.append(("close", None))


@dataclass(slots=True)
class Cursor:
    """oracledb.Cursor."""

    connection: Connection
    arraysize: int = 100
    rowcount: int = 0
    rows: list[tuple[Any, ...]] = field(default_factory=list)

    def var(self, kind: Any, arraysize: int = 1) -> Any:
        return kind

    def execute(self, text: str, binds: Mapping[str, Any] | Sequence[Any] | None = None) -> None:
        module = self.connection.module
        module.said.append((text, binds))
        answer = module.answer(text)
        self.rowcount = answer.rowcount
        kinds = [self._kind(t) for t in answer.types]
        self.rows = [tuple(_fetched(k, v) for k, v in zip(kinds, row, strict=True)) for row in answer.rows]

    def _kind(self, stored: str) -> Any:
        handler = self.connection.outputtypehandler
        return (handler and handler(self, SimpleNamespace(type_code=stored))) or stored

    def executemany(self, text: str, rows: Sequence[Any]) -> None:
        self.connection.module.said.append((text, list(rows)))
        self.rowcount = self.connection.module.answer(text).rowcount

    def fetchall(self) -> list[tuple[Any, ...]]:
        rows, self.rows = self.rows, []
        return rows

    def fetchmany(self, size: int) -> list[tuple[Any, ...]]:
        rows, self.rows = self.rows[:size], self.rows[size:]
        return rows

    def close(self) -> None:
        self.rows = []


def _fetched(kind: Any, stored: Any) -> Any:
    if stored is None:
        return None
    if kind == NUMBER:
        return int(stored) if "." not in stored else float(stored)
    if kind is Decimal:
        return Decimal(stored)
    return Lob(stored) if kind in (CLOB, NCLOB, BLOB) else stored
