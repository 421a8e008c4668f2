"""Reads the dictionary: which tables there are, what identifies a row, how each column is read."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping as Map
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from venus.adapters.dialects.oracle import inline, overrides, ownership, structure, visibility
from venus.adapters.dialects.oracle.columns import Columns
from venus.adapters.dialects.oracle.connection import National, Row, Session
from venus.adapters.dialects.oracle.ddl import KeyColumn, Keyed, Style
from venus.adapters.dialects.oracle.kinds import Kind, Kinds, beside, kind_of
from venus.adapters.dialects.oracle.names import ARCHIVE_STATE, HEARTBEAT
from venus.adapters.dialects.oracle.overrides import (
    SWITCHES,
    Recorded,
    fits,
    overridden,
    spelled,
    switched,
    wanted,
)
from venus.adapters.dialects.oracle.statements import statement
from venus.adapters.dialects.oracle.types import FRACTION_MAX, Declared, Mapping, log_type_of
from venus.adapters.dialects.oracle.versions import Version
from venus.adapters.dialects.oracle.visibility import Visibility
from venus.adapters.dialects.patterns import Patterns, choosing_nothing
from venus.errors import ConfigError, UnsupportedType
from venus.model import Column, Finding, LeftOut, TableSchema
from venus.suggest import nearest

NOTHING: Map[str, str] = MappingProxyType({})
#: Hidden columns that VENUS asks for itself.
OWN_HIDDEN = ("RECORDID", ARCHIVE_STATE)
NO_KEY = "it has neither a primary key nor a unique key of columns that are NOT NULL"
#: Collations under which equal keys are the same text.
_BINARY_COLLATIONS = (None, "", "BINARY", "USING_NLS_COMP")


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A table that could be captured."""

    owner: str
    name: str
    partitioned: bool
    rows: int
    #: VENUS has made it: the heartbeat, a log table, the registry.
    is_own: bool = False
    kind: Kind = field(default_factory=Kind)

    @property
    def qualified(self) -> str:
        """OWNER.TABLE."""
        return f"{self.owner}.{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How one column is read."""

    declared: Declared
    mapping: Mapping

    def expression(self, column: str) -> str:
        """Return what to select for this column."""
        return self.mapping.select(self.declared).replace("{c}", column)

    def logged(self, column: str) -> str:
        """Return a log table's column as the table's own has it: a CHAR with its blanks."""
        padded = self.declared.padded
        return f"CAST({column} AS {padded})" if padded else column

    def bind(self, name: object) -> str:
        """Return what a condition has in place of a value of this column that is bound under this name."""
        return self.logged(self.mapping.bind.format(n=name))

    def bindable(self, value: object) -> object:
        """Return what to bind for a value as it was fetched."""
        return National(value) if self.declared.is_national and isinstance(value, str) else value


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table as the dictionary has it now."""

    schema: TableSchema
    keyed: Keyed
    readings: dict[str, Reading]
    listed: Listed
    #: Why it cannot be captured, one line each.
    refused: tuple[str, ...] = ()
    #: What people should know, though it can.
    remarks: tuple[str, ...] = ()


def chosen(listed: Seq[Listed], include: Seq[str], exclude: Seq[str]) -> list[Listed]:
    """Return the tables to capture, without VENUS's own."""
    included, excluded = Patterns(map(_spelled, include)), Patterns(map(_spelled, exclude))
    return [
        t
        for t in application(listed)
        if not t.kind.left_out and included.match(*spellings(t)) and not excluded.match(*spellings(t))
    ]


def left_out(listed: Seq[Listed], include: Seq[str], exclude: Seq[str]) -> list[Listed]:
    """Return the tables that the patterns choose and that hold no rows of the application's own."""
    ordinary = [replace(t, kind=replace(t.kind, left_out="")) for t in listed if t.kind.left_out]
    names = {(t.owner, t.name) for t in chosen(ordinary, include, exclude)}
    return [t for t in listed if (t.owner, t.name) in names]


def application(listed: Seq[Listed]) -> list[Listed]:
    """Leave out VENUS's own tables."""
    return [t for t in listed if not t.is_own]


def spellings(listed: Listed) -> tuple[str, ...]:
    """Return what patterns are compared with: /TABLE and OWNER.TABLE; upper and lower case count as the same."""
    return f"/{listed.name}".upper(), f"{listed.owner}.{listed.name}".upper()


def unmatched(listed: Seq[Listed], patterns: Seq[str]) -> list[str]:
    """Return the patterns that choose nothing: most likely misspelt."""
    return choosing_nothing(patterns, map(spellings, application(listed)), spelled=_spelled)


