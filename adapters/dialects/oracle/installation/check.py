"""The findings of `venus check` at an Oracle source: missing privileges as GRANT lines, and what cannot be carried.

Reads only. Privileges through a role count, because the triggers touch only objects of their own schema. The GRANT
lines grant directly, so that a later change of roles revokes nothing.

A table with a type that cannot hold every value would halt sooner or later. So `check` and the installation read every
row of a table before it is captured, once for all columns with a requested type. The findings also name full
tablespaces, and sessions that block capture.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Iterator, Mapping
from collections.abc import Sequence as Seq
from dataclasses import replace
from zlib import crc32

from venus.adapters.dialects.column_choice import WAY_OUT
from venus.adapters.dialects.contract import SchemaChanged
from venus.adapters.dialects.oracle import registry
from venus.adapters.dialects.oracle.dictionary import ownership, reader, segments
from venus.adapters.dialects.oracle.dictionary.overrides import (
    SWITCHES,
    is_switch,
    normalise_switch,
    requested_types,
    switch_applies,
)
from venus.adapters.dialects.oracle.dictionary.reader import OracleDictionary, Visibility
from venus.adapters.dialects.oracle.dictionary.tables import (
    NO_KEY,
    ListedTable,
    OracleTable,
    choose_tables,
    left_out_tables,
)
from venus.adapters.dialects.oracle.installation.row_checks import (
    character_set_findings,
    prove_rows,
    sample_findings,
)
from venus.adapters.dialects.oracle.language import ddl
from venus.adapters.dialects.oracle.session.connection import OracleSession
from venus.adapters.dialects.oracle.session.driver import OracleOptions
from venus.adapters.dialects.oracle.session.options import Version, column_pattern_names
from venus.adapters.dialects.oracle.sql import quote, statement
from venus.adapters.dialects.statements import describe_session
from venus.errors import Refused, SourceError
from venus.model import Finding

_ALWAYS = ("CREATE TABLE", "CREATE SEQUENCE", "CREATE TRIGGER", "CREATE VIEW")

#: Oracle's packages that VENUS calls, with the purpose.
_PACKAGES = {
    "DBMS_LOB": "it measures and writes LOBs",
    "DBMS_STATS": "it keeps the statistics of the log tables fixed",
    "DBMS_UTILITY": "it waits for open transactions without a lock",
}
_FOR_BYTES = {"UTL_RAW": "it reads texts as bytes"}


def check(
    session: OracleSession,
    dictionary: OracleDictionary,
    version: Version,
    options: OracleOptions,
    include: Seq[str],
    exclude: Seq[str],
) -> Iterator[Finding]:
    """Yield the findings of `venus check` about the database and the chosen tables."""
    yield from _privilege_findings(session, dictionary, version, options)
    yield from _identity_findings(session, dictionary.user)
    yield from room_findings(session)
    yield from blocker_findings(session, dictionary.user)
    listed = dictionary.list_tables()
    yield from reader.redaction_findings(dictionary.visibility, dictionary.user)
    for at in left_out_tables(listed, include, exclude):
        yield Finding(where=at.qualified_name, message=f"left out: {at.kind.left_out}")
    yield from _synonym_findings(session, dictionary, include)
    tables = yield from _table_findings(
        session, dictionary, version, options, list(choose_tables(listed, include, exclude))
    )
    yield from switch_proposals([table for table in tables if not table.refusals])
    yield from direct_path_findings(session, dictionary.user, {table.schema.qualified_name for table in tables})
    yield from _unmatched_settings(dictionary, options, tables)
    yield from _older_installation_findings(dictionary)
    yield from _narrow_log_findings(session, dictionary)
    session.rollback()


def raise_blocking_finding(findings: Iterable[Finding]) -> None:
    """Raise Refused for the first finding that blocks an installation."""
    for finding in findings:
        if finding.blocks:
            raise Refused(f"{finding.where}: {finding.message}", hint=finding.remedy)


def _read_schema_privileges(session: OracleSession, version: Version, schemas: Seq[str]) -> set[str]:
    """Return the privileges that are granted on each of these schemas."""
    if not (version.schema_privileges and schemas):
        return set()
    rows = session.fetch_rows(statement("dictionary", "schema_privileges"))
    return set.intersection(*({str(p) for p, schema in rows if schema == s} for s in schemas))


def _privilege_findings(
    session: OracleSession, dictionary: OracleDictionary, version: Version, options: OracleOptions
) -> Iterator[Finding]:
    """Yield the privileges that VENUS's user lacks, and the schemas where VENUS cannot detect TRUNCATE."""
    granted = {str(row[0]) for row in session.fetch_rows(statement("dictionary", "privileges"))}
    foreign = [s for s in dictionary.schemas if s != dictionary.user]
    of_schemas = _read_schema_privileges(session, version, foreign)
    yield from _missing_privileges(dictionary.user, granted | of_schemas, foreign=bool(foreign), options=options)
    executable = {str(row[0]) for row in session.fetch_rows(statement("dictionary", "packages"))}
    needed = _PACKAGES | (_FOR_BYTES if dictionary.reads_bytes else {})
    yield from _missing_packages(dictionary.user, needed, executable)
    if "UNLIMITED TABLESPACE" not in granted and not session.fetch_rows(statement("dictionary", "quota")):
        remedy = f"ALTER USER {quote(dictionary.user)} QUOTA UNLIMITED ON USERS;"
        yield Finding(where="tablespace", message="no quota: the log tables cannot grow", remedy=remedy, blocks=True)
    if foreign and not options.watch_database:
        message = (
            f"TRUNCATE by the owners of {', '.join(foreign)} is not detected:"
            " a trigger ON SCHEMA fires for its own schema only"
        )
        yield Finding(where="TRUNCATE", message=message, remedy="set venus_watch=database in [source] url")


