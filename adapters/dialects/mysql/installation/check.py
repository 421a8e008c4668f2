"""`venus check` at a MariaDB or MySQL source: what is missing and what cannot be carried. Reads only.

PostgreSQL compares texts exactly. A row whose foreign key matches only because a collation equates two spellings
refers to nothing at the target: the load leaves the foreign key unvalidated, and that blocks the cut-over. The remedy
is to store the exact spelling of the referenced key, which the source accepts too.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import replace
from functools import partial

from venus.adapters.dialects import rows as limits
from venus.adapters.dialects.column_choice import WAY_OUT
from venus.adapters.dialects.mysql.connection import MysqlConnection, Row
from venus.adapters.dialects.mysql.dictionary.tables import (
    MysqlDictionary,
    MysqlReference,
    MysqlTable,
    parse_columns,
    read_definition,
    read_dictionary,
)
from venus.adapters.dialects.mysql.installation.triggers import CircularCascade, find_reaching
from venus.adapters.dialects.mysql.sql import literal, quote, statement
from venus.adapters.dialects.rows import LargeValues
from venus.errors import DatabaseUnavailable, SourceError
from venus.model import Finding, Kind, count_phrase

#: The oldest versions that are tested or documented.
_VERSION_MIN = {"MariaDB": (10, 3), "MySQL": (8, 0)}
#: Privileges that capture needs.
NEEDED = ("SELECT", "INSERT", "UPDATE", "DELETE", "CREATE", "DROP", "TRIGGER", "CREATE TEMPORARY TABLES")
#: Functions that give a VIRTUAL column another value at another time, for another user, or at random.
_UNSETTLED = re.compile(
    r"@@|\b(now|current_timestamp|sysdate|localtime|localtimestamp|curdate|current_date|curtime|current_time|utc_\w+"
    r"|from_unixtime|rand|uuid|uuid_short|sys_guid|user|current_user|session_user|system_user|current_role|database"
    r"|schema|connection_id|last_insert_id|found_rows|row_count|version|dayname|monthname)\b(?!`)|\bunix_timestamp\(\)",
    re.IGNORECASE,
)
#: Types whose values may exceed the limit of a row.
_LARGE_TYPES = ("mediumtext", "longtext", "mediumblob", "longblob", "json")
#: How many rows of each table are searched for values that cannot be carried.
SAMPLE_ROWS = 10_000


def check(connection: MysqlConnection, include: Seq[str], exclude: Seq[str]) -> list[Finding]:
    """Return the findings of `venus check` about the server and the chosen tables."""
    found = list(_server_findings(connection))
    dictionary = read_dictionary(connection, zero_dates_null=connection.options.zero_dates_null)
    chosen = dictionary.choose_tables(include, exclude)
    for table in chosen:
        found += [replace(f, table=table.where) for f in _table_findings(connection, table)]
    found += connection.address.columns.findings((t.database, t.name, name) for t in chosen for name in t.declared)
    found += find_other_spellings(connection, dictionary, {t.name for t in chosen})
    found += [replace(f, table=f.where) for f in _cascade_findings(connection, dictionary, {t.name for t in chosen})]
    return found


def _server_findings(connection: MysqlConnection) -> Iterator[Finding]:
    version, read_only, log_bin, binlog, trusted, autoinc, account = connection.row(statement("check", "server"))
    maker = "MariaDB" if "mariadb" in version.lower() else "MySQL"
    numbers = tuple(int(n) for n in re.findall(r"\d+", version)[:2])
    if numbers < _VERSION_MIN[maker]:
        needed = ".".join(map(str, _VERSION_MIN[maker]))
        yield Finding(where="server", message=f"{maker} {needed} or newer is needed", remedy="upgrade it", blocks=True)
    if read_only not in ("0", "OFF"):
        yield Finding(
            where="server", message="is read-only: nothing can be installed", remedy="use the primary", blocks=True
        )
    if int(connection.row(statement("check", "replica_threads"))[0]):
        yield from _replica_findings(connection)
    if log_bin == "1" and binlog == "STATEMENT":
        yield Finding(
            where="server",
            message="binlog_format is STATEMENT: replicas may number the rows of log tables otherwise",
            remedy="SET GLOBAL binlog_format = 'ROW' or 'MIXED'",
        )
    if autoinc == "0":
        yield Finding(
            where="server",
            message="innodb_autoinc_lock_mode is 0: statements that change one table wait for each other",
            remedy="set it to 1 or 2 and restart the server",
        )
    yield from _privilege_findings(connection, account, binary_log=log_bin == "1" and trusted == "0")


def _replica_findings(connection: MysqlConnection) -> Iterator[Finding]:
    if connection.row(statement("check", "replica_triggers"))[0] == "NO":
        yield Finding(
            where="server",
            message="is a replica: rows replicated from its primary fire no triggers",
            remedy="use the primary, or STOP SLAVE; SET GLOBAL slave_run_triggers_for_rbr = 'YES'; START SLAVE (and the"
            " same in the server's options); earlier changes need `venus resync`",
        )


def _read_privileges(connection: MysqlConnection, account: str) -> set[str]:
    """Return the privileges that an account has on the database, or everywhere."""
    user, _, host = account.rpartition("@")
    grantees = [f"'{user}'@'{host}'"]
    if "mariadb" in str(connection.row("SELECT version()")[0]).lower():
        (role,) = connection.row("SELECT coalesce(current_role(), '')")
        grantees += [f"'{role}'@''"] if role else []
    parts = {"grantees": ", ".join(map(literal, grantees)), "database": literal(connection.address.database)}
    return {r[0].upper() for r in connection.rows(statement("check", "privileges", **parts))}


def find_valve_obstacle(connection: MysqlConnection) -> str:
    """Return the statement that lets an event limit the logs even while capture is down; empty if not needed."""
    if connection.row(statement("triggers", "scheduler"))[0] not in ("ON", "1"):
        return "SET GLOBAL event_scheduler = ON;"
    account = str(connection.row("SELECT current_user()")[0])
    user, _, host = account.rpartition("@")
    if "EVENT" in _read_privileges(connection, account):
        return ""
    return f"GRANT EVENT ON {quote(connection.address.database)}.* TO {quote(user)}@{quote(host)};"


def _privilege_findings(connection: MysqlConnection, account: str, *, binary_log: bool) -> Iterator[Finding]:
    user, _, host = account.rpartition("@")
    held = _read_privileges(connection, account)
    name = f"{quote(user)}@{quote(host)}"
    missing = [p for p in NEEDED if p not in held]
    if missing:
        yield Finding(
            where="privileges",
            message=f"{', '.join(missing)} not granted",
            remedy=f"GRANT {', '.join(missing)} ON {quote(connection.address.database)}.* TO {name};",
            blocks=True,
        )
    if "PROCESS" not in held:
        yield Finding(
            where="privileges",
            message="PROCESS not granted: VENUS cannot detect a TRUNCATE or report what blocks capture",
            remedy=f"GRANT PROCESS ON *.* TO {name};",
        )
    if binary_log and not held & {"SUPER", "SET USER", "BINLOG ADMIN", "SET_USER_ID"}:
        yield Finding(
            where="privileges",
            message="with the binary log on, only administrators may create triggers at this server",
            remedy="SET GLOBAL log_bin_trust_function_creators = 1;",
            blocks=True,
        )


def _hidden_column_findings(connection: MysqlConnection, table: MysqlTable) -> Iterator[Finding]:
    """Yield a finding for columns that only the definition shows, because this user may not read them."""
    try:
        columns = [c for c in parse_columns(read_definition(connection, table.sql)) if c not in table.declared]
    except DatabaseUnavailable:
        raise
    except SourceError:  # the table has just been dropped
        return
    if columns:
        shown = ", ".join(map(quote, columns))
        user, _, host = str(connection.row("SELECT current_user()")[0]).rpartition("@")
        yield Finding(
            where=table.where,
            message=f"column {', '.join(columns)} may not be read, and is not captured",
            remedy=f"GRANT SELECT ({shown}) ON {table.sql} TO {quote(user)}@{quote(host)};",
        )


def find_obstacle(table: MysqlTable) -> str:
    """Return why the definition of a table prevents its capture, empty if it does not."""
    found = next(_definition_findings(table), None)
    if found is None:
        return ""
    column = found.where.removeprefix(table.where).lstrip(".")
    return f"column {column} {found.message}" if column else found.message


def _definition_findings(table: MysqlTable) -> Iterator[Finding]:
    """Yield the findings that prevent the capture of a table, whatever its rows are."""
    if table.engine.lower() != "innodb":
        yield Finding(
            where=table.where,
            message=f"its engine is {table.engine}, which has no transactions: VENUS could miss a change",
            remedy="ALTER TABLE ... ENGINE=InnoDB, or exclude the table",
            blocks=True,
        )
    if not table.key:
        number = statement("check", "record_id", table=table.sql)
        remedy = f"{number} (no query shows it), or another PRIMARY KEY, or a UNIQUE index on NOT NULL columns"
        remedy += "; or exclude the table"
        if table.key_problems:
            remedy += "; nearest: " + "; ".join(table.key_problems)
        yield Finding(
            where=table.where,
            message="has no usable key: rows without one cannot be distinguished",
            remedy=remedy,
            blocks=True,
            details=table.key_problems,
            script=(number,),
        )
    for column, why in table.unsupported:
        yield Finding(
            where=f"{table.where}.{column}",
            message=f"cannot be carried exactly: {why}",
            remedy=f"{WAY_OUT}, or change the column's type",
            blocks=True,
        )


def _table_findings(connection: MysqlConnection, table: MysqlTable) -> Iterator[Finding]:
    yield from _definition_findings(table)
    yield from _hidden_column_findings(connection, table)
    for column, expression in table.expressions.items():
        if _UNSETTLED.search(expression):
            yield Finding(
                where=f"{table.where}.{column}",
                message=f"is computed by each query: no trigger fires when AS ({expression}) gives another value",
                remedy="compute it in a view and drop the column, or exclude the table",
            )
    if not connection.options.zero_dates_null:
        yield from _zero_date_findings(connection, table)


def _zero_date_findings(connection: MysqlConnection, table: MysqlTable) -> Iterator[Finding]:
    for column in table.columns:
        if column.type.kind not in (Kind.DATE, Kind.TIMESTAMP, Kind.TIMESTAMPTZ):
            continue
        sample = statement("check", "zero_dates", column=quote(column.name), table=table.sql, rows=str(SAMPLE_ROWS))
        count = int(connection.row(sample)[0])
        if count:
            yield Finding(
                where=f"{table.where}.{column.name}",
                message=f"{count} of at most {SAMPLE_ROWS} sampled rows have a zero date, which is not a valid date",
                remedy="correct them, or add venus_zero_dates=null to the source's URL: they then arrive as NULL",
                blocks=True,
            )


def find_large_values(connection: MysqlConnection, tables: Iterable[MysqlTable]) -> Iterator[LargeValues]:
    """Yield the tables with columns of types whose values may be larger than a message."""
    for table in tables:
        if columns := [c.name for c in table.columns if table.declared[c.name].data_type in _LARGE_TYPES]:
            count = partial(_count_large_rows, connection, table, columns)
            yield LargeValues(table=table.where, columns=columns, count=count)


def _count_large_rows(connection: MysqlConnection, table: MysqlTable, columns: Iterable[str], seconds: float) -> Row:
    """Return how many rows a table has and how many are larger than a message; give up after `seconds`."""
    lengths = " + ".join(statement("check", "length", column=quote(c)) for c in columns)
    parts = {"table": table.sql, "bytes": str(limits.ROW_BYTES_MAX), "seconds": str(int(seconds))}
    return connection.row(statement("check", "large_rows", lengths=lengths, **parts))


def _cascade_findings(connection: MysqlConnection, dictionary: MysqlDictionary, chosen: set[str]) -> Iterator[Finding]:
    database = connection.address.database
    for reference in dictionary.references:
        acts = {reference.on_delete, reference.on_update} & {"CASCADE", "SET NULL"}
        if reference.parent_database != database and reference.child in chosen and acts:
            yield Finding(
                where=f"{database}.{reference.child}",
                message=f"foreign key {reference.name} changes its rows from {reference.parent_database}."
                f"{reference.parent}, where VENUS creates no triggers",
                remedy="make it RESTRICT, or exclude the table",
                blocks=True,
            )
    for circle in find_circles(dictionary, chosen):
        yield Finding(
            where=f"{database}.{circle.reference.child}",
            message=f"foreign key {circle.reference.name} cascades in a circle: MariaDB and MySQL fire no triggers"
            " for it, and those of VENUS cannot follow it to its end",
            remedy="make it RESTRICT and delete the children first, or exclude the table",
            blocks=True,
        )


def find_circles(dictionary: MysqlDictionary, chosen: set[str]) -> list[CircularCascade]:
    """Return the circular cascades, which triggers cannot follow."""
    return find_reaching(dictionary.references, chosen)[1]


#: How many rows of each child table are compared.
ROWS_MAX = 1_000_000


def find_other_spellings(
    connection: MysqlConnection, dictionary: MysqlDictionary, chosen: Collection[str]
) -> Iterator[Finding]:
    """Yield findings about foreign keys whose rows match the parent's only by collation, not byte for byte."""
    database = connection.address.database
    for reference in dictionary.references:
        inside = reference.parent_database == database and {reference.child, reference.parent} <= set(chosen)
        carried = {key.name for key in dictionary.tables[reference.child].foreign_keys}
        if inside and reference.name in carried and _has_loose_column(dictionary, reference):
            yield from _spelling_findings(connection, reference, database)


