"""The data dictionary: the tables, the key that identifies a row, the way to read each column, and what hides rows.

Policies, Data Redaction and row archival hide rows or values from the user that reads them. A row that capture does not
see looks deleted, and a masked value looks like data. So VENUS refuses a table while any of these features applies to
it, and the findings name the privilege that removes the restriction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from collections.abc import Mapping as Map
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace

from venus.adapters.dialects.contract import SchemaChanged
from venus.adapters.dialects.oracle.dictionary import overrides, ownership, structure
from venus.adapters.dialects.oracle.dictionary.overrides import (
    RecordedType,
    is_switch,
    normalise_switch,
    requested_types,
    switch_applies,
)
from venus.adapters.dialects.oracle.dictionary.tables import (
    NOTHING,
    CharacterSets,
    ListedTable,
    OracleTable,
    TableKinds,
    build_table,
    excluded_key_refusals,
    kinds_without_table,
    read_character_sets,
    table_kind,
)
from venus.adapters.dialects.oracle.language import inline
from venus.adapters.dialects.oracle.language.ddl import CaptureStyle
from venus.adapters.dialects.oracle.session.connection import OracleSession, Row
from venus.adapters.dialects.oracle.session.driver import Driver, OracleOptions
from venus.adapters.dialects.oracle.session.options import OracleColumnChoice, Version, version_of
from venus.adapters.dialects.oracle.sql import ARCHIVE_STATE, HEARTBEAT, literal, quote, statement
from venus.errors import ConfigError, SourceError
from venus.model import Finding, TableSchema
from venus.text.formatting import suggest_nearest


class OracleDictionary:
    """The dictionary of the schemas that VENUS may capture."""

    def __init__(self, session: OracleSession, version: Version, user: str, schemas: Seq[str]) -> None:
        self._session = session
        self._version = version
        self.user = user
        self.release = version.name  # the server's version, as exactly as it reports it
        self.schemas = tuple(schemas) or (user,)
        self._structures: dict[str, structure.SchemaRows] = {}
        #: The rows about columns and about keys by schema and table; a statement reads a whole schema.
        self._columns: dict[str, Map[str, list[Row]]] = {}
        self._keys: dict[str, Map[str, list[Row]]] = {}
        self._inline: frozenset[tuple[str, str]] | None = None
        self._recorded: list[RecordedType] | None = None
        self._owned: ownership.OracleOwnedObjects | None = None
        self._visibility: Visibility | None = None
        self._sets: CharacterSets | None = None
        self._kinds = TableKinds(session, version)
        self.columns = OracleColumnChoice()  # of the configuration
        self._proofs: dict[tuple[str, str], list[Finding]] = {}
        self.type_map: Map[str, str] = NOTHING  # of the configuration
        self.requested: Map[str, str] = NOTHING  # of this command: overrides the recorded types
        self.last_listed: list[ListedTable] = []  # the result of the last `list_tables`

    def list_tables(self, owned: ownership.OracleOwnedObjects | None = None) -> list[ListedTable]:
        """Return every table of these schemas; `owned`: VENUS's own objects, if they have just been read."""
        for cached in (self._structures, self._columns, self._keys):
            cached.clear()
        self._inline = self._recorded = self._visibility = self._sets = None
        self._owned = owned
        found = []
        for owner in dict.fromkeys((*self.schemas, self.user)):
            rows = self._session.fetch_rows(statement("dictionary", "tables"), {"owner": owner})
            own = self.find_own_tables(owner, [r[1] for r in rows])
            special = self._kinds.read_kinds(owner) if owner in self.schemas else {}
            found += [
                ListedTable(
                    owner=r[0],
                    name=r[1],
                    partitioned=r[2] == "YES",
                    rows=int(r[3]),
                    is_own=r[1] in own,
                    kind=table_kind(r, special),
                )
                for r in rows
            ]
            others = kinds_without_table(special, [r[1] for r in rows]).items()
            found += [ListedTable(owner=owner, name=n, partitioned=False, rows=0, kind=kind) for n, kind in others]
        self.last_listed = [t for t in found if t.owner in self.schemas or (t.is_own and t.name == HEARTBEAT)]
        return self.last_listed

    @property
    def owned_objects(self) -> ownership.OracleOwnedObjects:
        """The objects that VENUS created in the user's own schema, as of the last `list_tables`."""
        if self._owned is None:
            self._owned = ownership.read_owned_objects(self._session)
        return self._owned

    @property
    def character_sets(self) -> CharacterSets:
        """The character sets of the database, as of the last `list_tables`."""
        if self._sets is None:
            self._sets = read_character_sets(self._session)
        return self._sets

    @property
    def visibility(self) -> Visibility:
        """The rows and values that are hidden from this user, as of the last `list_tables`."""
        if self._visibility is None:
            self._visibility = read_visibility(self._session, self.schemas, self.user)
        return self._visibility

    def read_fingerprint(self) -> tuple[object, ...] | None:
        """Return a value that changes with these schemas and their restrictions; None if a change is too recent."""
        owners = ", ".join(literal(owner) for owner in dict.fromkeys((*self.schemas, self.user)))
        *digest, recent = self._session.fetch_row(statement("dictionary", "digest", owners=owners))
        self._inline = self._recorded = None
        others = frozenset(self.read_inline_tables()), tuple(self.read_recorded_types())
        return None if recent else (*digest, *others, read_visibility(self._session, self.schemas, self.user))

    def is_own(self, owner: str, kind: str, name: str) -> bool:
        """Whether VENUS created an object in the user's own schema."""
        if (kind, name) == ("JOB", ownership.VALVE):
            return owner == self.user and bool(ownership.read_valve(self._session))
        return owner == self.user and self.owned_objects.has(name, kind)

    def find_own_tables(self, owner: str, names: Seq[str]) -> frozenset[str]:
        """Return those tables of a schema that this or another installation of VENUS created."""
        if owner != self.user:
            return ownership.read_foreign_own_tables(self._session, owner, names)
        return self.owned_objects.list_tables(names)

    def read_inline_tables(self) -> frozenset[tuple[str, str]]:
        """Return the tables that are captured inline according to the registry; read once."""
        if self._inline is None:
            self._inline = (
                inline.read_inline_tables(self._session) if self._has_own_table("VENUS_POLLED") else frozenset()
            )
        return self._inline

    def read_captured_names(self) -> frozenset[tuple[str, str]]:
        """Return owner and name of the captured tables."""
        if not self._has_own_table("VENUS_CAPTURED_TABLE"):
            return frozenset()
        return frozenset((row[0], row[1]) for row in self._session.fetch_rows(statement("registry", "captured_names")))

    def prove_once(self, table: OracleTable, prove: Callable[[OracleTable], list[Finding]]) -> list[Finding]:
        """Return the findings of `prove` on a table; it may read all rows, so it runs only once for each table."""
        key = table.schema.qualified_name, repr(table.readings)
        if key not in self._proofs:
            self._proofs[key] = prove(table)
        return self._proofs[key]

    def read_recorded_types(self) -> list[RecordedType]:
        """Return the columns whose type `install-triggers --type-map` has changed; read once."""
        if self._recorded is None:
            self._recorded = (
                overrides.read_recorded_types(self._session) if self._has_own_table(overrides.TABLE) else []
            )
        return self._recorded

    @property
    def reads_bytes(self) -> bool:
        """Whether a requested type makes VENUS read the bytes of a text column."""
        requests = (*self.type_map.values(), *self.requested.values(), *(r.to for r in self.read_recorded_types()))
        return any(to.startswith(overrides.ENCODED) for to in requests)

    def _has_own_table(self, name: str) -> bool:
        return self.owned_objects.has(name)

    def _requested_types(self, listed: ListedTable) -> dict[str, str]:
        """Return the types that columns of a table have instead of their default ones."""
        recorded = {r.name: r.to for r in self.read_recorded_types()}
        found: dict[str, str] = {}
        for asked in (self.type_map, recorded, self.requested):
            found |= requested_types(asked, listed.owner, listed.name)
        return found

    def has_inline_columns(self, listed: ListedTable) -> bool:
        """Whether the table already has the columns of inline capture."""
        binds = {"owner": listed.owner, "name": listed.name}
        return bool(self._session.fetch_rows(statement("inline", "has_columns"), binds))

    def read_table(
        self, listed: ListedTable, known: TableSchema | None = None, number_max: int = 0, *, as_inline: bool = False
    ) -> OracleTable:
        """Read one table; columns of `known` keep their numbers. `as_inline`: as if inline capture were installed."""
        rows, keys = self.read_column_rows(listed), self._read_key_rows(listed)
        has_columns = (listed.owner, listed.name) in self.read_inline_tables()
        own = [row[0] for row in rows if row[0] in inline.COLUMNS]
        if has_columns or as_inline:
            rows, keys = inline.application_columns(rows)
        rows, left = self.columns.choose(listed.owner, listed.name, rows)
        switches = {normalise_switch(name): to for name, to in {**self.type_map, **self.requested}.items()}
        found = build_table(listed, rows, keys, known, number_max, self._requested_types(listed), switches)
        sets = self.character_sets
        readings = {n: replace(r, is_converted=sets.converts(r.declared)) for n, r in found.readings.items()}
        refusals = (*found.refusals, *excluded_key_refusals(left, found, keys))
        found = replace(found, readings=readings, refusals=refusals)
        if has_columns or as_inline:
            found = replace(found, keyed=replace(found.keyed, style=CaptureStyle.INLINE))
        if as_inline and not has_columns and own:
            found = replace(found, refusals=(*found.refusals, f"it has a column {own[0]} of its own"))
        archived = ARCHIVE_STATE in found.readings
        hidden = [
            h.message
            for h in self.visibility.restrictions_of(listed.owner, listed.name)
            if not (archived and h.is_archival)
        ]
        if listed.kind.refused:
            hidden = [listed.kind.refused]
            found = replace(found, refusals=())
        remarks = (*found.remarks, *filter(None, (listed.kind.remark,)))
        found = replace(found, refusals=(*found.refusals, *hidden), remarks=remarks)
        schema = structure.add_structure(found.schema, self.read_structure(listed.owner))
        return replace(found, schema=replace(schema, left_out=(*schema.left_out, *left)))

    def read_column_rows(self, listed: ListedTable) -> list[Row]:
        """Return the dictionary's rows about the columns of a table."""
        if listed.owner not in self._columns:
            collation = "C.COLLATION" if self._version.column_collation else "NULL"
            invisible = "C.USER_GENERATED = 'YES'" if self._version.invisible_identity else "1 = 0"
            text = statement("dictionary", "columns", collation=collation, invisible=invisible)
            self._columns[listed.owner] = self._read_by_table(text, listed.owner)
        return self._columns[listed.owner].get(listed.name, [])

    def _read_key_rows(self, listed: ListedTable) -> list[Row]:
        if listed.owner not in self._keys:
            self._keys[listed.owner] = self._read_by_table(statement("dictionary", "keys"), listed.owner)
        return self._keys[listed.owner].get(listed.name, [])

    def _read_by_table(self, text: str, owner: str) -> Map[str, list[Row]]:
        return structure.group_by_table(self._session.fetch_rows(text, {"owner": owner}))

    def resolve_requests(self, included: Seq[ListedTable]) -> list[RecordedType]:
        """Return the requested types column by column. Raises ConfigError for an unknown column or a bad key type."""
        found: list[RecordedType] = []
        for name in self.requested:
            switch = normalise_switch(name)
            fitting = (
                self._columns_of_type(switch, included) if is_switch(switch) else self._columns_by_name(name, included)
            )
            found += fitting
            if not fitting and is_switch(switch):
                raise ConfigError(f"--type-map {name}: no captured table has a column of type {switch}")
            if not fitting:
                hint = "captured tables: " + ", ".join([at.qualified_name for at in included][:12])
                raise ConfigError(f"--type-map {name}: {self._describe_unknown_column(name, included)}", hint=hint)
        return found

    def _columns_of_type(self, switch: str, included: Seq[ListedTable]) -> list[RecordedType]:
        """Return the columns of a type that are not requested by name."""
        found = []
        for at in included:
            named = requested_types(self.requested, at.owner, at.name)
            found += [
                RecordedType(owner=at.owner, table=at.name, column=name, to=self.switch_value(switch))
                for name, reading in self.read_table(at).readings.items()
                if switch_applies(switch, reading.declared) and name.upper() not in named
            ]
        return found

    def switch_value(self, switch: str) -> str:
        """Return the type that this command requests for all columns of a type."""
        return next(to for name, to in self.requested.items() if normalise_switch(name) == switch)

    def _columns_by_name(self, name: str, included: Seq[ListedTable]) -> list[RecordedType]:
        found = []
        for at in included:
            for column, to in requested_types({name: self.requested[name]}, at.owner, at.name).items():
                table = self.read_table(at)
                exact = next((c.name for c in table.schema.columns if c.name.upper() == column), None)
                if exact in table.schema.key and not table.readings[exact].mapping.log_type:
                    raise ConfigError(f"--type-map {name}: a column of the key cannot be carried as {to}")
                if exact is not None:
                    found.append(RecordedType(owner=at.owner, table=at.name, column=exact, to=to))
        return found

    def _describe_unknown_column(self, name: str, included: Seq[ListedTable]) -> str:
        place, _, column = name.rpartition(".")
        if not place:
            return "write TABLE.COLUMN, or a type such as VARCHAR2 or RAW(16)"
        here = [at for at in included if place.upper() in (at.name.upper(), at.qualified_name.upper())]
        if not here:
            names = [at.qualified_name for at in included]
            return f"no table {place} is captured{suggest_nearest(place, names, in_full=True)}"
        columns = [c.name for c in self.read_table(here[0]).schema.columns]
        return f"{here[0].qualified_name} has no column {column}{suggest_nearest(column, columns)}"

    def read_structure(self, owner: str) -> structure.SchemaRows:
        """Return the dictionary's rows about constraints, indexes and defaults, as of the last `list_tables`."""
        if owner not in self._structures:
            self._structures[owner] = structure.read_structure(self._session, self._version, owner)
        return self._structures[owner]


