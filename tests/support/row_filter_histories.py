"""Random histories of a table and of the broker sets that mirror some of its rows, against what SQLite's WHERE finds.

A source, a tandem set below it, an access set below that, and a target below each. Batches are cut down, rows of the
full data are chosen and folded, and filters are fitted by the product's own code; the sets around them are a model:
rows, a queue, a cut. Columns are dropped and added again, sets are filled again, predicates change, targets start over.
"""

from __future__ import annotations

import random
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cache
from unittest.mock import patch

from tests.support.predicate_histories import IDS, KEYS, ROWS, SCHEMA, Row, random_text, where
from venus.broker.machine import envelope, folding
from venus.broker.mirrors.place import later_cut
from venus.broker.queue import cutting
from venus.broker.queue.only import Part
from venus.broker.snapshot.choosing import choosing, refused_tables
from venus.codec import schema as schemas_codec
from venus.codec.columns import Value, from_columns
from venus.codec.headed import pack
from venus.codec.layout import Layout
from venus.codec.packed import Packed
from venus.codec.stored import TOMBSTONE, StoredRows
from venus.model import ChangeKind, TableSchema
from venus.network import row_filters
from venus.network.row_filters import Fitted, RowFilter
from venus.wire import change_pb2

#: The table, then without a column that predicates name, then with one of that name again.
_REGION = SCHEMA.columns[1]
VERSIONS = {
    1: SCHEMA,
    2: replace(SCHEMA, version=2, columns=(SCHEMA.columns[0], *SCHEMA.columns[2:])),
    3: replace(SCHEMA, version=3, columns=(*SCHEMA.columns[:1], *SCHEMA.columns[2:], replace(_REGION, number=9))),
}
#: The mechanisms that can be taken out, to see that the histories notice.
FAULTS = (
    "sent whole", "left out instead of deleted", "the full data whole", "what does not fit goes on",
    "another column of the name goes on", "no later cut", "still called insertions",
)  # fmt: skip


def _encoded(schema: TableSchema) -> dict[Row, bytes]:
    values: dict[str, list[Value]] = {
        "id": ["0"] * len(ROWS), "region": [r for r, _, _ in ROWS],
        "amount": [None if a is None else f"{a}.00" for _, a, _ in ROWS], "day": [d for _, _, d in ROWS],
    }  # fmt: skip
    _, rows = from_columns([values[c.name] for c in schema.columns], Layout.of(schema))
    return dict(zip(ROWS, rows.split(), strict=True))


_BYTES = {version: _encoded(schema) for version, schema in VERSIONS.items()}
_ROW_OF = {version: {found: row for row, found in rows.items()} for version, rows in _BYTES.items()}
_WIRE = {version: schemas_codec.to_wire(schema) for version, schema in VERSIONS.items()}


def seen(row: Row, version: int) -> Row:
    """Return a row as a version of the table has it, if it was written in an older one."""
    return row if version == 1 else (None, *row[1:])


@dataclass
class Node:
    """A set, or a target, which nobody reads from. `at` and `cut` count batches; offsets are not modelled."""

    upper: Node | None = None
    text: str = ""
    filters: tuple[RowFilter, ...] = ()
    rows: dict[bytes, bytes] = field(default_factory=dict)
    queue: dict[int, bytes] = field(default_factory=dict)
    cut: int = 0
    at: int = 0
    versions: set[int] = field(default_factory=lambda: {1})
    has_consumers: bool = False
    checked: tuple[int, int] = (0, 0)
    #: What SQLite finds of what the set above should have, by how far it was; empty = never filled.
    wanted: dict[int, dict[int, Row]] = field(default_factory=dict)

    def take(self, body: bytes) -> None:
        """Fold a batch into the rows."""
        message = envelope.parse(body)
        envelope.open_mirrored(body)
        self.versions |= {schema.version for schema in message.schemas}
        for section in envelope.sections(message):
            if section.kind is ChangeKind.TRUNCATE:
                self.rows.clear()
                continue
            for key, value in zip(section.record_ids.split(), folding.encode(section), strict=True):
                if value[12] & TOMBSTONE:
                    self.rows.pop(key, None)
                else:
                    self.rows[key] = value
        self.at += 1
        self.queue[self.at] = body