def _table_findings(
    session: OracleSession,
    dictionary: OracleDictionary,
    version: Version,
    options: OracleOptions,
    listed: Seq[ListedTable],
) -> Generator[Finding, None, list[OracleTable]]:
    """Yield the findings of the tables that are captured, or would be; return these tables."""
    captured = dictionary.read_captured_names()
    sets = dictionary.character_sets
    yield from character_set_findings(sets)
    tables = []
    for at in listed:
        table = dictionary.read_table(at, as_inline=options.inline)
        tables.append(table)
        if not table.refusals and (at.owner, at.name) not in captured:
            yield from dictionary.prove_once(table, lambda table: list(prove_rows(session, table, sets)))
        name = table.schema.qualified_name
        yield from (replace(f, table=name) for f in _one_table_findings(table, version, dictionary.visibility))
        yield from sample_findings(session, table, dictionary.user, sets)
    return tables


def _unmatched_settings(
    dictionary: OracleDictionary, options: OracleOptions, tables: Seq[OracleTable]
) -> Iterator[Finding]:
    """Yield the entries of [source.type_map] and [source.columns] that match no column."""
    seen = {column.name.upper() for table in tables for column in table.schema.columns}
    asked: set[str] = set()
    columns: list[tuple[str, str]] = []
    for at in (table.listed for table in tables):
        asked |= requested_types(options.type_map, at.owner, at.name).keys()
        columns += [column_pattern_names(at.owner, at.name, row[0]) for row in dictionary.read_column_rows(at)]
    for name in options.type_map:
        if not is_switch(normalise_switch(name)) and name.upper().rpartition(".")[2] not in asked & seen:
            message = f"{name} names no column of a captured table"
            yield Finding(where="[source.type_map]", message=message, remedy="write TABLE.COLUMN", blocks=True)
    for pattern in dictionary.columns.find_unmatched_patterns(columns):
        message = f"{pattern!r} matches no column of a captured table"
        yield Finding(where="[source.columns]", message=message, remedy="write TABLE.COLUMN", blocks=True)


def _synonym_findings(session: OracleSession, dictionary: OracleDictionary, include: Seq[str]) -> Iterator[Finding]:
    """Yield the synonyms that a pattern matches: VENUS captures a table under its own name."""
    for owner in dictionary.schemas:
        for name, place, table in session.fetch_rows(statement("kinds", "synonyms"), {"owner": owner}):
            if {str(name).upper(), f"{owner}.{name}".upper()} & {p.upper() for p in include}:
                remedy = f"name {place}.{table} in [source] tables, and {place} in venus_schemas of its url"
                message = f"left out: a synonym for {place}.{table}"
                yield Finding(where=f"{owner}.{name}", message=message, remedy=remedy)


def _older_installation_findings(dictionary: OracleDictionary) -> Iterator[Finding]:
    """Yield what VENUS cannot detect if an older version installed capture, without the table of segments."""
    if dictionary.owned_objects.has(ownership.REGISTRY) and not dictionary.owned_objects.has(segments.TABLE):
        yield Finding(
            where="installation",
            message="is of an older version: a TRUNCATE, a trigger that was off for a while, or an ALTER TABLE that"
            " changes values goes unnoticed unless the DDL trigger records it",
            remedy=f"run `venus install-triggers`, which adds the table {segments.TABLE}",
        )