def open_dictionary(
    session: OracleSession, schemas: Seq[str], type_map: Map[str, str], columns: OracleColumnChoice
) -> tuple[Version, OracleDictionary]:
    """Return the version of the server and its configured dictionary. Raises ConfigError before 11.2."""
    text = str(session.fetch_row(statement("dictionary", "version"))[0])
    version = version_of(text)
    if version is None:
        raise ConfigError(f"source {session.place}: Oracle {text} is older than 11.2")
    user = str(session.fetch_row(statement("dictionary", "session"))[0])
    dictionary = OracleDictionary(session, version, user, schemas)
    dictionary.release = (
        str(session.fetch_row(statement("dictionary", "full_version"))[0]) if version.full_version else text
    )
    dictionary.type_map = type_map
    dictionary.columns = columns
    return version, dictionary


class OracleDatabase:
    """The two sessions at one database, with its version and its dictionary, which is opened once.

    The reader holds the snapshot of a cut; the writer does everything else in short transactions.
    """

    def __init__(self, driver: Driver, options: OracleOptions) -> None:
        self.options = options
        self.place = driver.place
        self.reader = OracleSession(driver)
        self.writer = OracleSession(driver)
        self._opened: tuple[Version, OracleDictionary] | None = None
        #: The tables that `refresh_schemas` has listed, until `find_uncaptured_tables` uses them.
        self.listed: Seq[ListedTable] | None = None

    def close(self) -> None:
        """Close both sessions."""
        self.reader.close()
        self.writer.close()

    @property
    def version(self) -> Version:
        """The version of the server."""
        return self._open()[0]

    @property
    def dictionary(self) -> OracleDictionary:
        """The dictionary of the configured schemas."""
        return self._open()[1]

    def _open(self) -> tuple[Version, OracleDictionary]:
        if self._opened is None:
            options = self.options
            self._opened = open_dictionary(self.writer, options.schemas, options.type_map, options.columns)
        return self._opened

    def is_installed(self) -> bool:
        """Return whether the registry exists."""
        return any(name == "VENUS_CAPTURED_TABLE" for _, name in ownership.read_owned_objects(self.writer).ours)


