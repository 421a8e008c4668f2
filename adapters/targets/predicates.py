"""The predicates of a target and their tables: `[targets.NAME.where]` maps the name of a table to its predicate."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from venus.errors import ConfigError
from venus.masking.projection import source_of
from venus.model import TableSchema
from venus.predicates.ranges import compile_predicate
from venus.predicates.syntax import PredicateRefused, parse, to_sql
from venus.text.formatting import suggest_nearest


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignedPredicate:
    """A predicate of the configuration and its table."""

    place: str  # the option in the configuration, for messages
    text: str
    schema: TableSchema

    def check(self) -> None:
        """Raise ConfigError, which names the option, if the predicate does not fit its table."""
        try:
            compile_predicate(self.text, self.schema)
        except PredicateRefused as refused:
            raise ConfigError(f"{self.place}: {self.text}: {refused}", hint=refused.hint) from None


def assign_predicates(
    where: Mapping[str, str], schemas: Iterable[TableSchema], target: str, *, elsewhere: Seq[str] = ()
) -> dict[int, AssignedPredicate]:
    """Return the predicate of each table that has one.

    A name that only `elsewhere` contains is ignored. Raises ConfigError for an unknown or ambiguous name.
    """
    known = [source_of(s) for s in schemas if not s.is_heartbeat]
    found: dict[int, AssignedPredicate] = {}
    for name, text in where.items():
        place = f"targets.{target}.where.{name}"
        schema = _find_table(name, known, place, elsewhere)
        if schema is None:
            continue
        if schema.table_id in found:
            raise ConfigError(f"{place}: {schema.qualified_name} has a predicate already, by another of its names")
        found[schema.table_id] = AssignedPredicate(place=place, text=to_sql(parse(text)), schema=schema)
    return found


def check_predicates(where: Mapping[str, str], schemas: Iterable[TableSchema], target: str) -> dict[int, str]:
    """Return the predicate text of each table that has one. Raises ConfigError for a predicate that does not fit."""
    found = assign_predicates(where, schemas, target)
    for one in found.values():
        one.check()
    return {table_id: one.text for table_id, one in found.items()}


def find_ambiguity(where: Mapping[str, str], schema: TableSchema, others: Iterable[TableSchema], target: str) -> str:
    """Return why a predicate may belong either to a new table or to another one; empty = it is unambiguous."""
    known = [source_of(s) for s in (*others, schema) if not s.is_heartbeat]
    for name in where:
        if name.casefold() == schema.name.casefold():
            try:
                _find_table(name, known, f"targets.{target}.where.{name}", ())
            except ConfigError as error:
                return str(error)
    return ""


def predicate_text(where: Mapping[str, str], qualified_name: str) -> str:
    """Return the predicate text of a table by its name; empty = every row."""
    names = (qualified_name, qualified_name.partition(".")[2])
    for fold in (str, str.casefold):
        for name, text in where.items():
            if fold(name) in map(fold, names):
                return to_sql(parse(text))
    return ""


def _find_table(name: str, known: Seq[TableSchema], place: str, elsewhere: Seq[str]) -> TableSchema | None:
    """Return the table that a configured name means; None if only `elsewhere` has it. Raises ConfigError."""
    for fold in (str, str.casefold):
        meant = [s for s in known if fold(name) in (fold(s.name), fold(s.qualified_name))]
        if len(meant) == 1:
            return meant[0]
        if meant:
            names = " or ".join(f'"{s.qualified_name}"' for s in meant)
            raise ConfigError(f"{place}: more than one table has this name: write {names}")
    if any(name.casefold() in (other.casefold(), other.partition(".")[2].casefold()) for other in elsewhere):
        return None
    names_known = sorted({*(s.qualified_name for s in known), *elsewhere})
    raise ConfigError(
        f"{place}: there is no table {name}{suggest_nearest(name, names_known)}",
        hint=f"captured tables: {', '.join(names_known[:12]) or 'none'}",
    )
