"""The application's own enums and domains at a target: made before the tables, compared, followed (VENUS 3.4).

A label that is new at the source is added in a transaction of its own, before the rows that may have it: PostgreSQL
does not accept a label in the transaction that has added it. A renamed label is renamed in front of the rows
(labels.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from venus.adapters.targets.postgresql.naming import Placed, quoted
from venus.adapters.targets.postgresql.schema.ddl import create_type, own_or_plain, own_types, valid_checks
from venus.adapters.targets.postgresql.schema.labels import LabelChange, is_within, label_change, statements_by_position
from venus.adapters.targets.postgresql.session import Session
from venus.adapters.targets.postgresql.statements import statement
from venus.errors import Refused, TargetError
from venus.model import OwnType, TableSchema

#: A domain's NOT NULL has no name of its own.
_REQUIRED = "NOT NULL"
#: What to do about a type that is there and is another one.
HINT = "alter the type, move it away, or give the target another schema"


class LabelsMissing(TargetError):
    """The target has not the labels that rows of the full data may have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeHere:
    """A type as the target has it."""

    kind: str
    #: Of an enum, in order.
    labels: tuple[str, ...] = ()
    #: Of a domain: definitions by name.
    constraints: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelSteps:
    """What a table's version changes of labels here. `refused` = why it cannot be followed."""

    statements: tuple[str, ...] = ()
    refused: str = ""


def make_types(session: Session, placed: Placed) -> None:
    """Make what a new table needs; what is there must be the same. Raises Refused."""
    found = []
    for _, wanted in own_types([placed]):
        there = _read(session, placed, wanted)
        if there is None:
            session.run(create_type(placed, wanted))
        else:
            found += differences(placed, wanted, there)
    if found:
        raise Refused("\n".join(found), hint=HINT)


def unlike(session: Session, placed: Placed, wanted: OwnType) -> list[str]:
    """Say what keeps a type that is there from being used; nothing if it is the same or not there."""
    there = _read(session, placed, wanted)
    return [] if there is None else differences(placed, wanted, there)


def enum_differences(session: Session, placed: Placed) -> list[str]:
    """Say which enums that are there have not the labels of the source."""
    enums = [(own, _read(session, placed, own)) for own in placed.schema.types if own.base is None]
    return [line for own, there in enums if there is not None for line in differences(placed, own, there)]


def _read(session: Session, placed: Placed, own: OwnType) -> TypeHere | None:
    """Return what a type is here; None if there is none of that name."""
    namespace, name = placed.type_place(own)
    row = session.row(statement("dictionary", "own_type"), {"namespace": namespace, "name": name})
    if row is None:
        return None
    constraints = tuple((name, definition) for name, definition in row[2])
    return TypeHere(kind=row[0], labels=tuple(row[1]), constraints=constraints)


def differences(placed: Placed, wanted: OwnType, there: TypeHere) -> list[str]:
    """Say what keeps a type that is there from being used, one line each, with what would change that. Pure."""
    name = ".".join(placed.type_place(wanted))
    if wanted.base is None:
        if there.kind != "enum":
            return [f"type {name} is {there.kind} here, an enum at the source"]
        if is_within(wanted.labels, there.labels):
            return []
        said = f"type {name} has the labels ({', '.join(there.labels)}), the source ({', '.join(wanted.labels)})"
        return ["; ".join([said, *label_statements(placed, wanted, there.labels)])]
    constraints = _constraints(placed, wanted)
    kind = f"domain over {own_or_plain(placed, wanted.base_spelled, wanted.base)}"
    here, source = (
        _said(t, (text for _, text in c)) for t, c in ((there.kind, there.constraints), (kind, constraints))
    )
    if here == source:
        return []
    said = f"type {name} is {here} here, {source} at the source"
    if there.kind.replace('"', "") != kind.replace('"', ""):
        return [said]
    return [f"{said}: {'; '.join(_domain_statements(placed.type_name(wanted), there.constraints, constraints))}"]


def _said(kind: str, details: Iterable[str]) -> str:
    """Return a domain as text; quotes of names depend on who has written them."""
    return " ".join([kind, *sorted(details)]).replace('"', "")


def _constraints(placed: Placed, own: OwnType) -> tuple[tuple[str, str], ...]:
    required = ((_REQUIRED, _REQUIRED),) if own.not_null else ()
    return (*((check.name, f"CHECK ({placed.rewritten(check.sql)})") for check in valid_checks(own)), *required)