SEES_ROWS, SEES_VALUES = "EXEMPT ACCESS POLICY", "EXEMPT REDACTION POLICY"
_EXCLUDE = "exclude the table in [source] exclude"


@dataclass(frozen=True, slots=True, kw_only=True)
class Restriction:
    """The reason why a table is not completely visible, and the remedy."""

    message: str
    remedy: str
    is_archival: bool = False


@dataclass(slots=True, kw_only=True)
class Visibility:
    """The hidden rows and values of the captured schemas, by (owner, table)."""

    hidden: dict[tuple[str, str], list[Restriction]] = field(default_factory=dict)
    archived: set[tuple[str, str]] = field(default_factory=set)
    #: Whether this user can read the redaction policies.
    knows_redactions: bool = True

    def restrictions_of(self, owner: str, name: str) -> list[Restriction]:
        """Return the restrictions of one table."""
        return self.hidden.get((owner, name), [])


def read_visibility(session: OracleSession, owners: Iterable[str], user: str) -> Visibility:
    """Read from the dictionary which rows and values are hidden from this user."""
    granted = {str(row[0]) for row in session.fetch_rows(statement("dictionary", "privileges"))}
    found = Visibility()
    for owner in owners:
        binds = {"owner": owner}
        if SEES_ROWS not in granted:
            for table, policy in session.fetch_rows(statement("visibility", "policies"), binds):
                found.hidden.setdefault((owner, table), []).append(_policy_restriction(str(policy), user))
        if SEES_VALUES not in granted:
            masked = _read_redactions(session, owner)
            found.knows_redactions = found.knows_redactions and masked is not None
            for table, policy in masked or ():
                found.hidden.setdefault((owner, table), []).append(_redaction_restriction(policy, user))
        found.archived |= {
            (owner, str(table)) for (table,) in session.fetch_rows(statement("visibility", "archival"), binds)
        }
    for owner, table in found.archived:
        found.hidden.setdefault((owner, table), []).append(_archival_restriction())
    return found


