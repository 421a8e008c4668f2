"""A double of python-oracledb for behaviour that the stand-in cannot show: how values are fetched, and driver errors.

It does what the driver's documentation says, and nothing in it was observed on an Oracle. The pages, at
https://python-oracledb.readthedocs.io/en/latest/ :

- api_manual/connection.html, Connection.outputtypehandler: called as handler(cursor, metadata) for each column of a
  query, before rows are fetched; returns a variable made by cursor.var(), or None for the default.
- user_guide/sql_execution.html, "Changing Fetched Data Types with Output Type Handlers" and "Fetched Number
  Precision": a NUMBER is fetched as int or float by default; with var(decimal.Decimal) as Decimal.
- user_guide/lob_data.html, "Fetching LOBs as Strings and Bytes": CLOB and BLOB are fetched as LOB objects by default;
  with var(DB_TYPE_LONG) and var(DB_TYPE_LONG_RAW) as str and bytes, up to 1 GB.
- api_manual/lob.html, LOB.read(offset, amount), LOB.size(), LOB.getchunksize(): offsets begin at 1; they are bytes of a
  BLOB and UCS-2 code points of a CLOB; "the offset and amount will have to be chosen carefully to avoid splitting a
  character". The documentation does not say what a split returns: the double gives either a decoding error or U+FFFD
  (`replaces`).
- api_manual/cursor.html, Cursor.var(DB_TYPE_CLOB): a variable of a LOB type gives locators, whatever
  api_manual/defaults.html, Defaults.fetch_lobs, says.
- user_guide/lob_data.html: a NULL is None, an empty LOB a locator of size 0. As DB_TYPE_LONG an empty LOB is None here:
the documentation does not exclude that.
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

NUMBER, CLOB, NCLOB, BLOB, VARCHAR, NVARCHAR = "number", "clob", "nclob", "blob", "varchar", "nvarchar"
LONG, LONG_NVARCHAR, LONG_RAW = "long", "long nvarchar", "long raw"


class Error(Exception):
    """Stands for oracledb.Error."""


@dataclass(slots=True)
class ErrorDetails:
    """Details of a driver error: its args[0]."""

    full_code: str
    message: str

    def __str__(self) -> str:
        return (
            f"{self.full_code}: {self.message}\nHelp: https://docs.oracle.com/error-help/db/{self.full_code.lower()}/"
        )


def error(full_code: str, message: str = "said so") -> Error:
    """Return an exception in the form in which the driver raises it."""
    return Error(ErrorDetails(full_code, message))


@dataclass(slots=True)
class Lob:
    """A LOB object, the default form of a fetched LOB."""

    content: str | bytes
    replaces: bool = False
    error: Error | None = None  # error of the second read: the row was deleted after the first piece
    read_at: list[tuple[int, int]] = field(default_factory=list)

    def _units(self) -> bytes:
        return self.content if isinstance(self.content, bytes) else self.content.encode("utf-16-le", "surrogatepass")

    def size(self) -> int:
        return len(self._units()) // self._width

    @property
    def _width(self) -> int:
        return 1 if isinstance(self.content, bytes) else 2

    def getchunksize(self) -> int:
        return 8132

    def read(self, offset: int = 1, amount: int | None = None) -> str | bytes:
        if self.error is not None and self.read_at:
            raise self.error
        start, width = offset - 1, self._width
        amount = self.size() - start if amount is None else amount
        self.read_at.append((offset, amount))
        found = self._units()[start * width : (start + amount) * width]
        if isinstance(self.content, bytes):
            return found
        return found.decode("utf-16-le", "replace" if self.replaces else "strict")


@dataclass(slots=True)
class Answer:
    """Answer to a statement: column types and stored rows, or an error."""

    types: Sequence[str] = ()
    names: Sequence[str] = ()
    rows: Sequence[Sequence[Any]] = ()
    rowcount: int = 0
    error: Error | None = None


@dataclass(slots=True)
class Module:
    """The driver module: types, and connections that answer by the beginning of a statement, from `answers`."""

    answers: dict[str, list[Answer]] = field(default_factory=dict)
    said: list[tuple[str, Any]] = field(default_factory=list)
    connections: int = 0
    #: Binds of the statement executed last whose type is not the driver's default.
    bound: dict[str, str] = field(default_factory=dict)
    #: Types of the binds of executemany; None = the driver's default.
    sizes: tuple[str | None, ...] = ()
    DB_TYPE_NUMBER: str = NUMBER
    DB_TYPE_CLOB: str = CLOB
    DB_TYPE_NCLOB: str = NCLOB
    DB_TYPE_BLOB: str = BLOB
    DB_TYPE_NVARCHAR: str = NVARCHAR
    DB_TYPE_LONG: str = LONG
    DB_TYPE_LONG_NVARCHAR: str = LONG_NVARCHAR
    DB_TYPE_LONG_RAW: str = LONG_RAW
    Error: type[Error] = Error

    def connect(self) -> Connection:
        self.connections += 1
        self.answer("connect")
        return Connection(self)

    def answer(self, statement: str) -> Answer:
        if "CURRENT_EDITION_NAME" in statement and statement not in self.answers:
            return Answer()  # the database has no editions
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
    """Stands for oracledb.Connection."""

    module: Module
    outputtypehandler: Any = None
    inputtypehandler: Any = None
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
    """Stands for oracledb.Cursor."""

    connection: Connection
    arraysize: int = 100
    prefetchrows: int = 2
    rowcount: int = 0
    rows: list[tuple[Any, ...]] = field(default_factory=list)

    def var(self, kind: Any, arraysize: int = 1) -> Any:
        return kind

    def execute(self, text: str, binds: Mapping[str, Any] | Sequence[Any] | None = None) -> None:
        module = self.connection.module
        module.said.append((text, binds))
        self._bind(binds)
        answer = module.answer(text)
        self.rowcount = answer.rowcount
        names = answer.names or [""] * len(answer.types)
        kinds = [self._kind(n, t) for n, t in zip(names, answer.types, strict=True)]
        self.rows = [tuple(_fetch(k, v) for k, v in zip(kinds, row, strict=True)) for row in answer.rows]

    def _bind(self, binds: Mapping[str, Any] | Sequence[Any] | None) -> None:
        """Ask the input handler how to bind each value; api_manual/connection.html, Connection.inputtypehandler."""
        handler = self.connection.inputtypehandler
        named = binds.items() if isinstance(binds, Mapping) else enumerate(binds or (), 1)
        kinds = {str(name): handler(self, value, 1) for name, value in named} if handler else {}
        self.connection.module.bound = {name: kind for name, kind in kinds.items() if kind}

    def _kind(self, name: str, stored: str) -> Any:
        handler = self.connection.outputtypehandler
        return (handler and handler(self, SimpleNamespace(name=name, type_code=stored))) or stored

    def setinputsizes(self, *types: Any) -> None:
        self.connection.module.sizes = types

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


def _fetch(kind: Any, stored: Any) -> Any:
    """Return a stored value as the driver fetches it into a variable of this type."""
    if stored is None:
        return None
    if kind == NUMBER:
        return int(stored) if "." not in stored else float(stored)
    if kind is Decimal:
        return Decimal(stored)
    if kind in (CLOB, NCLOB, BLOB):
        return stored if isinstance(stored, Lob) else Lob(stored)
    return stored or None if kind in (LONG, LONG_NVARCHAR, LONG_RAW) else stored
