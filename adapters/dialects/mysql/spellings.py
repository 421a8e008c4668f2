"""Foreign keys that hold only because a collation takes two spellings for one. Reads only.

PostgreSQL compares texts exactly, so such a row refers to nothing at the target: the load leaves the foreign key
unvalidated, and the cut-over is blocked by it. The source accepts the exact spelling too, which is the way out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from venus.adapters.dialects.mysql.connection import Connection
from venus.adapters.dialects.mysql.dictionary import Dictionary, Reference
from venus.adapters.dialects.mysql.names import quoted
from venus.adapters.dialects.mysql.statements import statement
from venus.model import Finding, counted

#: Of each child table.
ROWS_MAX = 1_000_000


def findings(connection: Connection, dictionary: Dictionary, chosen: Collection[str]) -> Iterator[Finding]:
    """Name the foreign keys between captured tables of which rows refer to another spelling."""
    database = connection.address.database
    for reference in dictionary.references:
        inside = reference.parent_database == database and {reference.child, reference.parent} <= set(chosen)
        carried = {key.name for key in dictionary.tables[reference.child].foreign_keys}
        if inside and reference.name in carried and _is_loose(dictionary, reference):
            yield from _finding(connection, reference, database)


def _is_loose(dictionary: Dictionary, reference: Reference) -> bool:
    """Whether texts that differ may be equal in one of its columns."""
    declared = dictionary.tables[reference.parent].declared
    return any(d.is_text and not d.collation.endswith("_bin") for d in (declared[c] for c in reference.referred))


def _finding(connection: Connection, reference: Reference, database: str) -> Iterator[Finding]:
    pairs = [(quoted(c), quoted(p)) for c, p in zip(reference.columns, reference.referred, strict=True)]
    parts = {
        "child": f"{quoted(database)}.{quoted(reference.child)}",
        "parent": f"{quoted(database)}.{quoted(reference.parent)}",
        "match": " AND ".join(f"p.{p} = c.{c}" for c, p in pairs),
        "differ": " OR ".join(f"CAST(p.{p} AS BINARY) <> CAST(c.{c} AS BINARY)" for c, p in pairs),
        "assign": ", ".join(f"c.{c} = p.{p}" for c, p in pairs),
        "column": pairs[0][0], "referred": pairs[0][1], "rows": str(ROWS_MAX),
    }  # fmt: skip
    count, example, referred = connection.row(statement("check", "other_spellings", **parts))
    if int(count):
        columns = ", ".join(reference.columns)
        yield Finding(
            where=f"{database}.{reference.child}",
            message=f"foreign key {reference.name} ({columns}) holds only by collation: {counted(int(count), 'row')}"
            f" refer to another spelling in {reference.parent}, {example!r} to {referred!r};"
            " PostgreSQL compares exactly",
            remedy=statement("check", "same_spelling", **parts),
        )