def _narrow_log_findings(session: OracleSession, dictionary: OracleDictionary) -> Iterator[Finding]:
    """Yield the log columns that an older version created with the width that the key had then."""
    if not dictionary.owned_objects.has(ownership.REGISTRY):
        return
    here = ownership.read_widths(session)
    listed = {(t.owner, t.name): t for t in dictionary.list_tables()}
    for captured in registry.read_tables(session).values():
        schema = captured.schema
        at = listed.get((schema.namespace, schema.name))
        table = dictionary.read_table(at, schema, captured.number_max) if at else None
        if table and len(table.keyed.key) == len(schema.key):
            for column, _ in ownership.find_narrow_columns(table.keyed, schema.table_id, here):
                message = f"column {column} of its log is of an older version: a wider key would fail the application"
                yield Finding(where=schema.qualified_name, message=message, remedy="run `venus install-triggers`")


def _missing_privileges(user: str, granted: set[str], *, foreign: bool, options: OracleOptions) -> Iterator[Finding]:
    needed = [*_ALWAYS]
    if foreign:
        needed += ["CREATE ANY TRIGGER", "SELECT ANY TABLE"]
    if options.watch_database:
        needed.append("ADMINISTER DATABASE TRIGGER")
    if options.log.is_set:
        needed.append("CREATE JOB")
    for privilege in needed:
        if privilege not in granted:
            yield Finding(
                where="privileges",
                message=f"{privilege} is not granted to {user}",
                remedy=f"GRANT {privilege} TO {quote(user)};",
                blocks=privilege != "SELECT ANY TABLE",  # SELECT on each table is enough as well
            )


def _one_table_findings(table: OracleTable, version: Version, visible: Visibility) -> Iterator[Finding]:
    where = table.schema.qualified_name
    ways = {h.message: h.remedy for h in visible.restrictions_of(table.listed.owner, table.listed.name)}
    for reason in table.refusals:
        remedy = _key_remedies(table, version) if reason == NO_KEY else ways.get(reason, _remedy(reason))
        yield Finding(where=where, message=reason, remedy=remedy, blocks=True)
    for left in table.schema.left_out:
        if left.what in ("column", "virtual column"):
            yield Finding(where=where, message=f"{left.what} {left.name} is left out: {left.reason}")
    for remark in table.remarks:
        yield Finding(where=where, message=remark)


def _remedy(reason: str) -> str:
    """Return the remedy for a table that is refused for this reason."""
    if reason.startswith("column "):
        return WAY_OUT
    return "exclude the table in [source] exclude"


def _identity_findings(session: OracleSession, user: str) -> Iterator[Finding]:
    """Yield the grant without which a switch-over of Data Guard looks like a copy of the database."""
    if "DBID" not in registry.read_identity_facts(session, containers=False):
        message = "DBID may not be read: a switch-over to a standby looks like a copy, and capture stops there"
        yield Finding(where="privileges", message=message, remedy=f"GRANT SELECT ON V_$DATABASE TO {quote(user)};")


def _missing_packages(user: str, needed: Mapping[str, str], executable: set[str]) -> Iterator[Finding]:
    """Yield the missing privileges on packages, which PUBLIC has by default unless the database was hardened."""
    for package, purpose in needed.items():
        if package not in executable:
            message = f"EXECUTE on SYS.{package} is not granted to {user}: {purpose}"
            remedy = f"GRANT EXECUTE ON SYS.{package} TO {quote(user)};"
            yield Finding(where="privileges", message=message, remedy=remedy, blocks=True)


def _key_remedies(table: OracleTable, version: Version) -> str:
    """Return the remedies for a table without a key. ROWID is no key: it changes when a row moves."""
    name = table.schema.qualified_name
    ways = [
        f"ALTER TABLE {table.keyed.sql} ADD PRIMARY KEY (...) or a UNIQUE constraint over columns that are NOT NULL"
    ]
    if identity := ddl.record_id_statements(table.keyed, version, f"VENUS_R_{crc32(name.encode()):08X}"):
        ways.append("give it an invisible number: " + "; ".join(identity))
    return " -- or ".join([*ways, "exclude the table in [source] exclude"])


#: With less free space, a batch job of the application may fill the tablespace of the logs while VENUS is down.
ROOM_BYTES_MIN = 256 << 20
#: The views that show blocking transactions, by their names in a GRANT.
BLOCKER_VIEWS = ("GV_$LOCKED_OBJECT", "GV_$TRANSACTION")


