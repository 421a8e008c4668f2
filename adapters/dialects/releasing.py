"""A table that is taken out of capture while the others go on: its states, and what the registry says of it.

First its triggers go: from then on the application meets nothing of VENUS there, and its log is captured to its end.
Then the log goes too, and the table is RELEASED: it has a row in the registry and nothing else. The row keeps number
and version, which the broker and the targets know it by; so it can come back, and is then read as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from venus.adapters.dialects.contract import RegisteredTable
from venus.conditions import RELEASED as RELEASED
from venus.conditions import RELEASING as RELEASING
from venus.errors import Refused

#: Why a table is RELEASING.
TRIGGERS_GONE = "its triggers are removed, and what is in its log is still to be captured"
#: Why a table is RELEASED after somebody else has run the script.
BY_SCRIPT = "taken out of capture by a script"
#: What the reason of a table ends with that halted at a row while it was RELEASING.
HALTED_ON_THE_WAY = "; it is being taken out of capture"


def is_leaving(table: RegisteredTable) -> bool:
    """Say whether a table is on its way out: that its triggers are gone is no accident."""
    return table.state == RELEASING or (table.state == "PAUSED" and table.reason.endswith(HALTED_ON_THE_WAY))


def places_of(tables: Iterable[RegisteredTable], table_ids: Iterable[int]) -> Mapping[int, str]:
    """Return the names of these tables. Raises Refused for a number that the registry does not have."""
    known = {t.schema.table_id: t.schema.qualified for t in tables}
    for table_id in table_ids:
        if table_id not in known:
            raise Refused(f"table {table_id} is not registered", hint="`venus status` lists the tables")
    return {table_id: known[table_id] for table_id in table_ids}


def refuse_written(places: Mapping[int, str], written: Iterable[int]) -> None:
    """Raise Refused for a table whose triggers are there: without its log the application's statements would fail."""
    for table_id in sorted(places.keys() & set(written)):
        why = f"{places[table_id]} has triggers again: somebody has installed them meanwhile"
        raise Refused(why, hint=f"`venus uninstall-triggers {places[table_id]}` once more")
