"""Few rows of a table, or of many: statements planned once in a session, and one round trip for all of them.

COPY is parsed and planned each time, which takes longer than to read four rows.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from venus.adapters.dialects.postgresql import cutsql
from venus.adapters.dialects.postgresql.claims import Claim
from venus.adapters.dialects.postgresql.connection import Connection
from venus.adapters.dialects.postgresql.statements import statement
from venus.adapters.dialects.postgresql.stream import FewRows

#: A session's prepared statements have at most this many columns: each costs its server process 2.4 KiB, all 40 MiB.
PREPARED_COLUMNS_MAX = 16384
#: What a statement costs beside its columns, in columns.
_OVERHEAD_COLUMNS = 16
#: What is read together is in memory as a whole: about so much, and one table more.
TOGETHER_BYTES = 1 << 20
#: A field of a row's text: in quotes, or as it is; nothing is NULL. Whole runs at once: a value may have megabytes.
_FIELD = re.compile(r'(?:"((?:[^"\\]++|""|\\\\)*+)"|([^,"]*+)),')


@dataclass(slots=True)
class Reads:
    """What few rows are read with in a session; `together` = it has the function that reads several tables."""

    together: bool = False
    #: By table, and whether rows were only inserted.
    _prepared: dict[tuple[int, bool], str] = field(default_factory=dict)
    _columns: int = 0

    def read(self, connection: Connection, claims: Sequence[Claim]) -> list[tuple[Claim, FewRows]]:
        """Return the rows of the first of these, and of as many more of them as go with it."""
        if len(claims) == 1 or not self.together:
            (text,) = self._statements(connection, claims[:1])
            return [(claims[0], FewRows(connection.texts(text)))]
        texts = self._statements(connection, claims)
        found = connection.rows(statement("cut", "read_together"), [texts, TOGETHER_BYTES])
        end = found.pop()[0]
        rows: list[list[list[str | None]]] = [[] for _ in range(end)]
        for place, line in found:
            rows[place - 1].append(values_of(line))
        return [(claim, FewRows(each)) for claim, each in zip(claims[:end], rows, strict=True)]

    def _statements(self, connection: Connection, claims: Sequence[Claim]) -> list[str]:
        """Return what reads these: calls of what is prepared, else the queries themselves."""
        texts, new = [], []
        for claim in claims:
            which = claim.schema.table_id, claim.inserts_only
            if which not in self._prepared:
                query = cutsql.changes(claim.table, claim.schema, inserts_only=claim.inserts_only, taken=True)
                if self._columns > PREPARED_COLUMNS_MAX:
                    texts.append(query)
                    continue
                name = f"venus_read_{len(self._prepared)}"
                new.append(f"PREPARE {name} AS {query}")
                self._prepared[which] = f"EXECUTE {name}"
                self._columns += len(claim.schema.columns) + _OVERHEAD_COLUMNS
            texts.append(self._prepared[which])
        if new:
            connection.run("; ".join(new))
        return texts


def values_of(row: str) -> list[str | None]:
    """Return the values of a row's text, which are in it as COPY and SELECT have them."""
    inside = row[1:-1]
    if '"' not in inside:
        return [value or None for value in inside.split(",")]
    return [
        found[2] or None if found[1] is None else found[1].replace('""', '"').replace("\\\\", "\\")
        for found in _FIELD.finditer(f"{inside},")
    ]
