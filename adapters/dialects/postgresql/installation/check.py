"""`venus check` at a PostgreSQL source: what is missing and what cannot be carried. Reads only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import replace

from venus.adapters.dialects.contract import UncapturedTable
from venus.adapters.dialects.postgresql import registry
from venus.adapters.dialects.postgresql.connection import PostgresConnection
from venus.adapters.dialects.postgresql.dictionary import tables as dictionary
from venus.adapters.dialects.postgresql.dictionary.tables import PostgresTable
from venus.adapters.dialects.postgresql.installation import findings
from venus.adapters.dialects.postgresql.installation.findings import KeylessFacts
from venus.adapters.dialects.postgresql.names import qualify, quote
from venus.adapters.dialects.postgresql.sql import statement
from venus.model import Finding, count_phrase

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
        keyless = _read_keyless(connection, [t for t in chosen if not t.key])
        for table in chosen:
            name = f"{table.namespace}.{table.name}"
            found += [replace(f, table=name) for f in findings.table_findings(table, keyless.get(table.oid))]
        found += _privilege_findings(connection, chosen)
        found += _replica_writer_findings(connection)
        found += _older_installation_findings(connection)
    if chosen:
        found.append(_size_finding(chosen))
    return found


def _read_keyless(connection: PostgresConnection, tables: Iterable[PostgresTable]) -> dict[int, KeylessFacts]:
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
    """Return the tables that the patterns choose and the registry lacks. If there are none, this is one statement."""
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
    found = next((f for f in findings.table_findings(table) if f.blocks), None)
    if found is None:
        return ""
    column = found.where.removeprefix(f"{table.namespace}.{table.name}").lstrip(".")
    return f"column {column} {found.message}" if column else found.message


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
    by_oid = {t.oid: t for t in tables}
    reported_schemas = set()
    for oid, usage, may_read, may_trigger, filtered in connection.rows(
        statement("check", "privileges"), {"tables": list(by_oid)}
    ):
        table = by_oid[oid]
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
            yield Finding(
                where=f"{table.namespace}.{table.name}",
                message=f"{' and '.join(missing)} not granted",
                remedy=f"GRANT {', '.join(missing)} ON {qualify(table.namespace, table.name)} TO {role};",
                blocks=True,
            )
        if filtered:
            yield Finding(
                where=f"{table.namespace}.{table.name}",
                message="row security would hide rows from this role",
                remedy=f"ALTER ROLE {role} BYPASSRLS;",
                blocks=True,
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
