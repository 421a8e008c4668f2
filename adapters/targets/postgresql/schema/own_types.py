"""The application's own enums and domains at a target: made before the tables, compared, followed (VENUS 3.4).

A label that is new at the source is added in a transaction of its own, before the rows that may have it: PostgreSQL
lets nobody use a label in the transaction that has added it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from venus.adapters.targets.postgresql.naming import Placed, literal
from venus.adapters.targets.postgresql.schema.ddl import create_type, own_or_plain, own_types
from venus.adapters.targets.postgresql.session import Session
from venus.adapters.targets.postgresql.statements import statement
from venus.errors import Refused
from venus.model import OwnType, TableSchema

#: What to do about a type that is there and is another one.
HINT = "alter the type, move it away, or give the target another schema"


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


def _read(session: Session, placed: Placed, own: OwnType) -> tuple[str, list[str]] | None:
    """Return what a type is here and its labels or its constraints; None if there is none of that name."""
    namespace, name = placed.type_place(own)
    row = session.row(statement("dictionary", "own_type"), {"namespace": namespace, "name": name})
    return None if row is None else (row[0], list(row[1]))


def differences(placed: Placed, wanted: OwnType, there: tuple[str, list[str]]) -> list[str]:
    """Say what keeps a type that is there from being used, one line each. Pure."""
    kind, details = there
    name = ".".join(placed.type_place(wanted))
    if wanted.base is None:
        if kind != "enum":
            return [f"type {name} is {kind} here, an enum at the source"]
        if is_within(wanted.labels, details):
            return []
        said = f"type {name} has the labels ({', '.join(details)}), the source ({', '.join(wanted.labels)})"
        return ["; ".join([said, *label_statements(placed, wanted, details)])]
    described = _domain(placed, wanted)
    if _said(kind, details) == described:
        return []
    return [f"type {name} is {_said(kind, details)} here, {described} at the source"]


def _said(kind: str, details: Sequence[str]) -> str:
    """Return a domain as text; quotes of names depend on who has written them."""
    return " ".join([kind, *sorted(details)]).replace('"', "")


def _domain(placed: Placed, own: OwnType) -> str:
    assert own.base is not None
    details = [f"CHECK ({placed.rewritten(check.sql)})" for check in own.checks]
    if own.not_null:
        details.append("NOT NULL")
    return _said(f"domain over {own_or_plain(placed, own.base_spelled, own.base)}", details)


def is_within(wanted: Sequence[str], there: Sequence[str]) -> bool:
    """Whether all these labels are there, in this order."""
    rest = iter(there)
    return all(label in rest for label in wanted)


def label_statements(placed: Placed, wanted: OwnType, there: Sequence[str]) -> list[str]:
    """Return what adds the labels that are missing; nothing if labels were renamed, moved or dropped. Pure."""
    if not is_within(there, wanted.labels):
        return []
    found = []
    for n, label in enumerate(wanted.labels):
        if label not in there:
            place = f"AFTER {literal(wanted.labels[n - 1])}" if n else f"BEFORE {literal(there[0])}" if there else ""
            name = placed.type_name(wanted)
            found.append(f"ALTER TYPE {name} ADD VALUE IF NOT EXISTS {literal(label)} {place}".rstrip())
    return found


def add_labels(placed: Placed, connect: Callable[[], Session]) -> None:
    """Add the labels that a table's version has and its types at the target lack, durably, by a session of its own.

    A type that is not there yet is made with its table; other changes of labels are left for `labels_refused`.
    """
    enums = [own for own in placed.schema.types if own.base is None]
    if not enums:
        return
    session = connect()
    try:
        for own in enums:
            there = _read(session, placed, own)
            for text in label_statements(placed, own, there[1]) if there and there[0] == "enum" else ():
                session.run(text)
    finally:
        session.close()


def settled(session: Session, placed: Placed) -> set[str]:
    """Return the enums of a table's version that have its labels here, in its order."""
    there = {own.spelled: _read(session, placed, own) for own in placed.schema.types if own.base is None}
    wanted = {own.spelled: own.labels for own in placed.schema.types}
    return {name for name, row in there.items() if row is not None and is_within(wanted[name], row[1])}


def labels_refused(old: TableSchema, new: TableSchema, settled: Collection[str]) -> str:
    """Say why a type cannot be followed from one version to the next; empty if it can. Pure."""
    before = {own.spelled: own.labels for own in old.types if own.base is None}
    for own in new.types:
        known = before.get(own.spelled, ())
        if own.base is None and own.spelled not in settled and not is_within(known, own.labels):
            return (
                f"the labels of {own.spelled} were ({', '.join(known)}) and are ({', '.join(own.labels)}): rename them"
                " here in the same way, then `venus resync` each table that uses the type"
            )
    return ""


def create_if_missing(placed: Placed, own: OwnType) -> str:
    """Return the statement that makes a type for a new column unless another table has brought it."""
    return "DO $venus$ BEGIN " + create_type(placed, own) + "; EXCEPTION WHEN duplicate_object THEN NULL; END $venus$"
