"""Detection of changes that fire no trigger, by marks: InnoDB's numbers of tables, and summaries of definitions.

No trigger fires when a generated column gets another expression, when a column is dropped and added again, or when two
columns exchange names, and InnoDB keeps the table's number. ALTER TABLE does change the text of the definition, or at
least the time at which the server wrote it. VENUS stores this text and time for the next comparison.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping

from venus.adapters.dialects.mysql.connection import MysqlConnection
from venus.adapters.dialects.mysql.dictionary.tables import is_mariadb
from venus.adapters.dialects.mysql.sql import literal, statement
from venus.errors import DatabaseUnavailable, SourceError

#: InnoDB's encoding leaves such a name unchanged.
_PLAIN = re.compile(r"[A-Za-z0-9_]+")


def definition_key(table_id: int) -> int:
    """Return the negative number under which a table's definition is stored as a mark; older versions ignore it."""
    return -table_id


def summarise_definition(definition: str, written: str) -> str:
    """Return a summary of a table's definition: when it was written, and digests of its columns and of the rest."""
    lines = [line.rstrip(",") for line in definition.split("\n")]
    columns = [line for line in lines if line.startswith("  `")]
    return f"{written} {_digest(columns)} {_digest([line for line in lines if line not in columns])}"


def _digest(lines: list[str]) -> str:
    return hashlib.blake2b("\n".join(lines).encode(), digest_size=8).hexdigest()


def has_other_columns(before: str, now: str) -> bool:
    """Return whether two summaries of a table's definition differ in the declarations of columns."""
    return bool(before) and _split_summary(before)[1] != _split_summary(now)[1]


def is_rewritten(before: str, now: str) -> bool:
    """Return whether the server has written the definition again since the summary `before`."""
    return bool(before) and _split_summary(before)[0] != _split_summary(now)[0]


def may_have_altered(before: str, now: str, *, moved: bool) -> bool:
    """Return whether ALTER TABLE may have changed values between two summaries of a table's definition.

    Values may have changed if the columns are declared differently, or if the server wrote the definition again and
    its text does not show why. A new index or comment shows in the definition's text. `moved`: files were copied, so
    their times prove nothing.
    """
    unexplained = is_rewritten(before, now) and _split_summary(before)[2] == _split_summary(now)[2]
    return has_other_columns(before, now) or (unexplained and not moved)


def _split_summary(summary: str) -> list[str]:
    return summary.rsplit(" ", 2)


class InnodbNumbers:
    """Reader and store of InnoDB's numbers of the tables. A TRUNCATE or a rebuild gives a table a new number."""

    def __init__(self, connection: MysqlConnection) -> None:
        self._connection = connection
        self._names: dict[str, str] = {}
        self._query = ""
        #: Whether this user may see the numbers: that needs the privilege PROCESS, which `check` reports.
        self.visible = True

    def read_present(self) -> dict[str, str]:
        """Return InnoDB's present numbers by table, {} if hidden from this user. Each partition has its own number."""
        if not self.visible:
            return {}
        if not self._query:
            maker = "mariadb" if is_mariadb(self._connection) else "mysql"
            like = self._encode_name(self._connection.address.database).replace("_", r"\_") + "/%"
            self._query = statement("dictionary", f"marks_{maker}", like=literal(like))
        try:
            rows = self._connection.rows(self._query)
        except DatabaseUnavailable:
            raise
        except SourceError:
            self.visible = False
            return {}
        found: dict[str, list[str]] = {}
        for name, number in rows:
            table = str(name).partition("/")[2].partition("#")[0]
            found.setdefault(table, []).append(str(number))
        return {table: ",".join(sorted(numbers)) for table, numbers in found.items()}

    def table_mark(self, table: str, marks: Mapping[str, str]) -> str:
        """Return InnoDB's numbers of one table from `marks` as they are stored; empty if they are unknown."""
        text = marks.get(self._encode_name(table), "")
        return text if len(text) <= 64 else hashlib.sha256(text.encode()).hexdigest()

    def _encode_name(self, name: str) -> str:
        """Return a name in the encoding of InnoDB's own views."""
        if _PLAIN.fullmatch(name):
            return name
        if name not in self._names:
            query = statement("dictionary", "encoded", name=literal(name))
            self._names[name] = str(self._connection.row(query)[0])
        return self._names[name]

    def read_stored(self) -> dict[int, str]:
        """Return all stored marks: InnoDB's numbers by table id, summaries of definitions by `definition_key`."""
        return {int(t): str(m) for t, m in self._connection.rows(statement("registry", "known_marks"))}

    def store(self, table_id: int, mark: str) -> None:
        """Store a mark, InnoDB's number or the summary of a definition, in place of an earlier one."""
        self._connection.run(statement("registry", "store_mark", table_id=str(table_id), mark=literal(mark)))
