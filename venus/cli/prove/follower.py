"""A stand-in for the upper adapter, which reads the cuts of a dialect and keeps their rows in dicts.

It has the duties that a dialect's contract gives to callers (epoch, dense Sequences and batch numbers, sweep markers,
fills) and checks the contract's guarantees for every cut, so that each test that uses it also tests those guarantees.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace

from venus.adapters.dialects.contract import Cut, FillState, SchemaChanged, Source, TableHalted
from venus.codec.batch import TableChanges, marker
from venus.codec.columns import Value, keys_to_columns, to_columns
from venus.codec.row_bytes import Layout
from venus.model import BatchNo, BatchRecord, ChangeKind, Epoch, Sequence, TableSchema

Key = tuple[Value, ...]
Row = dict[str, Value]

ROWS_MAX = 5000
BYTES_MAX = 1 << 20


@dataclass(slots=True)
class FollowedCut:
    """Content of one cut: sections of changes, batches, and the state of fills after the cut."""

    sections: list[TableChanges] = field(default_factory=list)
    batches: list[BatchRecord] = field(default_factory=list)
    fills: list[FillState] = field(default_factory=list)

    @property
    def count(self) -> int:
        """The number of changes in the cut."""
        return sum(s.count for s in self.sections)


class Follower:
    """Reader of one source in one epoch, which keeps the rows as a target would have them."""

    def __init__(self, source: Source) -> None:
        self.source = source
        before = source.registry.read_state()
        self.epoch = Epoch(before.epoch + 1)
        state = source.registry.raise_epoch(self.epoch)
        self.next_batch = int(state.last_batch) + 1
        self.next_sequence = int(state.next_sequence)
        self.schemas: dict[tuple[int, int], TableSchema] = {}
        self.tables: dict[int, dict[Key, tuple[int, Row]]] = {}
        self.read_registry()

    def read_registry(self) -> None:
        """Read the registered versions of all tables."""
        for table in self.source.registry.read_registered_tables():
            self.schemas.setdefault((table.schema.table_id, table.schema.version), table.schema)
            self.tables.setdefault(table.schema.table_id, {})

    def table_id(self, name: str) -> int:
        return next(s.table_id for s in self.schemas.values() if s.name == name)

    def rows(self, name: str) -> dict[Key, Row]:
        """Return the rows that a target would have."""
        return {key: row for key, (_, row) in sorted(self.tables[self.table_id(name)].items(), key=repr)}

    # -- cuts ----------------------------------------------------------------------------------------------------

    def open(self, fills: Seq[FillState]) -> Cut | None:
        """Open a cut; first follow a schema change, as the upper adapter does."""
        for _ in range(5):
            try:
                return self.source.capture.open_cut(fills)
            except SchemaChanged:
                self.source.capture.refresh_schemas()
                self.read_registry()
        raise AssertionError("the schemas do not settle")

    def cut(
        self, *, rows_max: int = ROWS_MAX, bytes_max: int = BYTES_MAX, fill_rows: int = ROWS_MAX, fill: bool = True
    ) -> FollowedCut | None:
        """Take one cut and commit it; return None if there was nothing to capture."""
        for _ in range(len(self.tables) + 1):
            fills = self.due()[:1] if fill else []
            cut = self.open(fills)
            if cut is None:
                return None
            try:
                seen = self.read(cut, fills, rows_max=rows_max, bytes_max=bytes_max, fill_rows=fill_rows)
            except TableHalted as why:  # as the upper adapter does
                cut.rollback()
                self.source.registry.halt(self.epoch, why.table.table_id, why.why)
                continue
            cut.commit(self.epoch, seen.batches, seen.fills, BatchNo(0))
            self.take(seen)
            return seen
        raise AssertionError("the same table has halted twice")

    def due(self) -> list[FillState]:
        """Return the unfinished fills of active tables."""
        return [
            t.fill for t in self.source.registry.read_registered_tables() if not t.fill.done and t.state == "ACTIVE"
        ]

    def drain(self, **limits: int) -> list[FollowedCut]:
        """Take cuts until there is nothing more to capture; return the cuts."""
        cuts = []
        while (seen := self.cut(**limits)) is not None:  # type: ignore[arg-type]
            cuts.append(seen)
            assert len(cuts) < 10_000, "the cuts do not end"
        return cuts

    def read(self, cut: Cut, fills: Seq[FillState], *, rows_max: int, bytes_max: int, fill_rows: int) -> FollowedCut:
        """Read an open cut into batches of one section each."""
        seen = FollowedCut()
        sequence, batch_no = self.next_sequence, self.next_batch
        for section in self._read_all(cut, fills, seen, rows_max=rows_max, bytes_max=bytes_max, fill_rows=fill_rows):
            seen.sections.append(section)
            seen.batches.append(self._record(batch_no, sequence, section.count))
            sequence, batch_no = sequence + section.count, batch_no + 1
        if not seen.batches:
            seen.batches.append(self._record(batch_no, sequence, 0))
        return seen

    def _record(self, batch_no: int, sequence: int, count: int) -> BatchRecord:
        """Build the record of a batch."""
        return BatchRecord(
            batch_no=BatchNo(batch_no),
            epoch=self.epoch,
            first_sequence=Sequence(sequence),
            last_sequence=Sequence(sequence + count - 1),
            digest=0xFFFF_FFFF_0000_0000 + batch_no,
        )

    def _read_all(
        self, cut: Cut, fills: Seq[FillState], seen: FollowedCut, *, rows_max: int, bytes_max: int, fill_rows: int
    ) -> Iterator[TableChanges]:
        """Read a cut; yield its sections of changes, which are checked, and then those of its fills."""
        keys: set[tuple[int, bytes]] = set()
        changed: set[int] = set()
        for section in cut.read_sections(rows_max=rows_max, bytes_max=bytes_max):
            self._check_section(section, keys, changed, rows_max=rows_max, bytes_max=bytes_max)
            yield section
        for fill in fills:
            yield from self._read_fill_chunk(cut, fill, seen, rows_max=fill_rows, bytes_max=bytes_max)

    def _check_section(
        self, section: TableChanges, keys: set[tuple[int, bytes]], changed: set[int], *, rows_max: int, bytes_max: int
    ) -> None:
        """Check that a section fulfils the contract's guarantees."""
        assert section.count <= rows_max
        assert section.nbytes <= bytes_max or section.count == 1
        assert (section.table_id, section.schema_version) in self.schemas
        if section.kind is ChangeKind.TRUNCATE:
            assert section.table_id not in changed, "a TRUNCATE marker comes before its table's changes"
            return
        assert section.count > 0
        assert len(section.rows) == len(section.is_deleted) == section.count
        changed.add(section.table_id)
        for record_id in section.record_ids.split():
            assert (section.table_id, record_id) not in keys, "each key appears once per cut"
            keys.add((section.table_id, record_id))

    def _read_fill_chunk(
        self, cut: Cut, fill: FillState, seen: FollowedCut, *, rows_max: int, bytes_max: int
    ) -> Iterator[TableChanges]:
        """Read the next chunk of a fill; yield its sections, and the markers at both ends of a sweep."""
        version = max(v for t, v in self.schemas if t == fill.table_id)
        if fill.sweep_from and not fill.cursor:
            at = self.next_sequence + seen.count
            fill = replace(fill, sweep_from=Sequence(at))
            yield marker(fill.table_id, version, ChangeKind.SWEEP_BEGIN, at)
        sections, after = cut.read_fill_chunk(fill, rows_max=rows_max, bytes_max=bytes_max)
        assert sum(s.count for s in sections) <= rows_max
        assert all(s.kind is ChangeKind.CHANGES and not s.is_deleted.any() for s in sections)
        assert all(s.nbytes <= bytes_max or s.count == 1 for s in sections)
        yield from sections
        if after.done and after.sweep_from:
            yield marker(fill.table_id, version, ChangeKind.SWEEP_END, after.sweep_from)
        seen.fills.append(after)

    # -- the target ----------------------------------------------------------------------------------------------

    def take(self, seen: FollowedCut) -> None:
        """Apply a committed cut by the paper's rules for isDeleted, as docs/explanation/departures.md corrects them."""
        for section in seen.sections:
            self._apply_section(section)
            self.next_sequence += section.count
        self.next_batch = int(seen.batches[-1].batch_no) + 1
        assert self.next_sequence == seen.batches[-1].last_sequence + 1

    def _apply_section(self, section: TableChanges) -> None:
        """Apply a section of a committed cut to the rows that are kept."""
        table = self.tables[section.table_id]
        if section.kind is ChangeKind.TRUNCATE:
            table.clear()
        elif section.kind is ChangeKind.SWEEP_END:
            for key in [k for k, (sequence, _) in table.items() if sequence < section.sweep_before]:
                del table[key]
        elif section.kind is ChangeKind.CHANGES:
            self._apply_changes(table, section)

    def _apply_changes(self, table: dict[Key, tuple[int, Row]], section: TableChanges) -> None:
        """Apply the deletions, and then the new rows, of a section to the rows of its table."""
        layout = Layout.of(self.schemas[section.table_id, section.schema_version])
        names = [c.name for c in layout.columns]
        keys = list(zip(*keys_to_columns(section.record_ids, layout), strict=True))
        for key, deleted in zip(keys, section.is_deleted.tolist(), strict=True):
            if deleted:
                table.pop(key, None)
        values = list(zip(*to_columns(section.record_ids, section.rows, layout), strict=True))
        for i, (key, row, deleted) in enumerate(zip(keys, values, section.is_deleted.tolist(), strict=True)):
            if not deleted:
                table[key] = (self.next_sequence + i, dict(zip(names, row, strict=True)))