def _domain_statements(name: str, there: Iterable[tuple[str, str]], wanted: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield what makes a domain's constraints those of the source: first what goes, for its name may come again."""
    here, source = [(n, _said("", (t,)), t) for n, t in there], [(n, _said("", (t,)), t) for n, t in wanted]
    kept = {text for _, text, _ in source}
    for constraint, text, _ in here:
        if text not in kept:
            required = constraint == _REQUIRED
            yield f"ALTER DOMAIN {name} DROP {_REQUIRED if required else f'CONSTRAINT {quoted(constraint)}'}"
    present = {text for _, text, _ in here}
    for constraint, text, definition in source:
        if text not in present:
            required = constraint == _REQUIRED
            how = f"SET {_REQUIRED}" if required else f"ADD CONSTRAINT {quoted(constraint)} {definition}"
            yield f"ALTER DOMAIN {name} {how}"


def missing(session: Session, placed: Placed, own: OwnType) -> Iterator[tuple[str, str]]:
    """Yield what a domain lacks here of the source's, each with the statement that adds it."""
    there = _read(session, placed, own)
    if own.base is None or there is None:
        return
    name, present = placed.type_name(own), {_said("", (text,)) for _, text in there.constraints}
    for constraint, definition in _constraints(placed, own):
        if _said("", (definition,)) in present:
            continue
        if constraint == _REQUIRED:
            yield f"{_REQUIRED} of domain {name} is missing", f"ALTER DOMAIN {name} SET {_REQUIRED}"
        else:
            add = f"ALTER DOMAIN {name} ADD CONSTRAINT {quoted(constraint)} {definition}"
            yield f"check {constraint} of domain {name} is missing", add


def label_statements(placed: Placed, wanted: OwnType, there: Sequence[str]) -> list[str]:
    """Return what makes the labels of a type those of the source, whatever they are. Pure."""
    name = placed.type_name(wanted)
    change = label_change(name, wanted.labels, there)
    return [*change.added, *change.renamed] if change.settled else statements_by_position(name, wanted.labels, there)


def add_labels(placed: Placed, connect: Callable[[], Session], known: TableSchema | None = None) -> None:
    """Add the labels that a table's version has and its types at the target lack, durably, by a session of its own.

    A type that is not there yet is made with its table. What was renamed since the version `known` is left for
    `label_steps`; without it nothing but the rows to come has been read, and it is renamed here.
    """
    if all(own.base is not None for own in placed.schema.types):
        return
    session = connect()
    try:
        for change in _label_changes(session, placed, known):
            for text in (*change.added, *(() if known else change.renamed)):
                session.run(text)
    finally:
        session.close()


def label_steps(session: Session, old: Placed, new: Placed, target: str) -> LabelSteps:
    """Return what a version changes of the labels that are here; those that it adds are added before."""
    statements: list[str] = []
    for own in new.schema.types:
        there = _read(session, new, own)
        if own.base is not None or there is None or there.kind != "enum":
            continue
        change = label_change(new.type_name(own), own.labels, there.labels, _labels(old.schema, own))
        if not change.settled:
            return LabelSteps(refused=_labels_refused(new, own, there, target))
        statements += change.renamed
    return LabelSteps(statements=tuple(statements))


def require_labels(session: Session, placed: Placed, target: str) -> None:
    """Raise LabelsMissing unless the labels of a table's version are here."""
    for own in placed.schema.types:
        there = _read(session, placed, own) if own.base is None else None
        if there is not None and there.kind == "enum" and not is_within(own.labels, there.labels):
            raise LabelsMissing(_labels_refused(placed, own, there, target))


def _label_changes(session: Session, placed: Placed, known: TableSchema | None) -> list[LabelChange]:
    enums = [(own, _read(session, placed, own)) for own in placed.schema.types if own.base is None]
    return [
        label_change(placed.type_name(own), own.labels, there.labels, _labels(known, own) if known else ())
        for own, there in enums
        if there is not None and there.kind == "enum"
    ]


def _labels(schema: TableSchema, own: OwnType) -> tuple[str, ...]:
    return next((one.labels for one in schema.types if one.spelled == own.spelled), ())


def _labels_refused(placed: Placed, own: OwnType, there: TypeHere, target: str) -> str:
    statements = "; ".join(label_statements(placed, own, there.labels))
    return (
        f"the labels of {own.spelled} are ({', '.join(there.labels)}) here and ({', '.join(own.labels)}) at the source:"
        f" {statements}; then `venus resync {placed.schema.qualified} --target {target}`, and the same for each halted"
        " table that uses the type"
    )


def create_if_missing(placed: Placed, own: OwnType) -> str:
    """Return the statement that makes a type for a new column unless another table has brought it."""
    return "DO $venus$ BEGIN " + create_type(placed, own) + "; EXCEPTION WHEN duplicate_object THEN NULL; END $venus$"