@dataclass
class History:
    """One source and what is below it."""

    rng: random.Random
    fault: str = ""
    version: int = 1
    states: list[dict[int, Row]] = field(default_factory=lambda: [{}])
    versions_at: list[int] = field(default_factory=lambda: [1])
    sequence: int = 1
    home: Node = field(default_factory=Node)
    fills: int = 0
    leaves: int = 0
    frozen: int = 0

    def __post_init__(self) -> None:
        self.home.wanted = {0: {}}
        tandem = Node(self.home, random_text(self.rng), has_consumers=True)
        access = Node(tandem, random_text(self.rng) if self.rng.random() < 0.7 else "", has_consumers=True)
        self.sets = [tandem, access]
        self.nodes = [tandem, access, Node(tandem), Node(access)]

    def run(self, steps: int) -> None:
        """Take random steps and look after each; raises AssertionError."""
        for _ in range(steps):
            self.rng.choice((self.write, self.write, self.write, self.follow, self.follow, self.follow, self.change,
                             self.alter, self.fill_again, self.level))()  # fmt: skip
            self.check()
        self.write()
        for _ in range(2 * len(self.nodes)):
            for node in self.nodes:
                self._follow(node, len(self.states))
                self.check()
        assert all(node.at == self.home.at for node in self.nodes)

    # -- the source ------------------------------------------------------------------------------------------------

    def write(self) -> None:
        """Commit a batch: a TRUNCATE, or some changes."""
        rng, state = self.rng, dict(self.states[-1])
        truncates = rng.random() < 0.05
        changes: list[tuple[int, Row | None]] = []
        if truncates:
            state.clear()
        for _ in range(rng.randint(1, 4)):
            row = None if rng.random() < 0.2 else rng.choice(ROWS)
            if row is not None and self.version == 2:
                row = seen(row, 2)
            key = rng.choice(KEYS)
            changes.append((key, row))
            state.pop(key, None) if row is None else state.update({key: row})
        self._commit(truncates, changes, state)

    def alter(self) -> None:
        """Drop the column, or add one of its name again; its values are gone."""
        if self.version < 3 and self.rng.random() < 0.3:
            self.version = self.rng.randint(self.version + 1, 3)
            state = {key: seen(row, self.version) for key, row in self.states[-1].items()}
            self._commit(False, [], state)

    def _commit(self, truncates: bool, changes: list[tuple[int, Row | None]], state: dict[int, Row]) -> None:
        fresh = set(self.states[-1]).isdisjoint(key for key, _ in changes) and all(row for _, row in changes)
        number = len(self.states)
        body = change_pb2.BatchBody(
            batch_no=number, first_sequence=self.sequence, count=truncates + len(changes), cut=number, cut_end=True,
            schemas=[_WIRE[self.version]] if self.version not in self.home.versions or number == 1 else [],
        )  # fmt: skip
        if truncates:
            body.tables.add(table_id=1, schema_version=self.version, kind=change_pb2.TableChanges.TRUNCATE, count=1)
        if changes:
            ids = Packed.of([IDS[key] for key, _ in changes])
            rows = Packed.of([b"" if row is None else _BYTES[self.version][row] for _, row in changes])
            body.tables.add(
                table_id=1, schema_version=self.version, count=len(changes), record_ids=ids.data,
                record_id_sizes=ids.wire_sizes(), rows=rows.data, row_sizes=rows.wire_sizes(),
                is_deleted=bytes(row is None for _, row in changes), inserts_only=fresh and not truncates,
            )  # fmt: skip
        self.sequence += body.count
        self.states.append(state)
        self.versions_at.append(self.version)
        self.home.wanted[number] = state
        self.home.take(body.SerializeToString())

    # -- below -----------------------------------------------------------------------------------------------------

    def change(self) -> None:
        """Start a set again with another predicate: it fills again."""
        node = self.rng.choice(self.sets)
        if self.rng.random() < 0.5:
            node.text = "" if self.rng.random() < 0.15 else random_text(self.rng)

    def fill_again(self) -> None:
        """Fill a set again with the predicate that it has."""
        node = self.rng.choice(self.nodes)
        if self.rng.random() < 0.2 and node.wanted:
            self._fill(node)

    def level(self) -> None:
        """Let everybody have everything: who is at the very end of a queue is not below any cut of it."""
        for node in self.nodes:
            self._follow(node, len(self.states))

    def follow(self) -> None:
        """Let somebody take some batches."""
        self._follow(self.rng.choice(self.nodes), self.rng.randint(1, 4))

    def _follow(self, node: Node, batches: int) -> None:
        upper = node.upper
        assert upper is not None
        if not node.wanted or node.at < upper.cut or self._asked(node) != self._says(node.filters):
            self._fill(node)
            return
        for number in range(node.at + 1, min(node.at + batches, upper.at) + 1):
            whole = upper.queue[number]
            versions = {(1, v): VERSIONS[v] for v in upper.versions}
            with self._broken():
                fitted = row_filters.fitted(node.filters, versions.values())
                body, _ = cutting.cut_down(whole, Part(frozenset(), node.filters, fitted, versions))
            if self.fault == "left out instead of deleted":
                body = _without_deletions(whole, body)
            if self.fault == "still called insertions":
                body = _hinted(whole, body)
            _check_hint(body, node.rows)
            before = len(node.rows)
            node.take(body)
            self.leaves += before > len(node.rows)
            node.wanted[number] = self._wanted(node, number)

    def _says(self, filters: tuple[RowFilter, ...]) -> list[tuple[str, str]]:
        return [one.says for one in filters]

    def _asked(self, node: Node) -> list[tuple[str, str]]:
        return self._says(row_filters.configured({"t": node.text} if node.text else {}))

    def _fill(self, node: Node) -> None:
        """Take the full data of the set above, if there is one and its cut will do."""
        upper = node.upper
        assert upper is not None
        asked = row_filters.configured({"t": node.text} if node.text else {})
        changed = "changed" if node.wanted and self._says(asked) != self._says(node.filters) else ""
        groups = ["main/eu"] if node.has_consumers and self.fault != "no later cut" else []
        if not upper.wanted or later_cut(changed, (1, upper.at), (1, node.at), groups):
            return
        known = [_WIRE[version] for version in sorted(upper.versions)]
        node.filters = row_filters.at_cut(asked, [VERSIONS[version] for version in upper.versions])
        with self._broken():
            choose = choosing(node.filters, 1, known) if self.fault != "the full data whole" else None
            values = [upper.rows[key] for key in sorted(upper.rows)]
            stored = StoredRows(pack(values))
            if 1 in refused_tables(node.filters, known):
                stored = StoredRows(pack([]))
            elif choose is not None and len(stored):
                stored = choose(stored)
        node.rows = {stored.record_id(n): value for n, value in enumerate(stored.packed.split())}
        node.queue, node.cut, node.at, node.versions = {}, upper.at, upper.at, set(upper.versions)
        node.wanted = {node.at: self._wanted(node, node.at)}
        self.fills += 1

    def _broken(self) -> AbstractContextManager[object]:
        match self.fault:
            case "sent whole":
                return patch.object(cutting, "as_keys", lambda *_: None)
            case "what does not fit goes on":
                return patch.object(Fitted, "takes", lambda *_: True)
            case "another column of the name goes on":
                return patch.object(row_filters, "differing_column", lambda *_: "")
        return nullcontext()

    # -- what must be ----------------------------------------------------------------------------------------------

    def _wanted(self, node: Node, number: int) -> dict[int, Row]:
        """Return what a set should have after a batch, from what the set above should have."""
        assert node.upper is not None
        if "region" in node.text and node.filters and not self._fits(node, number):
            self.frozen += 1
            before = node.wanted[number - 1] if number > node.cut else {}
            return {key: seen(row, self.versions_at[number]) for key, row in before.items()}
        text = node.filters[0].predicate if node.filters else ""
        return {key: row for key, row in node.upper.wanted[number].items() if row in where(text)}

    def _fits(self, node: Node, number: int) -> bool:
        at_cut = self.versions_at[node.cut]
        return at_cut != 2 and self.versions_at[number] == at_cut

    def check(self) -> None:
        """Compare every set and target that has moved with what it should have."""
        for node in self.nodes:
            if node.wanted and node.checked != (self.fills, node.at):
                node.checked = self.fills, node.at
                version = self.versions_at[node.at]
                found = {IDS.index(key): _decoded(value, version) for key, value in node.rows.items()}
                wanted = node.wanted[node.at]
                assert found == wanted, (node.text, node.at, found, wanted)


