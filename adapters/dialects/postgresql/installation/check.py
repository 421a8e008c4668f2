"""`venus check` at a PostgreSQL source: what is missing and what cannot be carried. Reads only.

A table without a key can often be given a number column that distinguishes equal rows; the statements depend on the
kind of table. A member of an inheritance tree gets the number column together with its parent, and the column cannot
be an identity. A partitioned table's key must include the partition columns. A typed table accepts no new column. A
table whose row type is the type of a column cannot be rewritten. All statements can be repeated, and the order of the
tables does not matter.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from functools import partial

from venus.adapters.dialects import rows as limits
from venus.adapters.dialects.canonical_text import keeps_text
from venus.adapters.dialects.column_choice import WAY_OUT
from venus.adapters.dialects.contract import UncapturedTable
from venus.adapters.dialects.postgresql import registry
from venus.adapters.dialects.postgresql.connection import PostgresConnection, Row
from venus.adapters.dialects.postgresql.dictionary import tables as dictionary
from venus.adapters.dialects.postgresql.dictionary.tables import PostgresTable
from venus.adapters.dialects.postgresql.installation.other_pipelines import OtherPipelines, read_own_tables
from venus.adapters.dialects.postgresql.installation.triggers import ALWAYS
from venus.adapters.dialects.postgresql.sql import literal, qualify, quote, statement
from venus.adapters.dialects.rows import LargeValues
from venus.model import CHILD_TABLE, Column, Finding, Kind, TableSchema, count_phrase

#: The server's compression makes a value at most this many times smaller.
COMPRESSION_MAX = 256
#: The first version with CREATE OR REPLACE TRIGGER.
VERSION_MIN = 140_000


def check(connection: PostgresConnection, include: Seq[str], exclude: Seq[str]) -> list[Finding]:
    """Return every finding, in one read-only snapshot."""
    with connection.snapshot():
        rows = dictionary.read_all_tables(connection)
        chosen = dictionary.read_tables(connection, dictionary.choose_tables(rows, include, exclude))
        found = list(_server_findings(connection))
        found += [
            Finding(
                where=pattern,
                message="no table matches this pattern",
                remedy="a pattern is schema.table with wildcards; without a dot the schema is public",
            )
            for pattern in dictionary.find_unmatched_patterns(rows, include)
        ]
        found += connection.columns.findings(
            (t.namespace, t.name, name)
            for t in chosen
            for name in (*(c.name for c in t.columns), *(o.name for o in t.left_out if o.what == "column"))
        )
        keyless = _read_keyless_facts(connection, [t for t in chosen if not t.key])
        for table in chosen:
            name = f"{table.namespace}.{table.name}"
            found += [replace(f, table=name) for f in table_findings(table, keyless.get(table.oid))]
        found += _privilege_findings(connection, chosen)
        found += _replica_writer_findings(connection)
        found += _older_installation_findings(connection)
    if chosen:
        found.append(_size_finding(chosen))
    return found


def _read_keyless_facts(connection: PostgresConnection, tables: Iterable[PostgresTable]) -> dict[int, KeylessFacts]:
    """Read the facts that decide how tables without a key can be given one, by oid."""
    oids = {"tables": [t.oid for t in tables]}
    if not oids["tables"]:
        return {}
    rows = connection.rows(statement("check", "with_keyless") + statement("check", "keyless"), oids)
    return {
        r[0]: KeylessFacts(
            partitioned=r[1],
            typed=r[2],
            numbers_used=r[3],
            inherits=r[4],
            has_primary=r[5],
            columns=frozenset(r[6] or ()),
            numbered=bool(r[7]),
            divided_by=tuple(r[8] or ()),
            foreign_partition=r[9] or "",
            row_type_in=r[10] or "",
        )
        for r in rows
    }


def find_uncaptured_tables(
    connection: PostgresConnection, include: Seq[str], exclude: Seq[str]
) -> list[UncapturedTable]:
    """Return the tables that the patterns choose and the registry lacks. Runs one statement if no table is missing."""
    if not registry.is_installed(connection):
        return []
    names = connection.rows(statement("registry", "uncaptured"))
    oids = {row[0] for row in dictionary.choose_tables(names, include, exclude)}
    if not oids:
        return []
    tables = dictionary.read_tables(connection, [r for r in dictionary.read_all_tables(connection) if r[0] in oids])
    return [UncapturedTable(name=f"{t.namespace}.{t.name}", obstacle=_find_obstacle(t)) for t in tables]


def _find_obstacle(table: PostgresTable) -> str:
    """Return why the definition of a table prevents its capture, empty if it does not."""
    found = next((f for f in table_findings(table) if f.blocks), None)
    if found is None:
        return ""
    column = found.where.removeprefix(f"{table.namespace}.{table.name}").lstrip(".")
    return f"column {column} {found.message}" if column else found.message


#: Kinds of values without a limit of length, and the types whose length is known without reading the value.
_LONG_KINDS = (Kind.TEXT, Kind.BYTES, Kind.JSON, Kind.ARRAY, Kind.NATIVE)
_MEASURED = ("text", "character varying", "bytea")


def find_large_values(connection: PostgresConnection, tables: Iterable[PostgresTable]) -> Iterator[LargeValues]:
    """Yield the tables with TOAST storage that may contain a value larger than a message."""
    for table in tables:
        columns = [c for c in table.columns if c.type.kind in _LONG_KINDS]
        oids = {"tables": [table.oid, *(leaf.oid for leaf in table.leaves)]}
        outside = connection.row(statement("check", "large_values"), oids)[0] if columns else 0
        if outside * COMPRESSION_MAX > limits.ROW_BYTES_MAX:
            yield LargeValues(
                table=f"{table.namespace}.{table.name}",
                columns=[c.name for c in columns],
                count=partial(_count_large_rows, connection, table, columns),
            )


def _count_large_rows(
    connection: PostgresConnection, table: PostgresTable, columns: Iterable[Column], seconds: float
) -> Row:
    lengths = " + ".join(
        statement(
            "check",
            "length" if c.source_type in _MEASURED else "text_length",
            c=quote(c.name),
            bytes=str(limits.ROW_BYTES_MAX // COMPRESSION_MAX),
        )
        for c in columns
    )
    connection.run(f"SAVEPOINT counting; SET LOCAL statement_timeout = '{int(seconds)}s'")
    try:
        parts = {"lengths": lengths, "table": table.from_sql, "bytes": str(limits.ROW_BYTES_MAX)}
        return connection.row(statement("check", "large_rows", **parts))
    finally:
        if not connection.is_closed:
            connection.run("ROLLBACK TO SAVEPOINT counting")


def _size_finding(tables: Seq[PostgresTable]) -> Finding:
    how_many = count_phrase(len(tables), "table")
    largest = max(tables, key=lambda t: t.rows_estimate)
    if not largest.rows_estimate:  # there are no statistics before the first ANALYZE, for example after a restore
        message = f"{how_many}; row counts are unknown before ANALYZE, but `venus assess` estimates them"
        return Finding(where="tables", message=message)
    rows = count_phrase(sum(t.rows_estimate for t in tables), "row")
    name = f"{largest.namespace}.{largest.name}"
    return Finding(
        where="tables", message=f"{how_many}, about {rows}; the largest is {name} with about {largest.rows_estimate:,}"
    )


def _server_findings(connection: PostgresConnection) -> Iterator[Finding]:
    version, encoding, role, is_super, database, may_create, exists, may_use, standby, sees_stats = connection.row(
        statement("check", "server")
    )
    if version < VERSION_MIN:
        yield Finding(where="server", message="PostgreSQL 14 or newer is needed", remedy="upgrade it", blocks=True)
    if standby:
        yield Finding(
            where="server", message="is a standby: nothing can be installed", remedy="use the primary", blocks=True
        )
    if encoding == "SQL_ASCII":
        yield Finding(
            where="server",
            message="encoding is SQL_ASCII: the database does not validate text",
            remedy="expect rows that are not UTF-8 to halt their table",
        )
    if not exists and not may_create:
        yield Finding(
            where="privileges",
            message=f"role {role} may not create the schema venus",
            remedy=f"GRANT CREATE ON DATABASE {quote(database)} TO {quote(role)};",
            blocks=True,
        )
    if not may_use:
        yield Finding(
            where="privileges",
            message=f"role {role} may not use the schema venus",
            remedy=f"GRANT USAGE, CREATE ON SCHEMA venus TO {quote(role)};",
            blocks=True,
        )
    if not is_super and not sees_stats:
        yield Finding(
            where="privileges",
            message="transactions of other roles are hidden: `venus status` cannot show what blocks capture",
            remedy=f"GRANT pg_read_all_stats TO {quote(role)};",
        )


def _privilege_findings(connection: PostgresConnection, tables: Seq[PostgresTable]) -> Iterator[Finding]:
    role = quote(connection.row("SELECT current_user::text")[0])
    (state, *_) = OtherPipelines.read(connection, read_own_tables(connection)).trigger_states
    by_oid = {t.oid: t for t in tables}
    reported_schemas = set()
    for oid, usage, may_read, may_trigger, filtered, owner, may_always_fire in connection.rows(
        statement("check", "privileges"), {"tables": list(by_oid)}
    ):
        table = by_oid[oid]
        blocking = partial(Finding, where=f"{table.namespace}.{table.name}", blocks=True)
        if may_read is None:
            continue  # dropped since the snapshot
        if not usage and table.namespace not in reported_schemas:
            reported_schemas.add(table.namespace)
            yield Finding(
                where=table.namespace,
                message=f"role {role} may not use the schema",
                remedy=f"GRANT USAGE ON SCHEMA {quote(table.namespace)} TO {role};",
                blocks=True,
            )
        missing = [name for name, granted in (("SELECT", may_read), ("TRIGGER", may_trigger)) if not granted]
        if missing:
            yield blocking(
                message=f"{' and '.join(missing)} not granted",
                remedy=f"GRANT {', '.join(missing)} ON {qualify(table.namespace, table.name)} TO {role};",
            )
        if state == ALWAYS and not may_always_fire:
            yield blocking(
                message="belongs to another role: only its owner may make triggers ENABLE ALWAYS, as they must be here",
                remedy=f"GRANT {owner} TO {role}; -- all rights of {owner}; or let {role} own the table",
            )
        if filtered:
            yield blocking(
                message="row security would hide rows from this role", remedy=f"ALTER ROLE {role} BYPASSRLS;"
            )


def _replica_writer_findings(connection: PostgresConnection) -> Iterator[Finding]:
    if connection.options.always:
        return
    for (writer,) in connection.rows(statement("check", "replica_writers")):
        yield Finding(
            where=writer,
            message="writes with session_replication_role = replica: such rows fire no ordinary trigger",
            remedy="add venus_always=true to the source's URL and install again: the triggers are then ENABLE ALWAYS",
        )


def _older_installation_findings(connection: PostgresConnection) -> Iterator[Finding]:
    if connection.row(statement("check", "unseen"))[0]:
        yield Finding(
            where="installation",
            message="is of an older version: it cannot detect a trigger that was off for a while, or values that"
            " ALTER TABLE computed",
            remedy="run `venus install-triggers`, which adds the table venus.seen",
        )


COLUMN = "venus_record_id"
#: PostgreSQL's limit, dropped columns included.
_COLUMNS_MAX = 1600


@dataclass(frozen=True, slots=True, kw_only=True)
class KeylessFacts:
    """The facts that decide how a table can be given a key."""

    partitioned: bool
    typed: bool
    numbers_used: int
    #: Whether the table is a parent or a child by inheritance.
    inherits: bool
    has_primary: bool
    #: Names of columns of every table in the same tree.
    columns: frozenset[str]
    #: Whether the offered column exists already, because the parent's statement added it.
    numbered: bool
    #: The partition columns of the table and its partitions, "" for an expression.
    divided_by: tuple[str, ...]
    foreign_partition: str
    #: A column whose type is, or contains, the row type of a table of the tree: it forbids rewriting.
    row_type_in: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyOffer:
    """Statements that give a table a key, or the reason why there are none, with a remark."""

    statements: tuple[str, ...] = ()
    remark: str = ""


def offer_key(table: PostgresTable, facts: KeylessFacts) -> KeyOffer:
    """Return the statements that give a table a key, or why it cannot have one."""
    if facts.numbers_used >= _COLUMNS_MAX:
        return KeyOffer(remark="it has as many columns as PostgreSQL allows")
    if facts.partitioned:
        return _offer_for_partitioned(table, facts)
    column = quote(_number_column(facts))
    word = "UNIQUE" if facts.has_primary else "PRIMARY KEY"
    key = f"ALTER TABLE {table.name_sql} ADD {word} ({column})"
    if facts.numbered:
        return KeyOffer(statements=(key,), remark="the column exists already")
    if facts.inherits:
        remark = "children get the column too, and need a key of their own"
        return KeyOffer(statements=(*_number_statements(table, column, facts), key), remark=remark)
    if facts.row_type_in:
        remark = f"row by row, because {facts.row_type_in} has its row type"
        return KeyOffer(
            statements=(*_detach_statements(table, facts), *_number_statements(table, column, facts), key),
            remark=remark,
        )
    add = f"ALTER TABLE {table.name_sql} ADD COLUMN {column} bigint GENERATED ALWAYS AS IDENTITY {word}"
    remark = "the table then no longer follows its type" if facts.typed else "only SELECT * shows it"
    return KeyOffer(statements=(*_detach_statements(table, facts), add), remark=remark)


def _detach_statements(table: PostgresTable, facts: KeylessFacts) -> tuple[str, ...]:
    """Return the statement that detaches a typed table from its type, which forbids new columns."""
    return (f"ALTER TABLE {table.name_sql} NOT OF",) if facts.typed else ()


def _offer_for_partitioned(table: PostgresTable, facts: KeylessFacts) -> KeyOffer:
    if "" in facts.divided_by:
        return KeyOffer(remark="it is partitioned by an expression, and PostgreSQL allows no key on such a table")
    if facts.foreign_partition:
        return KeyOffer(remark=f"its partition {facts.foreign_partition} is a foreign table, which cannot have a key")
    column = quote(_number_column(facts))
    columns = list(map(quote, facts.divided_by))
    nulls = ", ".join(f"ALTER COLUMN {c} SET NOT NULL" for c in columns)
    # a partition may have a primary key of its own
    key = f"ALTER TABLE {table.name_sql} {nulls}, ADD UNIQUE ({', '.join([column, *columns])})"
    numbered = () if facts.numbered else _number_statements(table, column, facts)
    divided_by = ", ".join(facts.divided_by)
    return KeyOffer(statements=(*numbered, key), remark=f"rows with NULL in ({divided_by}) must get a value first")


def _number_column(facts: KeylessFacts) -> str:
    """Return the name of the column that numbers the rows; no table of the tree uses it for another column."""
    name, number = COLUMN, 1
    while name in facts.columns and not (facts.numbered and number == 1):
        number += 1
        name = f"{COLUMN}_{number}"
    return name


def _number_statements(table: PostgresTable, column: str, facts: KeylessFacts) -> tuple[str, ...]:
    """Return the statements that add the number column, also to children and partitions."""
    alter = f"ALTER TABLE {table.name_sql}"
    if not facts.row_type_in:
        return (f"{alter} ADD COLUMN IF NOT EXISTS {column} bigserial",)
    # a default would rewrite the table, which PostgreSQL refuses while a column has its row type
    sequence = qualify(table.namespace, f"{COLUMN}_{table.oid}_seq")
    return (
        f"{alter} ADD COLUMN IF NOT EXISTS {column} bigint",
        f"CREATE SEQUENCE IF NOT EXISTS {sequence} OWNED BY {table.name_sql}.{column}",
        f"{alter} ALTER COLUMN {column} SET DEFAULT nextval({literal(sequence)})",
        f"UPDATE {table.name_sql} SET {column} = DEFAULT WHERE {column} IS NULL",
        f"{alter} ALTER COLUMN {column} SET NOT NULL",
    )


_WAY_OUT = "run `venus install-triggers`, then `venus resync`"


def describe_key_change(known: TableSchema, table: PostgresTable) -> str:
    """Return how the key has changed; empty if it is unchanged or wider."""
    if not table.key:
        return f"its key is gone: give it one, {_WAY_OUT}"
    now = tuple(k.name for k in table.key)
    if now != known.key:
        return f"its key was ({', '.join(known.key)}) and is ({', '.join(now)}): {_WAY_OUT}"
    before = {c.name: c for c in known.columns}
    for column in table.columns:
        was = before.get(column.name)
        if column.name not in known.key:
            continue
        if was is None or was.number != column.number or not keeps_text(was.type, column.type):
            return f"key column {column.name} was recreated as {column.source_type}: {_WAY_OUT}"
    return ""


#: The quotes around the bodies of VENUS's functions.
_DOLLAR = "$venus$"


def table_findings(table: PostgresTable, keyless: KeylessFacts | None = None) -> Iterator[Finding]:
    """Yield the findings about one table. `keyless`: the facts about a table without a key."""
    where = f"{table.namespace}.{table.name}"
    if table.kind == "f":
        yield Finding(
            where=where,
            message="is a foreign table: changes at its own server fire no trigger here",
            remedy="exclude it, and capture it at its own server",
            blocks=True,
        )
        return
    yield from _key_findings(where, table, keyless)
    for column, why in table.unsupported:
        yield Finding(
            where=f"{where}.{column}",
            message=f"cannot be carried exactly: {why}",
            remedy=f"{WAY_OUT}, or change the column's type",
            blocks=True,
        )
    if any(_DOLLAR in k.name for k in table.key):
        yield Finding(where=where, message=f"a key column's name contains {_DOLLAR}", remedy="rename it", blocks=True)
    if table.unlogged:
        yield Finding(
            where=where,
            message="is unlogged: a crash of the server empties it, and no trigger fires",
            remedy="ALTER TABLE ... SET LOGGED, or resync it after a crash",
        )
    for left in table.left_out:
        if left.what == CHILD_TABLE:
            yield Finding(
                where=where, message=f"has the child table {left.name}, which is not carried", remedy=left.reason
            )
    if table.row_security:
        yield Finding(
            where=where,
            message="has row security: only its owner or a role with BYPASSRLS sees all rows",
            remedy="let VENUS connect as such a role; a read that would be filtered fails instead",
        )


def _key_findings(where: str, table: PostgresTable, keyless: KeylessFacts | None) -> Iterator[Finding]:
    if table.key:
        return
    offered = offer_key(table, keyless) if keyless else KeyOffer()
    if offered.statements:
        remedy = f"{'; '.join(offered.statements)} ({offered.remark}), or another PRIMARY KEY, or a unique index"
        remedy += " on NOT NULL columns; or exclude the table"
    else:
        remedy = f"exclude the table: {offered.remark}" if offered.remark else "exclude the table"
    if table.key_choices:
        remedy += "; nearest: " + "; ".join(table.key_choices)
    yield Finding(
        where=where,
        message="has no usable key: rows without one cannot be distinguished",
        remedy=remedy,
        blocks=True,
        details=table.key_choices,
        script=offered.statements,
    )