def _has_loose_column(dictionary: MysqlDictionary, reference: MysqlReference) -> bool:
    """Whether the collation of a column that a foreign key refers to may equate different texts."""
    declared = dictionary.tables[reference.parent].declared
    return any(d.is_text and not d.collation.endswith("_bin") for d in (declared[c] for c in reference.referred))


def _spelling_findings(connection: MysqlConnection, reference: MysqlReference, database: str) -> Iterator[Finding]:
    pairs = [(quote(c), quote(p)) for c, p in zip(reference.columns, reference.referred, strict=True)]
    parts = {
        "child": f"{quote(database)}.{quote(reference.child)}",
        "parent": f"{quote(database)}.{quote(reference.parent)}",
        "match": " AND ".join(f"p.{p} = c.{c}" for c, p in pairs),
        "differ": " OR ".join(f"CAST(p.{p} AS BINARY) <> CAST(c.{c} AS BINARY)" for c, p in pairs),
        "assign": ", ".join(f"c.{c} = p.{p}" for c, p in pairs),
        "column": pairs[0][0],
        "referred": pairs[0][1],
        "rows": str(ROWS_MAX),
    }
    count, example, referred = connection.row(statement("check", "other_spellings", **parts))
    if int(count):
        columns = ", ".join(reference.columns)
        yield Finding(
            where=f"{database}.{reference.child}",
            message=f"foreign key {reference.name} ({columns}) holds only by collation: "
            f"{count_phrase(int(count), 'row')}"
            f" refer to another spelling in {reference.parent}, {example!r} to {referred!r};"
            " PostgreSQL compares exactly",
            remedy=statement("check", "same_spelling", **parts),
        )
