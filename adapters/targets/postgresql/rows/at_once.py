"""Small groups of cuts at a PostgreSQL target in one round trip (VENUS 3.4).

One string contains BEGIN, the new applied offset, keyed statements and COMMIT. This path serves a trickle of changes,
where a round trip causes most of the latency. Everything unusual (a marker, a new schema version, a parked key, a
refusal) is left to `ApplyTransaction`, and this path then changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from venus.adapters.targets.postgresql.rowsql import upsert_text
from venus.adapters.targets.postgresql.session import TargetSession
from venus.adapters.targets.relational.catalogue import TargetCatalogue
from venus.adapters.targets.relational.database import RelationalDatabase
from venus.adapters.targets.relational.parking import ChangeCounts
from venus.adapters.targets.relational.session import Superseded
from venus.adapters.targets.relational.writer import advance_text
from venus.adapters.under.cut_assembler import HELD, ROWS, CutPiece, DeliveredCut, SectionWalk
from venus.adapters.under.row_changes import RowChanges, join_changes, net_changes, project_changes, to_row_changes
from venus.codec.batch import TableChanges
from venus.errors import TargetError
from venus.predicates.syntax import PredicateRefused

#: Limits of one string: changes, as a multiple of `keyed_rows_max`, and their bytes. With many tables in a transaction,
#: separate statements cost three times as much.
ROWS_TIMES_KEYED = 40
BYTES_MAX = 4 << 20


def is_small(target: RelationalDatabase, cuts: Sequence[DeliveredCut]) -> bool:
    """Return whether cuts are small enough for one string; the limit per table is checked later."""
    rows, keyed_max = sum(cut.rows for cut in cuts), target.settings.apply.keyed_rows_max
    if rows > ROWS_TIMES_KEYED * keyed_max:
        return False
    return sum(s.nbytes for cut in cuts for piece in cut.pieces for s in piece.batch.sections) <= BYTES_MAX


def apply_at_once(
    target: RelationalDatabase,
    session: TargetSession,
    catalogue: TargetCatalogue,
    pieces: Sequence[CutPiece],
    *,
    defer_constraints: bool,
) -> bool:
    """Apply whole cuts by one string of SQL; return False if that is not possible and nothing was changed."""
    shot = _SingleString(target, catalogue)
    if not all(shot.try_add(piece) for piece in pieces):
        return False
    try:
        text = shot.transaction_text(session, pieces[-1], defer_constraints=defer_constraints)
        session.run(text)
    except Superseded:
        session.rollback()
        raise
    except TargetError:
        session.rollback()
        session.forget_prepared()  # a column may have another type by now
        return False
    return True


class _SingleString:
    """Builder of a whole transaction in one string, from keyed statements for small changes."""

    def __init__(self, target: RelationalDatabase, catalogue: TargetCatalogue) -> None:
        self._target = target
        self._catalogue = catalogue
        self._rows_max = target.settings.apply.keyed_rows_max
        self._parts: dict[int, list[RowChanges]] = {}
        self._versions: dict[int, int] = {}
        self._walk = SectionWalk(catalogue.schema, catalogue.find_version)
        self._counts = ChangeCounts(catalogue)

    def try_add(self, piece: CutPiece) -> bool:
        """Add the changes of an increment; return False if only the ordinary path can apply it."""
        if piece.rows is not None:
            return False
        if any((s.table_id, s.version) not in self._catalogue.schemas for s in piece.batch.schemas):
            return False
        for role, section, offset in self._walk.walk(piece):
            table_id = section.table_id
            if role is HELD and table_id in self._catalogue.tables:
                self._counts.count_held(section, offset)
            elif role is not ROWS or not self._try_add_rows(table_id, section, offset):
                return False
        return True

    def _try_add_rows(self, table_id: int, section: TableChanges, offset: int) -> bool:
        """Add the changes of one table; return False if only the ordinary path can apply them."""
        catalogue = self._catalogue
        if table_id in catalogue.parked or catalogue.is_recording(table_id):
            return False
        parts = self._parts.setdefault(table_id, [])
        if sum(map(len, parts)) + section.count > self._rows_max:
            return False  # checked before rows are masked, because the other path masks them again
        try:
            predicate = catalogue.predicate(table_id, section.schema_version)
        except PredicateRefused:
            return False
        schema, maskers = catalogue.schema(table_id, section.schema_version), self._target.columns.maskers
        parts.append(project_changes(to_row_changes(section, offset), predicate, schema, maskers))
        self._versions[table_id] = section.schema_version
        return True

    def transaction_text(self, session: TargetSession, last: CutPiece, *, defer_constraints: bool) -> str:
        """Return the transaction as text."""
        target, catalogue = self._target, self._catalogue
        texts = ["BEGIN"]
        if defer_constraints:
            texts.append("SET CONSTRAINTS ALL DEFERRED")
        texts.append(advance_text(target, session, catalogue, last, self._walk))
        for table_id, parts in self._parts.items():
            version = self._versions[table_id]
            sql, layout = catalogue.sql(target, table_id, version), catalogue.layout(table_id, version)
            rows = join_changes(parts)
            if not len(rows):
                continue
            texts.append(upsert_text(session, sql, layout, net_changes(rows)))
            self._counts.for_table(table_id).applied += len(rows)
        return "; ".join([*texts, *self._counts.statements(target, session), "COMMIT"])
