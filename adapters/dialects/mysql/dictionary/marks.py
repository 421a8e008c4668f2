"""Marks that show what no trigger notices: InnoDB's numbers of tables, and summaries of their definitions.

No trigger fires when a generated column gets another expression, when a column is dropped and added again, or when two
columns exchange names, and InnoDB keeps the table's number. Two things do change: the text of the definition, and the
time at which the server wrote it. Both are stored between two comparisons.
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
    """Return the key under which a definition is stored beside InnoDB's number. Older versions ignore such keys."""
    return -table_id


def summarise_definition(definition: str, written: str) -> str:
    """Return the summary of a definition: when it was written, and digests of its columns and of the rest."""
    lines = [line.rstrip(",") for line in definition.split("\n")]
    columns = [line for line in lines if line.startswith("  `")]
    return f"{written} {_digest(columns)} {_digest([line for line in lines if line not in columns])}"


def _digest(lines: list[str]) -> str:
    return hashlib.blake2b("\n".join(lines).encode(), digest_size=8).hexdigest()


def has_other_columns(before: str, now: str) -> bool:
    """Return whether the declarations of the columns differ."""
    return bool(before) and _split_summary(before)[1] != _split_summary(now)[1]


def is_rewritten(before: str, now: str) -> bool:
    """Return whether the server has written the definition again since then."""
    return bool(before) and _split_summary(before)[0] != _split_summary(now)[0]


def may_have_altered(before: str, now: str, *, moved: bool) -> bool:
    """Return whether ALTER TABLE may have changed values.

    That is so if the columns are declared differently, or if the definition was written again and its text does not
    show why. A new index or comment shows in the text. `moved`: files were copied, so their times prove nothing.
    """
    unexplained = is_rewritten(before, now) and _split_summary(before)[2] == _split_summary(now)[2]
    return has_other_columns(before, now) or (unexplained and not moved)


def _split_summary(look: str) -> list[str]:
    return look.rsplit(" ", 2)


class InnodbNumbers:
    """InnoDB's numbers of the tables. TRUNCATE gives a table a new number, and so does a rebuild."""

    def __init__(self, connection: MysqlConnection) -> None:
        self._connection = connection
        self._names: dict[str, str] = {}
        self._query = ""
        #: Whether this user may see the numbers: that needs the privilege PROCESS, which `check` reports.
        self.visible = True

    def read_present(self) -> dict[str, str]:
        """Return the present marks by table, {} if they are hidden. A partitioned table has a number per partition."""
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
        """Return the mark of one table, empty if it is unknown."""
        text = marks.get(self._encode_name(table), "")
        return text if len(text) <= 64 else hashlib.sha256(text.encode()).hexdigest()

    def _encode_name(self, name: str) -> str:
        if _PLAIN.fullmatch(name):
            return name
        if name not in self._names:
            query = statement("dictionary", "encoded", name=literal(name))
            self._names[name] = str(self._connection.row(query)[0])
        return self._names[name]

    def read_stored(self) -> dict[int, str]:
        """Return the stored marks by table number."""
        return {int(t): str(m) for t, m in self._connection.rows(statement("registry", "known_marks"))}

    def store(self, table_id: int, mark: str) -> None:
        """Store a mark."""
        self._connection.run(statement("registry", "store_mark", table_id=str(table_id), mark=literal(mark)))