def _read_redactions(session: OracleSession, owner: str) -> list[tuple[str, str]] | None:
    try:
        rows: Seq[Seq[object]] = session.fetch_rows(statement("visibility", "redactions"), {"owner": owner})
    except (SourceError, SchemaChanged):
        return None
    return [(str(table), str(policy)) for table, policy in rows]


def _policy_restriction(policy: str, user: str) -> Restriction:
    return Restriction(
        message=f"policy {policy} may hide rows from {user}, and they would look deleted",
        remedy=f"GRANT {SEES_ROWS} TO {quote(user)}; -- or {_EXCLUDE}",
    )


def _redaction_restriction(policy: str, user: str) -> Restriction:
    return Restriction(
        message=f"redaction policy {policy} may mask values for {user}, and the masks would travel as data",
        remedy=f"GRANT {SEES_VALUES} TO {quote(user)}; -- or {_EXCLUDE}",
    )


def _archival_restriction() -> Restriction:
    return Restriction(
        message="it has ROW ARCHIVAL: rows that the application archives are hidden, and would look deleted",
        remedy=f"include its column {ARCHIVE_STATE} in [source.columns]: all rows travel, with it; or {_EXCLUDE}",
        is_archival=True,
    )


def redaction_findings(found: Visibility, user: str) -> Iterator[Finding]:
    """Yield a finding if this user cannot see whether Data Redaction masks values."""
    if not found.knows_redactions:
        remedy = f"GRANT {SEES_VALUES} TO {quote(user)};"
        yield Finding(
            where="privileges",
            message=f"whether Data Redaction masks values for {user} cannot be seen",
            remedy=f"{remedy} -- or GRANT SELECT ON SYS.REDACTION_POLICIES TO {quote(user)};",
        )
