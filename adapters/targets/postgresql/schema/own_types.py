"""The application's own enums and domains at a target: creation before the tables, comparison, changes (VENUS 3.4).

PostgreSQL can rename and add labels of an enum, but neither drop nor move them. A label that is renamed at the source
keeps its position in the enum. VENUS renames the label at the target as well, before the rows that have the new name,
in the same transaction. A new label is added in a separate transaction before the rows that may have it, because
PostgreSQL does not allow use of a label in the transaction that adds it. For any other change of an enum (for example,
a type that was recreated in another order), the operator gets statements, and a resync then replaces the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from venus.adapters.targets.postgresql.naming import PlacedTable, quote, quote_literal
from venus.adapters.targets.postgresql.schema.ddl import create_type, declared_type, list_own_types, valid_checks
from venus.adapters.targets.postgresql.session import TargetSession, statement
from venus.errors import Refused, TargetError
from venus.model import OwnType, TableSchema

#: Placeholder for the name of a domain's NOT NULL constraint, which has no name.
_REQUIRED = "NOT NULL"
#: The remedy for an existing type that differs.
HINT = "alter the type, move it away, or give the target another schema"


class LabelsMissing(TargetError):
    """Enums at the target lack labels that rows of the full data may have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetType:
    """An enum or a domain of the application, as the target has it."""

    kind: str
    #: The labels of an enum in order.
    labels: tuple[str, ...] = ()
    #: The constraints of a domain: name and definition.
    constraints: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelSteps:
    """Statements that change enum labels for a table version. `refused`: why they are impossible; empty = possible."""

    statements: tuple[str, ...] = ()
    refused: str = ""


def create_types(session: TargetSession, placed: PlacedTable) -> None:
    """Create the enums and domains of a new table. Raises Refused if an existing type differs."""
    found = []
    for _, wanted in list_own_types([placed]):
        there = _read_type(session, placed, wanted)
        if there is None:
            session.run(create_type(placed, wanted))
        else:
            found += type_differences(placed, wanted, there)
    if found:
        raise Refused("\n".join(found), hint=HINT)


def read_type_differences(session: TargetSession, placed: PlacedTable, wanted: OwnType) -> list[str]:
    """Return how an existing enum or domain differs from the source; empty if it is the same or does not exist."""
    there = _read_type(session, placed, wanted)
    return [] if there is None else type_differences(placed, wanted, there)


def read_enum_differences(session: TargetSession, placed: PlacedTable) -> list[str]:
    """Return the differences of existing enums from the labels of the source."""
    enums = [(own, _read_type(session, placed, own)) for own in placed.schema.types if own.base is None]
    return [line for own, there in enums if there is not None for line in type_differences(placed, own, there)]


def _read_type(session: TargetSession, placed: PlacedTable, own: OwnType) -> TargetType | None:
    """Read an enum or a domain at the target; None if it does not exist."""
    namespace, name = placed.type_place(own)
    row = session.row(statement("dictionary", "own_type"), {"namespace": namespace, "name": name})
    if row is None:
        return None
    constraints = tuple((name, definition) for name, definition in row[2])
    return TargetType(kind=row[0], labels=tuple(row[1]), constraints=constraints)


def type_differences(placed: PlacedTable, wanted: OwnType, there: TargetType) -> list[str]:
    """Return the differences of an existing type, one line each, with the statements that remove them. Pure."""
    name = ".".join(placed.type_place(wanted))
    if wanted.base is None:
        if there.kind != "enum":
            return [f"type {name} is {there.kind} here, an enum at the source"]
        if is_within(wanted.labels, there.labels):
            return []
        line = f"type {name} has the labels ({', '.join(there.labels)}), the source ({', '.join(wanted.labels)})"
        return ["; ".join([line, *label_statements(placed, wanted, there.labels)])]
    constraints = _constraints(placed, wanted)
    kind = f"domain over {declared_type(placed, wanted.base_sql_name, wanted.base)}"
    here, source = (
        _domain_text(t, (text for _, text in c)) for t, c in ((there.kind, there.constraints), (kind, constraints))
    )
    if here == source:
        return []
    line = f"type {name} is {here} here, {source} at the source"
    if there.kind.replace('"', "") != kind.replace('"', ""):
        return [line]
    return [f"{line}: {'; '.join(_domain_statements(placed.type_name(wanted), there.constraints, constraints))}"]


def _domain_text(kind: str, details: Iterable[str]) -> str:
    """Return a domain as text without quotes, which differ between source and dictionary."""
    return " ".join([kind, *sorted(details)]).replace('"', "")