def room_findings(session: OracleSession) -> Iterator[Finding]:
    """Yield warnings about little room for the logs; without room, the application's statements fail."""
    for tablespace, free in session.fetch_rows(statement("sampling", "room")):
        if int(free) < ROOM_BYTES_MIN:
            message = f"tablespace {tablespace} has {int(free) >> 20} MiB free in its present files"
            grow = f"ALTER TABLESPACE {quote(str(tablespace))} ADD DATAFILE SIZE 1G AUTOEXTEND ON; (unless it grows)"
            remedy = f"{grow}; and log_rows_max or log_bytes_max in [source] stop a log before the tablespace is full"
            yield Finding(where="tablespace", message=message, remedy=remedy)
    for tablespace, used, most in session.fetch_rows(statement("dictionary", "quota")):
        if 0 < int(most) < int(used) + ROOM_BYTES_MIN:
            message = f"the quota on {tablespace} has {max(int(most) - int(used), 0) >> 20} MiB left"
            yield Finding(where="tablespace", message=message, remedy="ALTER USER ... QUOTA UNLIMITED ON ...;")


def direct_path_findings(session: OracleSession, user: str, tables: Collection[str]) -> Iterator[Finding]:
    """Yield the tables that are written by direct path or in parallel: triggers silently disable both."""
    try:
        found = session.fetch_rows(statement("sampling", "direct_path"))
    except (SourceError, SchemaChanged):
        message = "which tables are written by direct path or in parallel is not known: triggers end both"
        yield Finding(where="privileges", message=message, remedy=f"GRANT SELECT ON GV_$SQL_PLAN TO {quote(user)};")
        return
    for owner, name, statements in found:
        if f"{owner}.{name}" in tables:
            ways = f"{int(statements)} statements write it by direct path or in parallel"
            message = f"{ways}: once it has triggers they run conventionally, slower and without a message"
            remedy = "measure these loads, or exclude the table"
            yield Finding(where=f"{owner}.{name}", message=message, remedy=remedy)


def read_blocker_ages(session: OracleSession) -> dict[str, int] | None:
    """Return the age of the oldest open transaction by log table; None if this user may not see it."""
    try:
        return {str(name): int(age) for name, age in session.fetch_rows(statement("sampling", "blockers"))}
    except (SourceError, SchemaChanged):
        return None


def describe_blocker(session: OracleSession, user: str) -> str:
    """Describe the session with the oldest open transaction on a log table, or the grants needed to see it."""
    try:
        rows = session.fetch_rows(statement("sampling", "holder"))
    except (SourceError, SchemaChanged):
        return f"not shown without {_blocker_grants(user)}"
    return "".join(_describe_session(*row) for row in rows[:1])


def _describe_session(number: int, instance: int, user: str | None, os_user: str | None, since: str | None) -> str:
    facts = [f"user {user}" if user else "", f"of the system {os_user}" if os_user else "", f"instance {instance}"]
    opened = f"transaction open since {since}, the server's time" if since else ""
    return describe_session(int(number), *facts, opened)


def _blocker_grants(user: str) -> str:
    return " ".join(f"GRANT SELECT ON {view} TO {quote(user)};" for view in BLOCKER_VIEWS)


def blocker_findings(session: OracleSession, user: str) -> Iterator[Finding]:
    """Yield the grants that a user lacks to see the transactions that delay a cut."""
    if read_blocker_ages(session) is None:
        message = "`venus status` does not show whose open transaction delays changes"
        yield Finding(where="privileges", message=message, remedy=_blocker_grants(user))


def switch_proposals(tables: Seq[OracleTable]) -> Iterator[Finding]:
    """Yield entries for [source.type_map] that would carry columns of a type in a more fitting way."""
    for switch, way in SWITCHES.items():
        places = {
            table.schema.qualified_name: [
                name
                for name, reading in table.readings.items()
                if switch_applies(switch, reading.declared)
                and reading.mapping.text in ("octets", "number")
                and (way == "uuid" or reading.declared.precision is None)
            ]
            for table in tables
        }
        count = sum(map(len, places.values()))
        if count:
            first = next(f"{table}.{columns[0]}" for table, columns in places.items() if columns)
            message = f"{count} columns of type {switch} could be carried as {way}, for example {first}"
            remedy = f'"{switch}" = "{way}" in [source.type_map]; `venus check` then proves that the data fits'
            yield Finding(where="types", message=message, remedy=remedy)
