"""The compound trigger for bulk DML, experimental: `venus_triggers=compound` in the URL (capture.md 3). Pure text.

A statement that Oracle restarts fires the row parts again: keys too many are harmless, the state is read later.
"""

from __future__ import annotations

from collections.abc import Iterator

from venus.adapters.dialects.oracle import names
from venus.adapters.dialects.oracle.ddl import Keyed, Made, key_changed
from venus.adapters.dialects.oracle.names import log_keys, log_table, quoted
from venus.adapters.dialects.oracle.statements import statement

#: Keys collected in the session's memory before they are written.
PIECE_ROWS = 5000


def triggers(table: Keyed, table_id: int) -> Iterator[Made]:
    """Yield the one trigger of a captured table, disabled."""
    log, keys = log_table(table_id), log_keys(len(table.key))
    name = names.trigger(names.COMPOUND_LETTER, table_id)

    def noted(row: str) -> str:
        values = zip(keys, table.key, strict=True)
        return "\n".join(f"      G_{k}(G_N) := :{row}.{quoted(column.name)};" for k, column in values)

    sql = statement(
        "compound",
        "trigger",
        trigger=name,
        table=table.sql,
        log=log,
        keys=", ".join(keys),
        types="\n".join(f"  TYPE T_{k} IS TABLE OF {log}.{k}%TYPE INDEX BY PLS_INTEGER;" for k in keys),
        arrays="\n".join(f"  G_{k}  T_{k};" for k in keys),
        deletes="\n".join(f"    G_{k}.DELETE;" for k in keys),
        collected=", ".join(f"G_{k}(J)" for k in keys),
        new_key=noted("NEW"),
        old_key=noted("OLD"),
        key_changed=key_changed(table),
        piece=str(PIECE_ROWS),
    )
    yield Made(kind="TRIGGER", name=name, sql=sql)