def _spelled(pattern: str) -> str:
    """Return a pattern as it is compared; without a dot it is about tables of any owner."""
    return pattern.upper() if "." in pattern else f"/{pattern}".upper()


class Dictionary:
    """The dictionary of the schemas that may be captured."""

    def __init__(self, session: Session, version: Version, user: str, schemas: Seq[str]) -> None:
        self._session = session
        self._version = version
        self.user = user
        self.schemas = tuple(schemas) or (user,)
        self._structures: dict[str, structure.SchemaRows] = {}
        self._inline: frozenset[tuple[str, str]] | None = None
        self._recorded: list[Recorded] | None = None
        self._owned: ownership.Owned | None = None
        self._visibility: Visibility | None = None
        self._kinds = Kinds(session, version)
        self.columns = Columns()  # of the configuration
        self._proofs: dict[tuple[str, str], list[Finding]] = {}
        self.type_map: Map[str, str] = NOTHING  # of the configuration
        self.asked: Map[str, str] = NOTHING  # of this command: overrides what is recorded

    def listed(self) -> list[Listed]:
        """Return every table of these schemas."""
        self._structures.clear()
        self._inline = self._recorded = self._owned = self._visibility = None
        found = []
        for owner in dict.fromkeys((*self.schemas, self.user)):
            rows = self._session.rows(statement("dictionary", "tables"), {"owner": owner})
            own = self.own_tables(owner, [r[1] for r in rows])
            special = self._kinds.read(owner) if owner in self.schemas else {}
            found += [
                Listed(
                    owner=r[0], name=r[1], partitioned=r[2] == "YES", rows=int(r[3]), is_own=r[1] in own,
                    kind=kind_of(r, special),
                )
                for r in rows
            ]  # fmt: skip
            others = beside(special, [r[1] for r in rows]).items()
            found += [Listed(owner=owner, name=n, partitioned=False, rows=0, kind=kind) for n, kind in others]
        return [t for t in found if t.owner in self.schemas or (t.is_own and t.name == HEARTBEAT)]

    @property
    def owned(self) -> ownership.Owned:
        """What VENUS has made in the user's own schema; as it was when the tables were listed."""
        if self._owned is None:
            self._owned = ownership.read(self._session)
        return self._owned

    @property
    def visibility(self) -> Visibility:
        """What is hidden from this user; as it was when the tables were listed."""
        if self._visibility is None:
            self._visibility = visibility.read(self._session, self.schemas, self.user)
        return self._visibility

    def is_own(self, owner: str, kind: str, name: str) -> bool:
        """Whether VENUS has made an object in the user's own schema."""
        return owner == self.user and self.owned.has(name, kind)

    def own_tables(self, owner: str, names: Seq[str]) -> frozenset[str]:
        """Return which of a schema's tables VENUS has made, this installation or another one's."""
        if owner != self.user:
            return ownership.elsewhere(self._session, owner, names)
        return frozenset(name for kind, name in self.owned.ours if kind == "TABLE")

    def inline_tables(self) -> frozenset[tuple[str, str]]:
        """Return the tables that have the paper's columns, as the registry says; read once."""
        if self._inline is None:
            self._inline = inline.read_tables(self._session) if self._has("VENUS_POLLED") else frozenset()
        return self._inline

    def captured(self) -> frozenset[tuple[str, str]]:
        """Return owner and name of the tables that are captured already."""
        if not self._has("VENUS_CAPTURED_TABLE"):
            return frozenset()
        return frozenset((row[0], row[1]) for row in self._session.rows(statement("registry", "captured_names")))

    def proved(self, table: Table, prove: Callable[[Table], list[Finding]]) -> list[Finding]:
        """Return what a proof has found; it may read the whole table, so it is made once."""
        key = table.schema.qualified, repr(table.readings)
        if key not in self._proofs:
            self._proofs[key] = prove(table)
        return self._proofs[key]

    def recorded(self) -> list[Recorded]:
        """Return the columns that travel in another way since `install-triggers --type-map`; read once."""
        if self._recorded is None:
            self._recorded = overrides.read_recorded(self._session) if self._has(overrides.TABLE) else []
        return self._recorded

    def _has(self, own: str) -> bool:
        return self.owned.has(own)

    def _ways(self, listed: Listed) -> dict[str, str]:
        """Return how columns of a table travel instead of their usual way."""
        recorded = {r.name: r.to for r in self.recorded()}
        found: dict[str, str] = {}
        for asked in (self.type_map, recorded, self.asked):
            found |= wanted(asked, listed.owner, listed.name)
        return found

    def has_inline_columns(self, listed: Listed) -> bool:
        """Whether the paper's columns are there already."""
        binds = {"owner": listed.owner, "name": listed.name}
        return bool(self._session.rows(statement("inline", "has_columns"), binds))

    def table(
        self, listed: Listed, known: TableSchema | None = None, number_max: int = 0, *, as_inline: bool = False
    ) -> Table:
        """Read one table; columns that `known` has keep their numbers. `as_inline`: as it will be with the columns."""
        binds = {"owner": listed.owner, "name": listed.name}
        rows = self.column_rows(listed)
        keys = self._session.rows(statement("dictionary", "keys"), binds)
        has_columns = (listed.owner, listed.name) in self.inline_tables()
        own = [row[0] for row in rows if row[0] in inline.COLUMNS]
        if has_columns or as_inline:
            rows, keys = inline.without_columns(rows)
        rows, left = self.columns.choose(listed.owner, listed.name, rows)
        switches = {spelled(name): to for name, to in {**self.type_map, **self.asked}.items()}
        found = described(listed, rows, keys, known, number_max, self._ways(listed), switches)
        found = replace(found, refused=(*found.refused, *_excluded_keys(left, found, keys)))
        if has_columns or as_inline:
            found = replace(found, keyed=replace(found.keyed, style=Style.INLINE))
        if as_inline and not has_columns and own:
            found = replace(found, refused=(*found.refused, f"it has a column {own[0]} of its own"))
        archived = ARCHIVE_STATE in found.readings
        hidden = [h.message for h in self.visibility.of(listed.owner, listed.name) if not (archived and h.is_archival)]
        if listed.kind.refused:
            hidden = [listed.kind.refused]
            found = replace(found, refused=())
        remarks = (*found.remarks, *filter(None, (listed.kind.remark,)))
        found = replace(found, refused=(*found.refused, *hidden), remarks=remarks)
        schema = structure.completed(found.schema, self.structures(listed.owner))
        return replace(found, schema=replace(schema, left_out=(*schema.left_out, *left)))

    def column_rows(self, listed: Listed) -> list[Row]:
        """Return what the dictionary says of a table's columns."""
        collation = "C.COLLATION" if self._version.column_collation else "NULL"
        invisible = "C.USER_GENERATED = 'YES'" if self._version.invisible_identity else "1 = 0"
        text = statement("dictionary", "columns", collation=collation, invisible=invisible)
        return self._session.rows(text, {"owner": listed.owner, "name": listed.name})

    def to_record(self, included: Seq[Listed]) -> list[Recorded]:
        """Return what this command asks for, column by column. Raises ConfigError for what is no column, or a key's."""
        found: list[Recorded] = []
        for name in self.asked:
            switch = spelled(name)
            fitting = self._of_type(switch, included) if switch in SWITCHES else self._columns_named(name, included)
            found += fitting
            if not fitting and switch in SWITCHES:
                raise ConfigError(f"--type-map {name}: no captured table has a column of type {switch}")
            if not fitting:
                hint = "captured are " + ", ".join([at.qualified for at in included][:12])
                raise ConfigError(f"--type-map {name}: {self._no_such(name, included)}", hint=hint)
        return found

    def _of_type(self, switch: str, included: Seq[Listed]) -> list[Recorded]:
        """Return the columns of a type that are not asked for by name."""
        found = []
        for at in included:
            named = wanted(self.asked, at.owner, at.name)
            found += [
                Recorded(owner=at.owner, table=at.name, column=name, to=self.asked_for(switch))
                for name, reading in self.table(at).readings.items()
                if fits(switch, reading.declared) and name.upper() not in named
            ]
        return found

    def asked_for(self, switch: str) -> str:
        """Return what this command asks for all columns of a type."""
        return next(to for name, to in self.asked.items() if spelled(name) == switch)

    def _columns_named(self, name: str, included: Seq[Listed]) -> list[Recorded]:
        found = []
        for at in included:
            for column, to in wanted({name: self.asked[name]}, at.owner, at.name).items():
                table = self.table(at)
                exact = next((c.name for c in table.schema.columns if c.name.upper() == column), None)
                if exact in table.schema.key and not table.readings[exact].mapping.log_type:
                    raise ConfigError(f"--type-map {name}: a column of the key cannot travel as {to}")
                if exact is not None:
                    found.append(Recorded(owner=at.owner, table=at.name, column=exact, to=to))
        return found

    def _no_such(self, name: str, included: Seq[Listed]) -> str:
        place, _, column = name.rpartition(".")
        here = [at for at in included if place.upper() in (at.name.upper(), at.qualified.upper())]
        if not here:
            return f"no table {place} is captured{nearest(place, [at.qualified for at in included], in_full=True)}"
        columns = [c.name for c in self.table(here[0]).schema.columns]
        return f"{here[0].qualified} has no column {column}{nearest(column, columns)}"

    def structures(self, owner: str) -> structure.SchemaRows:
        """Return what a schema's tables are besides their rows, as it was when they were listed."""
        if owner not in self._structures:
            self._structures[owner] = structure.read(self._session, self._version, owner)
        return self._structures[owner]


