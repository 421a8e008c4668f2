"""Taking one table out of capture while the others stay captured: its states and its reasons in the registry.

First VENUS removes the triggers: from then on the application runs no code of VENUS for that table, and VENUS captures
its log to the end. Then VENUS removes the log, and the table is RELEASED: only its row in the registry is left. The row
keeps number and version, by which broker and targets know the table. So the table can be captured again, and is then
read completely.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from venus.adapters.dialects.contract import RegisteredTable
from venus.errors import Refused
from venus.rpc.conditions import RELEASED as RELEASED
from venus.rpc.conditions import RELEASING as RELEASING

#: Why a table is RELEASING.
TRIGGERS_GONE = "its triggers are removed, and what is in its log is still to be captured"
#: Why a table is RELEASED after a DBA has run the script.
BY_SCRIPT = "taken out of capture by a script"
#: The end of the reason of a table that halted at a row while it was RELEASING.
HALTED_ON_THE_WAY = "; it is being taken out of capture"


def is_being_released(table: RegisteredTable) -> bool:
    """Whether a table is being taken out of capture, so that its triggers are missing on purpose."""
    return table.state == RELEASING or (table.state == "PAUSED" and table.reason.endswith(HALTED_ON_THE_WAY))


def qualified_names(tables: Iterable[RegisteredTable], table_ids: Iterable[int]) -> Mapping[int, str]:
    """Return the names of these tables. Raises Refused for a number that the registry does not have."""
    known = {t.schema.table_id: t.schema.qualified for t in tables}
    for table_id in table_ids:
        if table_id not in known:
            raise Refused(f"table {table_id} is not registered", hint="`venus status` lists the tables")
    return {table_id: known[table_id] for table_id in table_ids}


def refuse_if_written(places: Mapping[int, str], written: Iterable[int]) -> None:
    """Raise Refused for a table that has triggers: without its log the application's statements would fail."""
    for table_id in sorted(places.keys() & set(written)):
        why = f"{places[table_id]} has triggers again: they were installed in the meantime"
        raise Refused(why, hint=f"`venus uninstall-triggers {places[table_id]}` once more")
