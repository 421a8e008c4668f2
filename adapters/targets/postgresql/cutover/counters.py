"""Counters at the cut-over: the target continues behind its own rows *and* behind the numbers drawn at the source.

A number that the source drew and rolled back may already be in use outside the database, so the larger value counts.
Setting a counter changes no row and may be repeated, because VENUS applies rows with their numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from venus.adapters.dialects.contract import Numbering
from venus.adapters.targets.cutover_contract import CounterSetting
from venus.adapters.targets.postgresql.database import cutover_sql
from venus.adapters.targets.postgresql.naming import PlacedTable, fold_name, quote, shorten_name, target_namespace
from venus.adapters.targets.postgresql.schema.ddl import is_counted, is_identity
from venus.adapters.targets.postgresql.session import TargetSession
from venus.errors import Refused, TargetError
from venus.model import Column

_BIGINT_MAX = 2**63 - 1


def next_number(smallest: int | None, largest: int | None, source_next: int | None, step: int) -> int:
    """Return the first free number behind the rows and behind the source's counter. Pure."""
    if step < 0:
        mine = -1 if smallest is None else smallest + step
        return mine if source_next is None else min(mine, source_next)
    mine = 1 if largest is None else max(largest, 0) + step
    return mine if source_next is None else max(mine, source_next)


def set_counters(
    session: TargetSession, placed: Sequence[PlacedTable], numberings: Sequence[Numbering], schema: str
) -> list[CounterSetting]:
    """Set the counters of all tables, then the free sequences. `schema` is the configured schema of the target."""
    of_column = {(n.namespace, n.table, n.column): n for n in numberings if n.table}
    found = []
    for one in placed:
        for column in one.schema.columns:
            if is_identity(one, column) or is_counted(one, column):
                known = of_column.get((one.schema.namespace, one.schema.name, column.name))
                found += _set_column_counter(session, one, column, known)
    return found + [
        _set_free_sequence(session, n, placed[0], schema) for n in numberings if n.name and not n.table and placed
    ]


def _set_column_counter(
    session: TargetSession, placed: PlacedTable, column: Column, known: Numbering | None
) -> list[CounterSetting]:
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
    _setval(session, sequence, value, f"{placed.qualified}.{name}")
    return [CounterSetting(sequence=sequence, next_value=value, step=step, table=placed.qualified, column=name)]


def _setval(session: TargetSession, sequence: str, value: int, where: str) -> None:
    try:
        session.run(cutover_sql("set_counter"), {"sequence": sequence, "value": value})
    except TargetError as error:
        raise Refused(
            f"{where}: its counter cannot continue at {value}: {error}",
            hint="give the column a wider type at the target",
        ) from error


def _set_free_sequence(
    session: TargetSession, numbering: Numbering, any_table: PlacedTable, schema: str
) -> CounterSetting:
    """Create a sequence that belongs to no column unless it exists, and set it."""
    dialect, names = any_table.schema.source_dialect, any_table.names
    namespace = schema or target_namespace(numbering.namespace, dialect, names)
    name = f"{quote(namespace)}.{quote(shorten_name(fold_name(numbering.name, dialect, names)))}"
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
    """Set identities to their mode at the source (`ALWAYS`) or to the one that VENUS needs (`BY DEFAULT`)."""
    for placed, column in always_identities(created, numberings):
        session.run(cutover_sql("set_generated", table=placed.sql, column=column, how=how))
