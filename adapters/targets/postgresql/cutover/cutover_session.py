"""Cut-over of a PostgreSQL target in one session, for adapters/cutover.

Rows are read by COPY in bounded memory. A query after the cut-over must see the same rows as at the source, so tables
that inherit from others are checked as well.

Counters continue after the numbers in the target's own rows *and* after the numbers that the source has generated. A
number that the source generated in a rolled-back transaction may be in use outside the database, so the larger value
counts. Setting a counter changes no row and may be repeated, because replicated rows already contain their numbers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from collections.abc import Sequence as Seq
from dataclasses import replace

from venus.adapters.dialects.contract import Numbering
from venus.adapters.targets.cutover_contract import (
    CounterSetting,
    CutoverObstacle,
    CutoverTable,
    ReferenceCheck,
    RowSink,
    SchemaDifference,
    SideOpening,
)
from venus.adapters.targets.postgresql.cutover import guarantees
from venus.adapters.targets.postgresql.cutover.side import open_side, side_sql
from venus.adapters.targets.postgresql.database import PostgresDatabase, cutover_sql
from venus.adapters.targets.postgresql.naming import PlacedTable, quote
from venus.adapters.targets.postgresql.rowsql import copy_rows
from venus.adapters.targets.postgresql.schema.ddl import is_counted, is_identity
from venus.adapters.targets.postgresql.session import TargetSession, limit_lock_waits, statement
from venus.adapters.targets.relational.cutover_session import RelationalCutover
from venus.adapters.targets.relational.sides import TIDY_TIMEOUT_MS, next_number
from venus.codec.batch import TableChanges
from venus.codec.copy_text import from_copy
from venus.codec.row_bytes import Layout
from venus.errors import Refused, TargetError
from venus.model import Column, TableSchema

_CHUNK_BYTES = 4 << 20
_CONVERTED = "venus_converted"


class PostgresRowConverter:
    """Converter of rows into the target's form: COPY into a temporary table without constraints, and out again."""

    def __init__(self, session: TargetSession, placed: PlacedTable) -> None:
        self._session = session
        self._placed = placed

    def __enter__(self) -> PostgresRowConverter:
        placed = self._placed
        self._session.run(
            cutover_sql("create_converted", converted=_CONVERTED, columns=placed.wire_columns, table=placed.sql)
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._session.rollback()
        self._session.run(cutover_sql("drop_converted", converted=_CONVERTED))

    def convert_rows(self, section: TableChanges, schema: TableSchema) -> TableChanges:
        """Return rows of version `schema` as the target writes them, in the newest version."""
        placed = self._placed
        copy_rows(self._session, _CONVERTED, placed, section, schema)
        text = self._session.copy_out(cutover_sql("copy_rows", columns=placed.wire_columns, table=_CONVERTED))
        self._session.run(cutover_sql("empty_converted", converted=_CONVERTED))
        ids, rows, gone = from_copy(text, Layout.of(placed.schema), flagged=False)
        return replace(section, record_ids=ids, rows=rows, is_deleted=gone, schema_version=placed.schema.version)


class _RowChunks:
    """File for COPY output that passes whole lines to `take` in chunks of some megabytes."""

    def __init__(self, layout: Layout, take: RowSink) -> None:
        self._layout = layout
        self._take = take
        self._parts: list[bytes] = []
        self._size = 0

    def write(self, data: bytes) -> int:
        """Buffer COPY output, and pass it to `take` when some megabytes have arrived."""
        self._parts.append(bytes(data))
        self._size += len(data)
        if self._size >= _CHUNK_BYTES:
            self.flush()
        return len(data)

    def flush(self) -> None:
        """Pass the complete lines to `take`, and keep the rest."""
        text = b"".join(self._parts)
        end = text.rfind(b"\n") + 1
        if end:
            ids, rows, _ = from_copy(text[:end], self._layout, flagged=False)
            self._take(ids, rows)
        self._parts, self._size = [text[end:]], len(text) - end


def read_rows(session: TargetSession, placed: PlacedTable, take: RowSink) -> None:
    """Pass every row of a table to `take`, in the caller's transaction."""
    lines = _RowChunks(Layout.of(placed.schema), take)
    session.copy_to(cutover_sql("copy_rows", columns=placed.wire_columns, table=placed.rows_sql), lines)
    lines.flush()


def find_missing_inheritance(session: TargetSession, placed: Sequence[PlacedTable]) -> Iterator[CutoverObstacle]:
    """Yield an obstacle for each inheritance of the source that the target lacks; VENUS does not create these."""
    captured = {one.schema.qualified_name: one for one in placed}
    for one in placed:
        for child in one.schema.child_tables:
            other = captured.get(child.replace('"', ""))
            if other is None:
                what = f"{one.schema.qualified_name} has the child table {child} at the source, which is not captured"
                yield CutoverObstacle(what=what, remedy="capture it, or exclude both")
                continue
            found = session.row(statement("child_tables", "inherits"), {"child": other.sql, "table": one.sql})
            if not (found and found[0]):
                what = f"{other.qualified_name} does not inherit from {one.qualified_name}, as it does at the source"
                yield CutoverObstacle(what=what, remedy=f"ALTER TABLE {other.sql} INHERIT {one.sql}")


class PostgresCutover(RelationalCutover):
    """One session of the cut-over of a PostgreSQL target."""

    _target: PostgresDatabase
    _session: TargetSession

    def __init__(self, target: PostgresDatabase, session: TargetSession) -> None:
        super().__init__(target, session)
        #: The tables, each with whether VENUS has created it.
        self._placed: dict[int, tuple[PlacedTable, bool]] = {}

    def sql(self, block: str, **parts: str) -> str:
        return cutover_sql(block, **parts)

    def try_lock_switch(self) -> bool:
        return self._session.row(side_sql("lock_switch")) == (True,)

    def open_side(self, opening: SideOpening) -> None:
        open_side(self._session, opening)

    # -- checks ----------------------------------------------------------------------------------------------------

    def read_tables(self) -> list[CutoverTable]:
        newest = {(s.table_id, s.version): s for s in self._target.read_schemas(self._session)}
        placed = {
            t.table_id: (self._target.place(schema), t.created)
            for t in self._target.read_tables(self._session)
            if (schema := newest.get((t.table_id, t.schema_version))) is not None and not schema.is_heartbeat
        }
        named = {"tables": [p.sql for p, _ in placed.values()]}
        there = {name for (name,) in self._session.rows(statement("dictionary", "present"), named)}
        self._placed = {number: one for number, one in placed.items() if one[0].sql in there}
        return [CutoverTable(schema=p.schema, name=p.qualified_name) for p in self._all_tables]

    @property
    def _all_tables(self) -> list[PlacedTable]:
        """The tables of the target, as `read_tables` has found them."""
        return [placed for placed, _ in self._placed.values()]

    @property
    def _created_tables(self) -> list[PlacedTable]:
        """The tables that VENUS has created at the target."""
        return [placed for placed, created in self._placed.values() if created]

    def find_differences(self) -> list[CutoverObstacle]:
        """Return the inheritance of the source that the target lacks."""
        return list(find_missing_inheritance(self._session, self._all_tables))

    def find_schema_differences(self) -> list[SchemaDifference]:
        created = {one.schema.table_id for one in self._created_tables}
        return guarantees.find_schema_differences(self._session, self._all_tables, created)

    def read_rows(self, table_id: int, take: RowSink) -> None:
        read_rows(self._session, self._placed[table_id][0], take)

    def open_row_converter(self, table_id: int) -> PostgresRowConverter:
        return PostgresRowConverter(self._session, self._placed[table_id][0])

    def check_references(self) -> list[ReferenceCheck]:
        there = guarantees.read_foreign_keys(self._session, self._all_tables)
        owed = guarantees.plan_references(self._all_tables, self._created_tables)
        found = guarantees.count_orphans(self._session, there, owed, self._all_tables)
        return [
            ReferenceCheck(name=f.name, shown=f.text, orphans=f.orphans, example=f.example, not_valid=f.not_valid)
            for f in found
        ]

    def set_counters(self, numberings: Seq[Numbering]) -> list[CounterSetting]:
        return set_counters(self._session, self._all_tables, numberings)

    # -- the hand-over ---------------------------------------------------------------------------------------------

    def enforce(self, invalid: Collection[str], numberings: Seq[Numbering]) -> list[str]:
        """Enable foreign key actions, domain checks, strict identities; return what is rejected or stays NOT VALID."""
        limit_lock_waits(self._session, TIDY_TIMEOUT_MS)  # otherwise writers of the application would queue
        warnings = self._recreate_references(invalid, acting=True) + guarantees.add_domain_checks(
            self._session, self._created_tables
        )
        set_identity_mode(self._session, self._created_tables, numberings, how="ALWAYS")
        left = guarantees.unvalidated_checks(self._session, self._all_tables)
        return warnings + [f"check {name} of {at} is NOT VALID: older rows may violate it" for at, name in left]

    def relax(self, invalid: Collection[str], numberings: Seq[Numbering]) -> None:
        self._recreate_references(invalid, acting=False)
        guarantees.drop_domain_checks(self._session, self._created_tables)
        set_identity_mode(self._session, self._created_tables, numberings, how="BY DEFAULT")

    def _recreate_references(self, invalid: Collection[str], *, acting: bool) -> list[str]:
        """Recreate VENUS's foreign keys, with actions if `acting`; return those that the target refuses."""
        there = guarantees.read_foreign_keys(self._session, self._all_tables)
        owed = guarantees.plan_references(self._all_tables, self._created_tables)
        return guarantees.recreate_references(self._session, there, owed, invalid, acting=acting)


_BIGINT_MAX = 2**63 - 1


def set_counters(
    session: TargetSession, placed: Sequence[PlacedTable], numberings: Sequence[Numbering]
) -> list[CounterSetting]:
    """Set the counters of all columns, then the sequences that belong to no column. Raises Refused if names collide."""
    of_column = {(n.namespace, n.table, n.column): n for n in numberings if n.table}
    found = []
    for one in placed:
        for column in one.schema.columns:
            if is_identity(one, column) or is_counted(one, column):
                known = of_column.get((one.schema.namespace, one.schema.name, column.name))
                found += _set_column_counter(session, one, column, known)
    free = name_free_sequences([n for n in numberings if n.name and not n.table], placed[0]) if placed else {}
    return found + [_set_free_sequence(session, numbering, name) for name, numbering in free.items()]


def name_free_sequences(numberings: Sequence[Numbering], any_table: PlacedTable) -> dict[str, Numbering]:
    """Return the sequences that belong to no column, by their quoted names at the target. Raises Refused. Pure."""
    dialect, rule = any_table.schema.source_dialect, any_table.rule
    found: dict[str, Numbering] = {}
    for one in numberings:
        name = f"{quote(rule.namespace(one.namespace, dialect))}.{quote(rule.fold(one.name, dialect))}"
        other = found.setdefault(name, one)
        if other is not one:
            raise Refused(
                f"sequences {one.namespace}.{one.name} and {other.namespace}.{other.name} would both become {name}",
                hint="rename or drop one of them at the source",
            )
    return found


def _set_column_counter(
    session: TargetSession, placed: PlacedTable, column: Column, known: Numbering | None
) -> list[CounterSetting]:
    """Let a column's counter continue after its rows and after `known`, the source's; return [] without a counter."""
    quoted_name = placed.column(column.name)
    name = placed.fold(column.name)
    row = session.row(cutover_sql("counter"), {"table": placed.sql, "column": name})
    if row is None:  # the table existed before VENUS, and its column has no counter
        return []
    sequence, current = row
    step = known.increment if known else current
    low, high = session.rows(cutover_sql("extremes", column=quoted_name, table=placed.rows_sql))[0]
    value = next_number(
        None if low is None else int(low),
        None if high is None else int(high),
        known.next_value if known else None,
        step,
    )
    if step != current:
        session.run(cutover_sql("set_step", sequence=sequence, step=str(step)))
    _setval(session, sequence, value, f"{placed.qualified_name}.{name}")
    return [CounterSetting(sequence=sequence, next_value=value, step=step, table=placed.qualified_name, column=name)]


def _setval(session: TargetSession, sequence: str, value: int, where: str) -> None:
    """Let a sequence continue at `value`. Raises Refused, with `where` in the message."""
    try:
        session.run(cutover_sql("set_counter"), {"sequence": sequence, "value": value})
    except TargetError as error:
        raise Refused(
            f"{where}: its counter cannot continue at {value}: {error}",
            hint="give the column a wider type at the target",
        ) from error


def _set_free_sequence(session: TargetSession, numbering: Numbering, name: str) -> CounterSetting:
    """Create a sequence that belongs to no column unless it exists, and set it."""
    row = session.row(cutover_sql("relation"), {"name": name})
    if row is not None and row[0] != "S":
        raise Refused(f"sequence {name}: the target has another object of that name", hint="rename it at the target")
    session.run(
        cutover_sql(
            "create_sequence",
            sequence=name,
            step=str(numbering.increment),
            low=str(max(numbering.minimum if numbering.minimum is not None else 1, -_BIGINT_MAX)),
            high=str(min(numbering.maximum if numbering.maximum is not None else _BIGINT_MAX, _BIGINT_MAX)),
            cycle="CYCLE" if numbering.cycle else "",
        )
    )
    _setval(session, name, numbering.next_value, f"sequence {name}")
    return CounterSetting(sequence=name, next_value=numbering.next_value, step=numbering.increment)


def always_identities(placed: Sequence[PlacedTable], numberings: Iterable[Numbering]) -> list[tuple[PlacedTable, str]]:
    """Return the identity columns that are GENERATED ALWAYS at the source, quoted."""
    strict = {(n.namespace, n.table, n.column) for n in numberings if n.always}
    return [
        (one, one.column(c.name))
        for one in placed
        for c in one.schema.columns
        if is_identity(one, c) and (one.schema.namespace, one.schema.name, c.name) in strict
    ]


def set_identity_mode(
    session: TargetSession, created: Sequence[PlacedTable], numberings: Sequence[Numbering], *, how: str
) -> None:
    """Set identities to their mode at the source (`ALWAYS`), or to the mode that VENUS needs (`BY DEFAULT`)."""
    for placed, column in always_identities(created, numberings):
        session.run(cutover_sql("set_generated", table=placed.sql, column=column, how=how))