def described(
    listed: Listed, rows: Seq[Row], keys: Seq[Row], known: TableSchema | None = None, number_max: int = 0,
    asked: Map[str, str] = NOTHING, switches: Map[str, str] = NOTHING,
) -> Table:  # fmt: skip
    """Make a table of what the dictionary said; `asked` by upper-case column, `switches` by type. Pure."""
    readings: dict[str, Reading] = {}
    refused, remarks, columns = [], [], []
    numbers = {c.name: c.number for c in known.columns} if known else {}
    number_max = max([number_max, *numbers.values()])
    for row in rows:
        name, declared = row[0], _declared(row)
        try:
            to = asked.get(name.upper()) or switched(switches, declared)
            reading = Reading(declared=declared, mapping=overridden(declared, to, f"{listed.qualified}.{name}"))
        except UnsupportedType as e:
            refused.append(f"column {name}: {e}")
            continue
        if (number := numbers.get(name)) is None:
            number = number_max = number_max + 1
        readings[name] = reading
        logical = reading.mapping.logical(declared)
        nullable = row[8] == "Y"
        columns.append(Column(name=name, number=number, type=logical, nullable=nullable, source_type=declared.spelled))
        if len(row) > 10 and row[10] == "YES" and name not in OWN_HIDDEN:
            remarks.append(f"column {name} is invisible at the source, and an ordinary column at the target")
        if (declared.scale or 0) > FRACTION_MAX and declared.data_type.startswith("TIMESTAMP"):
            remarks.append(f"column {name}: {declared.data_type}: digits after the sixth are cut off")
    key = _key(keys, {c.name: c for c in columns})
    if not key:
        refused.append(NO_KEY)
    key_columns = [_key_column(name, readings[name]) for name in key]
    refused += [f"key column {k.name}: {readings[k.name].declared.spelled} cannot be in a key" for k in key_columns
                if not k.log_type]  # fmt: skip
    collations = {row[0]: row[9] for row in rows}
    refused += [f"key column {name}: under collation {collations[name]} unequal texts are one key" for name in key
                if collations[name] not in _BINARY_COLLATIONS]  # fmt: skip
    schema = TableSchema(
        table_id=known.table_id if known else 0,
        version=known.version if known else 1,
        namespace=listed.owner,
        name=listed.name,
        columns=tuple(columns),
        key=tuple(key),
        source_dialect="oracle",
    )
    keyed = Keyed(owner=listed.owner, name=listed.name, key=tuple(key_columns))
    return Table(schema=schema, keyed=keyed, readings=readings, listed=listed, refused=tuple(refused),
                 remarks=tuple(remarks))  # fmt: skip


