"""A predicate that was changed in the configuration: the target takes it over from the broker (SREM 2).

From the transaction on that records the new predicate, changes are judged by it; a resync of the table from the full
data, judged by it as well, brings the rows that are in now and removes those that are out. Both are durable, so a
process that is killed in between goes on, and the source is not asked for anything.
"""

from __future__ import annotations

import logging

from venus.adapters.targets.postgresql.catalogue import Catalogue
from venus.adapters.targets.postgresql.database import LOADING, RESYNC, PostgresTarget, TableState
from venus.adapters.targets.postgresql.session import Session
from venus.adapters.targets.predicates import Assigned, assigned
from venus.adapters.targets.views import rows_where
from venus.errors import ConfigError
from venus.model import TableSchema
from venus.predicates.ranges import same
from venus.rpc.admin import Admin

logger = logging.getLogger(__name__)


def take_over(target: PostgresTarget, session: Session, catalogue: Catalogue) -> bool:
    """Begin what the configuration asks for and the target does not have; return whether to read the catalogue again.

    Raises ConfigError for a predicate that does not fit its table, unless it is in force: then its table halts.
    """
    wanted = _wanted(target, catalogue)
    states = [s for s in catalogue.tables.values() if s.state != LOADING]
    changed = [s for s in states if not _in_force(catalogue, s, wanted)]
    for state in changed:
        if state.table_id in wanted:
            wanted[state.table_id].check()
    begun = [s for s in states if s.predicate_before is not None and s not in changed]
    begun = [s for s in begun if RESYNC not in catalogue.sweeps.get(s.table_id, {})]  # given up
    if changed or begun:
        _record(target, session, catalogue, changed + begun, wanted)
    return bool(changed or begun)


def _wanted(target: PostgresTarget, catalogue: Catalogue) -> dict[int, Assigned]:
    """Return the configuration's predicates, each with the newest version of its table that the target has met."""
    where, schemas = target.config.where, list(_newest(catalogue).values())
    try:
        return assigned(where, schemas, target.name)
    except ConfigError:
        return assigned(where, schemas, target.name, elsewhere=_at_broker(target))


def _at_broker(target: PostgresTarget) -> list[str]:
    """Return the tables that the broker knows: one of them may be on its way to the target."""
    with Admin(target.broker) as admin:
        found = admin.status(target.business).businesses
    return [f"{t.namespace}.{t.name}" for business in found for t in business.tables]


def _newest(catalogue: Catalogue) -> dict[int, TableSchema]:
    found: dict[int, TableSchema] = {}
    for (table_id, version), schema in catalogue.schemas.items():
        if table_id in catalogue.tables and (table_id not in found or found[table_id].version < version):
            found[table_id] = schema
    return found


def _in_force(catalogue: Catalogue, state: TableState, wanted: dict[int, Assigned]) -> bool:
    text = wanted[state.table_id].text if state.table_id in wanted else ""
    versions = [schema for (table_id, _), schema in catalogue.schemas.items() if table_id == state.table_id]
    return same(state.predicate, text, versions)


def _record(
    target: PostgresTarget,
    session: Session,
    catalogue: Catalogue,
    states: list[TableState],
    wanted: dict[int, Assigned],
) -> None:
    """Put the predicates in force and ask for the resyncs; nothing if an operator has come in between."""
    found = session.row(f"BEGIN; {target.own_text(session, 'hold_position')}")
    if found == (catalogue.position.offset, catalogue.position.control):
        for state in states:
            text = wanted[state.table_id].text if state.table_id in wanted else ""
            target.own(session, "set_predicate", table_id=state.table_id, predicate=text, before=state.predicate)
            target.own(session, "put_sweep", table_id=state.table_id, purpose=RESYNC, offset=-1)
            logger.info(
                "target %s: %s gets %s, until now %s",
                target.name, state.source_name, rows_where(text), rows_where(state.predicate),
            )  # fmt: skip
    session.run("COMMIT")
