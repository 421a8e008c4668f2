"""Which triggers a table has, by the way in which it is captured. A table of functions; pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace

from venus.adapters.dialects.oracle import compound, ddl, inline, names
from venus.adapters.dialects.oracle.ddl import Keyed, Made, Style

_MAKERS: dict[Style, Callable[[Keyed, int], Iterator[Made]]] = {
    Style.ROWS: ddl.triggers,
    Style.COMPOUND: compound.triggers,
    Style.INLINE: inline.triggers,
}


def triggers(table: Keyed, table_id: int) -> list[Made]:
    """Return the triggers of a captured table, disabled."""
    return list(_MAKERS[table.style](table, table_id))


def as_installed(table: Keyed, table_id: int, present: Collection[str]) -> Keyed:
    """Return the table as it is captured: a compound trigger that is there stays what captures it."""
    if table.style is Style.ROWS and names.trigger(names.COMPOUND_LETTER, table_id) in present:
        return replace(table, style=Style.COMPOUND)
    return table
