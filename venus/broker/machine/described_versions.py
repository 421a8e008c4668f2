"""The table versions whose schemas a log has, up to its end; rows of any other version cannot be read.

A rollback also removes every later half message, so a half message may use versions that an earlier undecided one
describes. `Business.schemas` has the committed versions. The versions of undecided half messages are kept together
with the proposed state, and collected again once that state is truncated.
"""

from __future__ import annotations

from venus.broker.machine import records
from venus.broker.machine.business import Business, DescribedVersions
from venus.broker.machine.envelope import Envelope, Version
from venus.broker.machine.half_messages import check_limit
from venus.broker.machine.steps import EntryStep
from venus.broker.store import keys
from venus.broker.store.rocks import Store
from venus.wire import broker_pb2, change_pb2


def find_missing_versions(business: Business, content: Envelope) -> set[Version]:
    """Return the versions in an arriving half message that neither it nor any earlier batch describes."""
    if content.versions <= business.schemas:
        return set()
    unknown = set(content.versions).difference(business.schemas, content.described_versions)
    if unknown and business.described.state is not business.proposed:
        business.described = DescribedVersions(business.proposed, undecided_versions(business))
    return unknown - business.described.versions if unknown else set()


def check_versions(business: Business, content: Envelope, where: str) -> None:
    """Raise ProtocolError for a schema version that jumps too far ahead of the known ones."""
    for schema in content.schemas:
        if (schema.table_id, schema.version) not in business.schemas:
            known = max((v for table_id, v in business.schemas if table_id == schema.table_id), default=0)
            check_limit(f"{where}: table {schema.table_id}", "version", schema.version, known)


def newest_versions(business: Business) -> list[broker_pb2.KnownTable]:
    """Return every table that was ever described in this business, with its newest version and Sequence."""
    versions: dict[int, int] = {}
    for table_id, version in business.schemas:
        versions[table_id] = max(version, versions.get(table_id, 0))
    changed = {table_id: figures.last_sequence for table_id, figures in business.tables.items()}
    return [
        broker_pb2.KnownTable(table_id=t, version=v, last_sequence=changed.get(t, 0))
        for t, v in sorted(versions.items())
    ]


def find_contradiction(store: Store, business: Business, content: Envelope) -> change_pb2.TableSchema | None:
    """Return a known schema that contradicts one in `content`: another table, or other columns; None if none does."""
    for schema in content.schemas:
        found = store.get(keys.STATE, keys.schema_key(business.number, schema.table_id, schema.version))
        if found is None:
            if known := _find_other_name(store, business, schema):
                return known
            continue
        known = change_pb2.TableSchema.FromString(records.decode_schema(found)[1])
        if _row_layout(known) != _row_layout(schema):
            return known
    return None


def _find_other_name(store: Store, business: Business, schema: change_pb2.TableSchema) -> change_pb2.TableSchema | None:
    """Return the known table if `schema` gives its id another name: within one history no table is renamed.

    If a database of another kind continues the history, it may spell the names differently.
    """
    known = business.tables.get(schema.table_id)
    if known is None or not known.name or (known.namespace, known.name) == (schema.namespace, schema.name):
        return None
    before = _newest_dialect(store, business, schema.table_id)
    if before and schema.source_dialect and before != schema.source_dialect:
        return None
    return change_pb2.TableSchema(
        table_id=schema.table_id, version=schema.version, namespace=known.namespace, name=known.name
    )


def _newest_dialect(store: Store, business: Business, table_id: int) -> str:
    """Return the kind of database that described the newest stored version of a table; empty = it is not known."""
    versions = [version for number, version in business.schemas if number == table_id]
    for version in sorted(versions, reverse=True):
        found = store.get(keys.STATE, keys.schema_key(business.number, table_id, version))
        if found is not None:
            return change_pb2.TableSchema.FromString(records.decode_schema(found)[1]).source_dialect
    return ""


def _row_layout(schema: change_pb2.TableSchema) -> tuple[object, ...]:
    """Return what identifies a table (its names) and decides how its rows are read (key and columns)."""
    columns = tuple((c.number, c.name, c.type.kind) for c in schema.columns)
    return schema.namespace, schema.name, tuple(schema.key), columns


def record_proposed_versions(business: Business, taken: EntryStep, content: Envelope | None) -> None:
    """Add the versions that a proposed entry describes to the known ones, if these belong to the state before it."""
    known = business.described
    if known.state is taken.before and not taken.removed:
        known.state = taken.after
        if content is not None and content.schemas:
            known.versions |= content.described_versions


def undecided_versions(business: Business) -> set[Version]:
    """Collect the versions described by half messages that are on disk or proposed, and not rolled back."""
    removed = {found.index for pending in business.pending for found in pending.step.removed}
    stored = [business.envelopes[h.batch_no] for h in business.applying.halves if h.index not in removed]
    proposed = [p.content for p in business.pending if p.content is not None and p.index not in removed]
    return {version for content in (*stored, *proposed) for version in content.described_versions}
