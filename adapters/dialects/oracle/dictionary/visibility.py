"""Features that hide rows or values from the user that reads them: policies, Data Redaction, row archival.

A row that capture does not see looks deleted, and a masked value looks like data. So VENUS refuses a table while any of
these features applies to it, and the findings name the privilege that removes the restriction.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from venus.adapters.dialects.contract import SchemaChanged
from venus.adapters.dialects.oracle.names import ARCHIVE_STATE, quote
from venus.adapters.dialects.oracle.session.connection import OracleSession
from venus.adapters.dialects.oracle.sql import statement
from venus.errors import SourceError
from venus.model import Finding

SEES_ROWS, SEES_VALUES = "EXEMPT ACCESS POLICY", "EXEMPT REDACTION POLICY"
_EXCLUDE = "exclude the table in [source] exclude"


@dataclass(frozen=True, slots=True, kw_only=True)
class Restriction:
    """The reason why a table is not completely visible, and the remedy."""

    message: str
    remedy: str
    is_archival: bool = False


@dataclass(slots=True, kw_only=True)
class Visibility:
    """The hidden rows and values of the captured schemas, by (owner, table)."""

    hidden: dict[tuple[str, str], list[Restriction]] = field(default_factory=dict)
    archived: set[tuple[str, str]] = field(default_factory=set)
    #: Whether this user can read the redaction policies.
    knows_redactions: bool = True

    def restrictions_of(self, owner: str, name: str) -> list[Restriction]:
        """Return the restrictions of one table."""
        return self.hidden.get((owner, name), [])


def read_visibility(session: OracleSession, owners: Iterable[str], user: str) -> Visibility:
    """Read the restrictions from the dictionary."""
    granted = {str(row[0]) for row in session.fetch_rows(statement("dictionary", "privileges"))}
    found = Visibility()
    for owner in owners:
        binds = {"owner": owner}
        if SEES_ROWS not in granted:
            for table, policy in session.fetch_rows(statement("visibility", "policies"), binds):
                found.hidden.setdefault((owner, table), []).append(_policy_restriction(str(policy), user))
        if SEES_VALUES not in granted:
            masked = _read_redactions(session, owner)
            found.knows_redactions = found.knows_redactions and masked is not None
            for table, policy in masked or ():
                found.hidden.setdefault((owner, table), []).append(_redaction_restriction(policy, user))
        found.archived |= {
            (owner, str(table)) for (table,) in session.fetch_rows(statement("visibility", "archival"), binds)
        }
    for owner, table in found.archived:
        found.hidden.setdefault((owner, table), []).append(_archival_restriction())
    return found


def _read_redactions(session: OracleSession, owner: str) -> list[tuple[str, str]] | None:
    try:
        rows: Seq[Seq[object]] = session.fetch_rows(statement("visibility", "redactions"), {"owner": owner})
    except (SourceError, SchemaChanged):
        return None
    return [(str(table), str(policy)) for table, policy in rows]


def _policy_restriction(policy: str, user: str) -> Restriction:
    return Restriction(
        message=f"policy {policy} may hide rows from {user}, and they would look deleted",
        remedy=f"GRANT {SEES_ROWS} TO {quote(user)}; -- or {_EXCLUDE}",
    )


def _redaction_restriction(policy: str, user: str) -> Restriction:
    return Restriction(
        message=f"redaction policy {policy} may mask values for {user}, and the masks would travel as data",
        remedy=f"GRANT {SEES_VALUES} TO {quote(user)}; -- or {_EXCLUDE}",
    )


def _archival_restriction() -> Restriction:
    return Restriction(
        message="it has ROW ARCHIVAL: rows that the application archives are hidden, and would look deleted",
        remedy=f"include its column {ARCHIVE_STATE} in [source.columns]: all rows travel, with it; or {_EXCLUDE}",
        is_archival=True,
    )


def redaction_findings(found: Visibility, user: str) -> Iterator[Finding]:
    """Yield the restrictions that this user cannot check."""
    if not found.knows_redactions:
        remedy = f"GRANT {SEES_VALUES} TO {quote(user)};"
        yield Finding(
            where="privileges",
            message=f"whether Data Redaction masks values for {user} cannot be seen",
            remedy=f"{remedy} -- or GRANT SELECT ON SYS.REDACTION_POLICIES TO {quote(user)};",
        )
