"""What sort of table each is: carried, refused, or left out with the reason. Pure but for what reads it.

Left out is what holds no rows of the application's own; refused is what does and cannot be carried, so that nothing
is silently missing at the target.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from venus.adapters.dialects.contract import SchemaChanged
from venus.adapters.dialects.oracle.connection import Row, Session
from venus.adapters.dialects.oracle.statements import statement
from venus.adapters.dialects.oracle.versions import Version
from venus.errors import SourceError

LEFT_OUT = {
    "temporary": "a temporary table: its rows are a session's own",
    "nested": "the storage of a nested table: its rows are values of another table",
    "secondary": "made by a domain index",
    "IOT_OVERFLOW": "the overflow of an index-organized table, whose rows are carried whole",
    "IOT_MAPPING": "the mapping table of an index-organized table",
    "materialized view": "a materialized view: its rows are computed from other tables",
    "materialized view log": "the log of a materialized view",
    "external table": "an external table: its rows lie in files outside the database",
    "queue table": "a table of Advanced Queuing: its rows are messages in transit",
}
REFUSED = {
    "object table": "an object table: its rows are objects, which have no columns of their own",
    "XMLType table": "an XMLType table: its rows are documents without a column",
}
LEDGER = "a blockchain table: its hidden columns, which chain the rows, are not carried"
CLUSTERED = "it lies in a cluster: TRUNCATE CLUSTER is noticed only afterwards, and the table has to be read again"

MOVABLE = "row movement is enabled: FLASHBACK TABLE fires no trigger unless it says ENABLE TRIGGERS"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What there is to say of one table because of its sort."""

    left_out: str = ""
    refused: str = ""
    remark: str = ""


@dataclass(slots=True)
class Kinds:
    """The sorts of tables in some schemas."""

    _session: Session
    _version: Version
    _sees_ledgers: bool = True

    def read(self, owner: str) -> dict[str, str]:
        """Return the sort of each table that is not an ordinary one."""
        rows = self._session.rows(statement("kinds", "kinds"), {"owner": owner})
        return {str(name): "ledger" for name in self._ledgers(owner)} | {str(name): str(kind) for kind, name in rows}

    def _ledgers(self, owner: str) -> list[str]:
        if not (self._version.ledgers and self._sees_ledgers):
            return []
        try:
            return [str(row[0]) for row in self._session.rows(statement("kinds", "ledgers"), {"owner": owner})]
        except (SourceError, SchemaChanged):  # an update of 19c that has none yet; asked once only
            self._sees_ledgers = False
            return []


def kind_of(row: Row, special: Mapping[str, str]) -> Kind:
    """Return what there is to say of a table, from its row in ALL_TABLES."""
    _, name, _, _, temporary, nested, secondary, iot_type, cluster, movement = row
    sort = special.get(name, "")
    if temporary == "Y":
        sort = "temporary"
    elif nested == "YES":
        sort = "nested"
    elif secondary == "Y":
        sort = "secondary"
    elif iot_type in ("IOT_OVERFLOW", "IOT_MAPPING"):
        sort = str(iot_type)
    remark = LEDGER if sort == "ledger" else CLUSTERED if cluster else MOVABLE if movement == "ENABLED" else ""
    return Kind(left_out=LEFT_OUT.get(sort, ""), refused=REFUSED.get(sort, ""), remark=remark)


def beside(special: Mapping[str, str], listed: Seq[str]) -> dict[str, Kind]:
    """Return the tables that ALL_TABLES does not have."""
    return {
        name: Kind(refused=REFUSED[sort]) for name, sort in special.items() if sort in REFUSED and name not in listed
    }
