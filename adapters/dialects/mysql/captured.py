"""A registered table together with what the dictionary says of it now; capture works on these.

The definition is remembered as the text of SHOW CREATE TABLE: one cheap statement tells in every cut whether a table
is still what it was when its statements were written.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from venus.adapters.dialects.mysql import dictionary, registry
from venus.adapters.dialects.mysql.connection import Connection
from venus.adapters.dialects.mysql.dictionary import Dictionary, Table
from venus.adapters.dialects.mysql.names import literal, quoted
from venus.adapters.dialects.mysql.reading import Access, access_to
from venus.adapters.dialects.mysql.registry import Registered
from venus.adapters.dialects.mysql.statements import statement
from venus.codec.schema import fingerprint
from venus.errors import DatabaseUnavailable, SourceError
from venus.model import TableSchema


def slot(table_id: int) -> int:
    """Return where it is kept, beside the number of InnoDB's: older versions look up no such table."""
    return -table_id


def look(definition: str, written: str) -> str:
    """Return what to keep of a definition: when it was written, and digests of its columns and of what else it says."""
    lines = [line.rstrip(",") for line in definition.split("\n")]
    columns = [line for line in lines if line.startswith("  `")]
    return f"{written} {_digest(columns)} {_digest([line for line in lines if line not in columns])}"


def _digest(lines: list[str]) -> str:
    return hashlib.blake2b("\n".join(lines).encode(), digest_size=8).hexdigest()


def other_columns(before: str, now: str) -> bool:
    """Say whether the columns are declared in another way."""
    return bool(before) and _parts(before)[1] != _parts(now)[1]


def written_again(before: str, now: str) -> bool:
    """Say whether the server has written the definition since."""
    return bool(before) and _parts(before)[0] != _parts(now)[0]


def altered(before: str, now: str, *, moved: bool) -> bool:
    """Say whether values may be others: columns are declared in another way, or the text shows no ALTER TABLE.

    A new index or comment shows in the text. `moved`: files were copied or touched, so that their times say nothing.
    """
    unexplained = written_again(before, now) and _parts(before)[2] == _parts(now)[2]
    return other_columns(before, now) or (unexplained and not moved)


def _parts(look: str) -> list[str]:
    return look.rsplit(" ", 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """`table` is None when it is gone; `access` is None when it cannot be read in the registered version."""

    known: Registered
    table: Table | None
    #: The registered version if it is right, else the one that the table has now.
    schema: TableSchema
    definition: str
    access: Access | None

    @property
    def table_id(self) -> int:
        """Its number."""
        return self.known.table_id

    @property
    def state(self) -> str:
        """ACTIVE, PAUSED or RESYNC, as it was when the registry was read."""
        return self.known.table.state


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """Everything that capture knows; right as long as the registry's mark and the definitions are the same."""

    captured: tuple[Captured, ...]
    mark: str
    dictionary: Dictionary


def load(connection: Connection) -> Loaded:
    """Read registry and dictionary; again if a table was altered meanwhile."""
    while True:
        mark = registry.mark(connection)
        known = registry.tables(connection)
        before = definitions(connection, (k.schema.name for k in known))
        found = dictionary.read(connection, zero_dates_null=connection.options.zero_dates_null)
        if before == definitions(connection, (k.schema.name for k in known)):
            break
    captured = tuple(
        _captured(connection, k, found.tables.get(k.schema.name), before.get(k.schema.name, "")) for k in known
    )
    return Loaded(captured=captured, mark=mark, dictionary=found)


def definitions(connection: Connection, tables: Iterable[str]) -> dict[str, str]:
    """Return how tables are defined; those that are gone are left out."""
    found = {}
    for name in tables:
        place = f"{quoted(connection.address.database)}.{quoted(name)}"
        try:
            found[name] = dictionary.definition(connection, place)
        except DatabaseUnavailable:
            raise
        except SourceError:  # gone, or turned into something else
            continue
    return found


def _captured(connection: Connection, known: Registered, table: Table | None, definition: str) -> Captured:
    if table is None or not table.key or table.unsupported:
        return Captured(known=known, table=table, schema=known.schema, definition=definition, access=None)
    schema = table.schema(known.table_id, known.schema.version, known.schema, known.number_max)
    if not table.shows_checks and dictionary.has_checks(definition):
        schema = _with_hidden_checks(schema, known.schema)
    usable = fingerprint(schema) == fingerprint(known.schema)
    access = access_to(table, known.schema, zero_dates_null=connection.options.zero_dates_null) if usable else None
    return Captured(known=known, table=table, schema=schema, definition=definition, access=access)


def _with_hidden_checks(schema: TableSchema, known: TableSchema) -> TableSchema:
    """Return what the dictionary says with the checks that are registered: they are there, and not shown."""
    made = {check.name for check in schema.checks}  # of types
    listed = [left for left in known.left_out if left.what == "check constraint"]
    return replace(
        schema,
        checks=(*(check for check in known.checks if check.name not in made), *schema.checks),
        left_out=(*listed, *schema.left_out),
    )


class Marks:
    """The numbers by which InnoDB knows the tables: TRUNCATE gives a table another one, and so does a rebuild."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._names: dict[str, str] = {}
        self._query = ""
        #: Without the privilege PROCESS nothing can be seen; `check` says so.
        self.visible = True

    def now(self) -> dict[str, str]:
        """Return the marks by table, {} if they cannot be seen. A partitioned table has one for each partition."""
        if not self.visible:
            return {}
        if not self._query:
            maker = "mariadb" if dictionary.is_mariadb(self._connection) else "mysql"
            like = self._encoded(self._connection.address.database).replace("_", r"\_") + "/%"
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

    def of(self, table: str, marks: Mapping[str, str]) -> str:
        """Return one table's mark, empty if it is not known."""
        text = marks.get(self._encoded(table), "")
        return text if len(text) <= 64 else hashlib.sha256(text.encode()).hexdigest()

    def _encoded(self, name: str) -> str:
        if name not in self._names:
            query = statement("dictionary", "encoded", name=literal(name))
            self._names[name] = str(self._connection.row(query)[0])
        return self._names[name]

    def stored(self) -> dict[int, str]:
        """Return the marks that were noted, by table number."""
        return {int(t): str(m) for t, m in self._connection.rows(statement("registry", "known_marks"))}

    def store(self, table_id: int, mark: str) -> None:
        """Note a mark."""
        self._connection.run(statement("registry", "store_mark", table_id=str(table_id), mark=literal(mark)))