@cache
def _decoded(value: bytes, now: int) -> Row:
    """Return a stored row as the newest version of its table shows it."""
    stored = StoredRows(pack([value]))
    version = int(stored.heads["version"][0])
    row = _ROW_OF[version][stored.rows.data]
    return row if version == now else seen(row, now)


def _without_deletions(whole: bytes, body: bytes) -> bytes:
    """Make what a predicate turned into deletions vanish."""
    before, after = change_pb2.BatchBody.FromString(whole), change_pb2.BatchBody.FromString(body)
    for one, other in zip(before.tables, after.tables, strict=True):
        if one.is_deleted != other.is_deleted and one.kind == change_pb2.TableChanges.CHANGES and other.kind == 0:
            other.Clear()
            other.kind, other.count = change_pb2.TableChanges.LEFT_OUT, one.count
    return after.SerializeToString()


def _hinted(whole: bytes, body: bytes) -> bytes:
    before, after = change_pb2.BatchBody.FromString(whole), change_pb2.BatchBody.FromString(body)
    for one, other in zip(before.tables, after.tables, strict=True):
        other.inserts_only = one.inserts_only
    return after.SerializeToString()


def _check_hint(body: bytes, rows: dict[bytes, bytes]) -> None:
    """Whoever reads that every row is new inserts without looking."""
    for table in change_pb2.BatchBody.FromString(body).tables:
        if table.inserts_only:
            assert 1 not in table.is_deleted, "a deletion is called an insertion"
            ids = Packed.from_wire(table.record_ids, table.record_id_sizes).split()
            assert rows.keys().isdisjoint(ids), "what is here is called new"


def run_histories(numbers: range, steps: int, fault: str = "") -> tuple[int, int, int]:
    """Run histories by their numbers; return how often rows left, sets were filled, and tables stood still."""
    totals = [0, 0, 0]
    for number in numbers:
        history = History(random.Random(number), fault)
        try:
            history.run(steps)
        except (AssertionError, KeyError, ValueError) as error:
            raise AssertionError(f"history {number}: {error}") from error
        for at, found in enumerate((history.leaves, history.fills, history.frozen)):
            totals[at] += found
    return totals[0], totals[1], totals[2]