def _constraints(placed: PlacedTable, own: OwnType) -> tuple[tuple[str, str], ...]:
    """Return name and definition of each constraint that a domain must have at the target."""
    required = ((_REQUIRED, _REQUIRED),) if own.not_null else ()
    return (*((check.name, f"CHECK ({placed.rewrite(check.sql)})") for check in valid_checks(own)), *required)


def _domain_statements(name: str, there: Iterable[tuple[str, str]], wanted: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield statements that turn a domain's constraints into the source's; drops come first, to free their names."""
    here, source = (
        [(n, _domain_text("", (t,)), t) for n, t in there],
        [(n, _domain_text("", (t,)), t) for n, t in wanted],
    )
    kept = {text for _, text, _ in source}
    for constraint, text, _ in here:
        if text not in kept:
            required = constraint == _REQUIRED
            yield f"ALTER DOMAIN {name} DROP {_REQUIRED if required else f'CONSTRAINT {quote(constraint)}'}"
    present = {text for _, text, _ in here}
    for constraint, text, definition in source:
        if text not in present:
            required = constraint == _REQUIRED
            how = f"SET {_REQUIRED}" if required else f"ADD CONSTRAINT {quote(constraint)} {definition}"
            yield f"ALTER DOMAIN {name} {how}"


def missing_constraints(session: TargetSession, placed: PlacedTable, own: OwnType) -> Iterator[tuple[str, str]]:
    """Yield the constraints that a domain lacks here, each with the statement that adds it."""
    there = _read_type(session, placed, own)
    if own.base is None or there is None:
        return
    name, present = placed.type_name(own), {_domain_text("", (text,)) for _, text in there.constraints}
    for constraint, definition in _constraints(placed, own):
        if _domain_text("", (definition,)) in present:
            continue
        if constraint == _REQUIRED:
            yield f"{_REQUIRED} of domain {name} is missing", f"ALTER DOMAIN {name} SET {_REQUIRED}"
        else:
            add = f"ALTER DOMAIN {name} ADD CONSTRAINT {quote(constraint)} {definition}"
            yield f"check {constraint} of domain {name} is missing", add


def label_statements(placed: PlacedTable, wanted: OwnType, there: Sequence[str]) -> list[str]:
    """Return statements that turn the labels `there` of an enum into those of the source. Pure."""
    name = placed.type_name(wanted)
    change = plan_label_change(name, wanted.labels, there)
    return [*change.added, *change.renamed] if change.settled else statements_by_position(name, wanted.labels, there)


def add_labels(placed: PlacedTable, connect: Callable[[], TargetSession], known: TableSchema | None = None) -> None:
    """Add the labels of a table's version that its types at the target lack, durably, in a separate session.

    A type that does not exist yet is created with its table. If `known` is given, `plan_label_steps` renames the labels
    that were renamed since that version; otherwise this function renames them.
    """
    if all(own.base is not None for own in placed.schema.types):
        return
    session = connect()
    try:
        for change in _plan_label_changes(session, placed, known):
            for text in (*change.added, *(() if known else change.renamed)):
                session.run(text)
    finally:
        session.close()


def plan_label_steps(session: TargetSession, old: PlacedTable, new: PlacedTable, target: str) -> LabelSteps:
    """Return the renamings of labels in a version, after `add_labels` has added new labels."""
    statements: list[str] = []
    for own in new.schema.types:
        there = _read_type(session, new, own)
        if own.base is not None or there is None or there.kind != "enum":
            continue
        change = plan_label_change(new.type_name(own), own.labels, there.labels, _labels_of(old.schema, own))
        if not change.settled:
            return LabelSteps(refused=_label_refusal(new, own, there, target))
        statements += change.renamed
    return LabelSteps(statements=tuple(statements))


def require_labels(session: TargetSession, placed: PlacedTable, target: str) -> None:
    """Raise LabelsMissing unless the target has the labels of a table's version."""
    for own in placed.schema.types:
        there = _read_type(session, placed, own) if own.base is None else None
        if there is not None and there.kind == "enum" and not is_within(own.labels, there.labels):
            raise LabelsMissing(_label_refusal(placed, own, there, target))


def _plan_label_changes(session: TargetSession, placed: PlacedTable, known: TableSchema | None) -> list[LabelChange]:
    """Return the label changes of each enum of a table that the target already has."""
    enums = [(own, _read_type(session, placed, own)) for own in placed.schema.types if own.base is None]
    return [
        plan_label_change(placed.type_name(own), own.labels, there.labels, _labels_of(known, own) if known else ())
        for own, there in enums
        if there is not None and there.kind == "enum"
    ]


def _labels_of(schema: TableSchema, own: OwnType) -> tuple[str, ...]:
    """Return the labels that an enum has in a version of a table; empty if the version does not use it."""
    return next((one.labels for one in schema.types if one.sql_name == own.sql_name), ())


def _label_refusal(placed: PlacedTable, own: OwnType, there: TargetType, target: str) -> str:
    """Return why an enum's labels cannot be changed in place, with what an operator can run instead."""
    statements = "; ".join(label_statements(placed, own, there.labels))
    return (
        f"the labels of {own.sql_name} are ({', '.join(there.labels)}) here and ({', '.join(own.labels)}) at "
        f"the source: {statements}; then "
        f"`venus resync {placed.schema.qualified_name} --target {target}`, and the same for "
        "each halted table that uses the type"
    )


def create_if_missing(placed: PlacedTable, own: OwnType) -> str:
    """Return the statement that creates a type for a new column unless it exists already."""
    return "DO $venus$ BEGIN " + create_type(placed, own) + "; EXCEPTION WHEN duplicate_object THEN NULL; END $venus$"


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelChange:
    """Statements that change the labels of one enum. `settled`: they lead to the source's labels in its order."""

    added: tuple[str, ...] = ()
    renamed: tuple[str, ...] = ()
    settled: bool = True


def plan_label_change(
    type_sql: str, wanted: Sequence[str], there: Sequence[str], known: Sequence[str] = ()
) -> LabelChange:
    """Return the change from the labels `there` to the source's; `known`: those of the previous version. Pure."""
    names = {
        was: now for was, now in _find_renames(known or there, wanted).items() if was in there and now not in there
    }
    here = [names.get(label, label) for label in there]
    renamed = tuple(_rename_label_sql(type_sql, was, now) for was, now in names.items())
    if is_within(wanted, here):
        return LabelChange(renamed=renamed)
    common = [label for label in wanted if label in here]
    if not is_within(common, here):
        return LabelChange(settled=False)
    return LabelChange(added=tuple(_add_statements(type_sql, wanted, here, names)), renamed=renamed)


def is_within(wanted: Sequence[str], there: Sequence[str]) -> bool:
    """Return whether all labels of `wanted` are in `there`, in the same order."""
    rest = iter(there)
    return all(label in rest for label in wanted)


def statements_by_position(type_sql: str, wanted: Sequence[str], there: Sequence[str]) -> list[str]:
    """Return statements that rename labels to the source's by position; all rows must then be sent again. Pure."""
    moves = {was: now for was, now in zip(there, wanted, strict=False) if was != now}
    spare = [label for label in there[len(wanted) :] if label in wanted]
    aside = {was: f"{was}_before" for was in (*moves, *spare) if was in wanted}
    statements = [_rename_label_sql(type_sql, was, new) for was, new in aside.items()]
    statements += [_rename_label_sql(type_sql, aside.get(was, was), now) for was, now in moves.items()]
    return statements + [_add_label_sql(type_sql, label, "") for label in wanted[len(there) :]]


def _find_renames(known: Sequence[str], wanted: Sequence[str]) -> Mapping[str, str]:
    """Return the renamed labels, if renaming explains all differences: the same count, each label in its old place."""
    pairs = {was: now for was, now in zip(known, wanted, strict=False) if was != now}
    if len(known) != len(wanted) or any(was in wanted or now in known for was, now in pairs.items()):
        return {}
    return pairs


def _add_statements(type_sql: str, wanted: Sequence[str], here: Sequence[str], names: Mapping[str, str]) -> list[str]:
    """Return statements that add the missing labels; a neighbour that is renamed later still has its old name."""
    former = {now: was for was, now in names.items()}
    found = []
    for n, label in enumerate(wanted):
        if label in here:
            continue
        if n:
            place = f"AFTER {quote_literal(former.get(wanted[n - 1], wanted[n - 1]))}"
        else:
            place = f"BEFORE {quote_literal(former.get(here[0], here[0]))}" if here else ""
        found.append(_add_label_sql(type_sql, label, place))
    return found


def _add_label_sql(type_sql: str, label: str, place: str) -> str:
    return f"ALTER TYPE {type_sql} ADD VALUE IF NOT EXISTS {quote_literal(label)} {place}".rstrip()


def _rename_label_sql(type_sql: str, was: str, now: str) -> str:
    return f"ALTER TYPE {type_sql} RENAME VALUE {quote_literal(was)} TO {quote_literal(now)}"