def _excluded_keys(left: Seq[LeftOut], table: Table, keys: Seq[Row]) -> list[str]:
    """Say that a table has a key only with columns that are not to travel."""
    if table.schema.key:
        return []
    names = {o.name for o in left} & {column for _, _, column in keys}
    return [f"column {name} is in its key and cannot be excluded in [source.columns]" for name in sorted(names)]


def with_id(table: Table, table_id: int) -> Table:
    """Return the table under its number."""
    return replace(table, schema=replace(table.schema, table_id=table_id))


def _declared(row: Row) -> Declared:
    _, data_type, owner, length, chars, used, precision, scale, *_ = row
    return Declared(
        data_type=data_type,
        owner=owner or "",
        length=int(chars or 0) if "CHAR" in data_type else int(length or 0) if data_type == "RAW" else 0,
        precision=None if precision is None else int(precision),
        scale=None if scale is None else int(scale),
        in_bytes=used == "B",
    )


def _key(keys: Seq[Row], columns: dict[str, Column]) -> list[str]:
    """Return the primary key, else the first unique constraint or index whose columns are all NOT NULL."""
    constraints: dict[str, list[str]] = {}
    for name, _, column in keys:  # the primary key's rows come first
        constraints.setdefault(name, []).append(column)
    for names in constraints.values():
        if all(n in columns and not columns[n].nullable for n in names):
            return names
    return []


def _key_column(name: str, reading: Reading) -> KeyColumn:
    log_type = log_type_of(reading.declared, reading.mapping)
    return KeyColumn(name=name, log_type=log_type, is_text=reading.mapping.text == "text")
