"""Random histories of a table and of broker sets that mirror some of its rows, compared with SQLite's own WHERE.

A source, two tandem sets below it, an access set below one of them, and a target below each of these. The product's own
code filters batches, selects and folds rows of the full data, fits filters to table versions and distinguishes
positions; a set is a model: rows, a queue, a cut. Columns are dropped and added again, or renamed and renamed back.
Sets are filled again, also exactly at the offset of those below. Predicates change; consumers are forgotten, resume at
the other tandem set, or start over.
"""

from __future__ import annotations

import random
from collections import Counter
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from unittest.mock import patch

from tests.support.predicates.changing_table import (
    DROPPED,
    ENCODED_ROWS,
    RENAMED,
    VERSIONS,
    WIRE_SCHEMAS,
    decode_row,
    row_in_version,
)
from tests.support.predicates.predicate_histories import IDS, KEYS, ROWS, Row, random_text, where
from venus.broker.machine import envelope, folding
from venus.broker.mirrors.topology_position import explain_late_cut
from venus.broker.queue import reduced_batches
from venus.broker.queue.reduced_batches import WantedPart
from venus.broker.snapshot.reading import refused_tables, row_chooser
from venus.codec.filtering import OpenRows
from venus.codec.packed import PackedBytes, pack_items
from venus.codec.stored_rows import TOMBSTONE, StoredRows
from venus.model import ChangeKind
from venus.network import row_filters
from venus.network.row_filters import FittedFilter, Levels, RowFilter
from venus.wire import change_pb2

#: Mechanisms that a history can disable, to prove that the histories notice.
FAULTS = (
    "sent whole",
    "left out instead of deleted",
    "the full data whole",
    "what does not fit is still judged",
    "another column of that name is taken for it",
    "no later cut",
    "still called insertions",
    "positions say nothing",
    "a table that stood still is as before",
    "what sets above choose is left out",
)


@cache
def _identity(kind: str, levels: Levels, versions: tuple[int, ...], fault: str) -> dict[int, int]:
    """Return the identity of the rows at a position; `fault` is the disabled mechanism."""
    starts = min if fault == "a table that stood still is as before" else None
    with (
        patch.object(row_filters, "first_fitting_version", lambda _, found: starts(found)) if starts else nullcontext()
    ):
        tables = row_filters.partial_tables(levels, [VERSIONS[kind][version] for version in versions])
    return {table_id: one.digest for table_id, one in tables.items()}


COUNTED = ("leaves", "fills", "frozen", "refilled", "refused", "moved")


@dataclass(eq=False)
class Node:
    """A set, or a target, which no set reads from. `at` and `cut` count batches; offsets are not modelled."""

    upper: Node | None = None
    text: str = ""
    filters: tuple[RowFilter, ...] = ()
    rows: dict[bytes, bytes] = field(default_factory=dict)
    queue: dict[int, bytes] = field(default_factory=dict)
    cut: int = 0
    at: int = 0
    versions: set[int] = field(default_factory=lambda: {1})
    has_consumers: bool = False
    #: The set above from which this node read last; it may try to resume elsewhere.
    origin: Node | None = None
    levels: Levels = ()
    checked: tuple[int, int] = (0, 0)
    #: The rows that SQLite finds among those of the set above, by batch; empty = never filled.
    wanted: dict[int, dict[int, Row]] = field(default_factory=dict)

    def take(self, body: bytes) -> None:
        """Apply a batch to the rows."""
        message = envelope.parse_body(body)
        envelope.open_mirrored_body(body)
        self.versions |= {schema.version for schema in message.schemas}
        for section in envelope.build_sections(message):
            if section.kind is ChangeKind.TRUNCATE:
                self.rows.clear()
                continue
            for key, value in zip(section.record_ids.split(), folding.encode_values(section), strict=True):
                if value[12] & TOMBSTONE:
                    self.rows.pop(key, None)
                else:
                    self.rows[key] = value
        self.at += 1
        self.queue[self.at] = body


@dataclass
class History:
    """One source and the sets and targets below it."""

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
    #: How often a set was filled again because the set above has other rows, was refused elsewhere, and moved
    #: elsewhere.
    refilled: int = 0
    refused: int = 0
    moved: int = 0

    def __post_init__(self) -> None:
        self.kind = self.rng.choice((DROPPED, RENAMED))
        self.schemas = VERSIONS[self.kind]
        self.home.wanted = {0: {}}
        tandem = Node(self.home, random_text(self.rng), has_consumers=True)
        same = self.rng.random() < 0.5
        twin = Node(self.home, tandem.text if same else random_text(self.rng), has_consumers=True)
        access = Node(tandem, random_text(self.rng) if self.rng.random() < 0.7 else "", has_consumers=True)
        self.uppers = (tandem, twin)
        self.sets = [tandem, twin, access]
        self.nodes = [tandem, twin, access, Node(tandem), Node(access)]

    def run(self, steps: int) -> None:
        """Take random steps, and check the rows after each one. Raises AssertionError."""
        for _ in range(steps):
            rare = (self.change, self.alter, self.fill_again, self.read_all_queues, self.refill_at_the_cut, self.move)
            self.rng.choice((*[self.write] * 3, *[self.follow] * 3, *rare))()
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
                row = row_in_version(row, 2, self.kind)
            key = rng.choice(KEYS)
            changes.append((key, row))
            state.pop(key, None) if row is None else state.update({key: row})
        self._commit(truncates, changes, state)

    def alter(self) -> None:
        """Drop the column, or add a column of the same name again, which has lost the old values."""
        if self.version < 3 and self.rng.random() < 0.3:
            self._alter()

    def _alter(self) -> None:
        """Give the table a later version."""
        last = 3 if self.kind == DROPPED else self.version + 1
        self.version = self.rng.randint(self.version + 1, last)
        state = {key: row_in_version(row, self.version, self.kind) for key, row in self.states[-1].items()}
        self._commit(False, [], state)

    def _commit(self, truncates: bool, changes: list[tuple[int, Row | None]], state: dict[int, Row]) -> None:
        fresh = set(self.states[-1]).isdisjoint(key for key, _ in changes) and all(row for _, row in changes)
        number = len(self.states)
        body = change_pb2.BatchBody(
            batch_no=number,
            first_sequence=self.sequence,
            count=truncates + len(changes),
            cut=number,
            cut_end=True,
            schemas=[WIRE_SCHEMAS[self.kind][self.version]]
            if self.version not in self.home.versions or number == 1
            else [],
        )
        if truncates:
            body.tables.add(table_id=1, schema_version=self.version, kind=change_pb2.TableChanges.TRUNCATE, count=1)
        if changes:
            ids = PackedBytes.of([IDS[key] for key, _ in changes])
            rows = PackedBytes.of(
                [b"" if row is None else ENCODED_ROWS[self.kind][self.version][row] for _, row in changes]
            )
            body.tables.add(
                table_id=1,
                schema_version=self.version,
                count=len(changes),
                record_ids=ids.data,
                record_id_sizes=ids.wire_sizes(),
                rows=rows.data,
                row_sizes=rows.wire_sizes(),
                is_deleted=bytes(row is None for _, row in changes),
                inserts_only=fresh and not truncates,
            )
        self.sequence += body.count
        self.states.append(state)
        self.versions_at.append(self.version)
        self.home.wanted[number] = state
        self.home.take(body.SerializeToString())

    # -- sets below ------------------------------------------------------------------------------------------------

    def change(self) -> None:
        """Restart a set with another predicate: it is filled again."""
        node = self.rng.choice(self.sets)
        if self.rng.random() < 0.5:
            node.text = "" if self.rng.random() < 0.15 else random_text(self.rng)
            if self.rng.random() < 0.3:
                node.has_consumers = False  # its consumers were forgotten, and return

    def fill_again(self) -> None:
        """Fill a set again with its current predicate."""
        node = self.rng.choice(self.nodes)
        if self.rng.random() < 0.2 and node.wanted:
            self._fill(node)

    def read_all_queues(self) -> None:
        """Let all sets read to the end of their queues, so that no cut is incomplete."""
        for node in self.nodes:
            self._follow(node, len(self.states))

    def refill_at_the_cut(self) -> None:
        """Fill a set again, with its predicate or another one, while all sets below are exactly at that offset."""
        node = self.rng.choice(self.sets)
        if self.version < 3 and self.rng.random() < 0.3:
            self._alter()
        self.read_all_queues()
        if node.wanted and self.rng.random() < 0.5:
            before = node.text
            for text in (random_text(self.rng), before) if self.rng.random() < 0.3 else (before,):
                node.text, node.has_consumers = text, False
                self._fill(node)

    def move(self) -> None:
        """Lose the set above, and try to resume at the other one."""
        node = self.rng.choice([one for one in self.nodes if one.upper in self.uppers])
        if node.wanted and node.upper is not None:
            node.upper = self.uppers[node.upper is self.uppers[0]]

    def follow(self) -> None:
        """Let a set or a target read some batches."""
        self._follow(self.rng.choice(self.nodes), self.rng.randint(1, 4))

    def _follow(self, node: Node, batches: int) -> None:
        """Let a node read batches of the set above, after a fill if it needs one."""
        upper = node.upper
        assert upper is not None
        if upper is not self.home and (not upper.wanted or node.at > upper.at):
            return  # the set above serves nothing yet, or lags
        if not node.wanted or node.at < upper.cut or self._requested_filters(node) != self._contents(node.filters):
            self._fill(node)
            return
        if not self._open_stream(node, upper):
            return
        for number in range(node.at + 1, min(node.at + batches, upper.at) + 1):
            whole = upper.queue[number]
            versions = {(1, v): self.schemas[v] for v in upper.versions}
            with self._break_mechanism():
                fitted = row_filters.fit_filters(node.filters, versions.values())
                body = (
                    reduced_batches.OpenBatch(whole)
                    .reduce(WantedPart(frozenset(), node.filters, fitted, versions))
                    .body
                )
            if self.fault == "left out instead of deleted":
                body = _without_deletions(whole, body)
            if self.fault == "still called insertions":
                body = _restore_hint(whole, body)
            _check_hint(body, node.rows)
            before = len(node.rows)
            node.take(body)
            self.leaves += before > len(node.rows)
            node.wanted[number] = self._expected_rows(node, number)

    def _open_stream(self, node: Node, upper: Node) -> bool:
        """Open a stream if the position fits the rows above; return whether it was opened."""
        own = (node.filters,) if node.filters else ()
        if self.fault not in ("positions say nothing", "no later cut"):
            here, there = (self._rows(levels, node.at) for levels in (node.levels, upper.levels + own))
            if here != there and node.origin is upper:
                self.refilled += 1
                self._fill(node)
                return False
            if here != there:
                self.refused += 1
                node.upper = node.origin
                return False
        self.moved += node.origin is not upper
        node.origin, node.levels = upper, upper.levels + own
        return True

    def _rows(self, levels: Levels, number: int) -> dict[int, int]:
        """Return the identity of the rows behind these levels of filters, as of a batch."""
        if self.fault == "what sets above choose is left out":
            levels = levels[-1:]
        return _identity(self.kind, levels, tuple(sorted(set(self.versions_at[: number + 1]))), self.fault)

    def _contents(self, filters: tuple[RowFilter, ...]) -> list[tuple[str, str]]:
        """Return what filters say, in a form that can be compared."""
        return [one.content for one in filters]

    def _requested_filters(self, node: Node) -> list[tuple[str, str]]:
        """Return the filters that a node's configuration requests."""
        return self._contents(row_filters.parse_filters({"t": node.text} if node.text else {}))

    def _fill(self, node: Node) -> None:
        """Take the full data of the set above, if it exists and its cut is late enough."""
        upper = node.upper
        assert upper is not None
        asked = row_filters.parse_filters({"t": node.text} if node.text else {})
        changed = "changed" if node.wanted and self._contents(asked) != self._contents(node.filters) else ""
        groups = ["main/eu"] if node.has_consumers and self.fault != "no later cut" else []
        if not upper.wanted or explain_late_cut(changed, (1, upper.at), (1, node.at), groups):
            return
        known = [WIRE_SCHEMAS[self.kind][version] for version in sorted(upper.versions)]
        node.filters = row_filters.with_tables(asked, [self.schemas[version] for version in upper.versions])
        with self._break_mechanism():
            choose = row_chooser(node.filters, 1, known) if self.fault != "the full data whole" else None
            values = [upper.rows[key] for key in sorted(upper.rows)]
            stored = StoredRows(pack_items(values))
            if 1 in refused_tables(node.filters, known):
                stored = StoredRows(pack_items([]))
            elif choose is not None and len(stored):
                stored = choose(stored)
        node.rows = {stored.record_id(n): value for n, value in enumerate(stored.packed.split())}
        node.queue, node.cut, node.at, node.versions = {}, upper.at, upper.at, set(upper.versions)
        node.wanted = {node.at: self._expected_rows(node, node.at)}
        node.origin, node.levels = upper, upper.levels + ((node.filters,) if node.filters else ())
        node.has_consumers = node in self.sets
        self.fills += 1

    def _break_mechanism(self) -> AbstractContextManager[object]:
        """Return a context in which the mechanism named by `fault` is disabled."""
        match self.fault:
            case "sent whole":
                return patch.object(OpenRows, "find_kept", lambda *_: None)
            case "what does not fit is still judged":
                return patch.object(FittedFilter, "has_version", lambda *_: True)
            case "another column of that name is taken for it":
                return patch.object(row_filters, "differing_column", lambda *_: "")
        return nullcontext()

    # -- checks ----------------------------------------------------------------------------------------------------

    def _expected_rows(self, node: Node, number: int) -> dict[int, Row]:
        """Return the rows that a set should have after a batch, from those that the set above should have."""
        assert node.upper is not None
        if "region" in node.text and node.filters and not self._fits(node, number):
            self.frozen += 1
            before = node.wanted[number - 1] if number > node.cut else {}
            return {key: row_in_version(row, self.versions_at[number], self.kind) for key, row in before.items()}
        text = node.filters[0].predicate if node.filters else ""
        return {key: row for key, row in node.upper.wanted[number].items() if row in where(text)}

    def _fits(self, node: Node, number: int) -> bool:
        """Return whether a batch has the table version of a node's cut, and that version has the filter's column."""
        at_cut = self.versions_at[node.cut]
        return at_cut != 2 and self.versions_at[number] == at_cut

    def check(self) -> None:
        """Compare every set and target that has moved with its expected rows."""
        for node in self.nodes:
            if node.wanted and node.checked != (self.fills, node.at):
                node.checked = self.fills, node.at
                version = self.versions_at[node.at]
                found = {IDS.index(key): decode_row(value, version, self.kind) for key, value in node.rows.items()}
                wanted = node.wanted[node.at]
                assert found == wanted, (node.text, node.at, found, wanted)


def _without_deletions(whole: bytes, body: bytes) -> bytes:
    """Leave out deletions that stand for rows which left the predicate."""
    before, after = change_pb2.BatchBody.FromString(whole), change_pb2.BatchBody.FromString(body)
    for one, other in zip(before.tables, after.tables, strict=True):
        if one.is_deleted != other.is_deleted and one.kind == change_pb2.TableChanges.CHANGES and other.kind == 0:
            other.Clear()
            other.kind, other.count = change_pb2.TableChanges.LEFT_OUT, one.count
    return after.SerializeToString()


def _restore_hint(whole: bytes, body: bytes) -> bytes:
    """Mark the sections of a filtered batch as new rows where the whole batch does."""
    before, after = change_pb2.BatchBody.FromString(whole), change_pb2.BatchBody.FromString(body)
    for one, other in zip(before.tables, after.tables, strict=True):
        other.inserts_only = one.inserts_only
    return after.SerializeToString()


def _check_hint(body: bytes, rows: dict[bytes, bytes]) -> None:
    """Check that a batch marked as new rows has only new ones, because readers insert them without a look-up."""
    for table in change_pb2.BatchBody.FromString(body).tables:
        if table.inserts_only:
            assert 1 not in table.is_deleted, "a deletion is called an insertion"
            ids = PackedBytes.from_wire(table.record_ids, table.record_id_sizes).split()
            assert rows.keys().isdisjoint(ids), "what is here is called new"


def run_histories(numbers: range, steps: int, fault: str = "") -> Counter[str]:
    """Run histories by their numbers; return how often each kind of event happened."""
    totals = Counter[str]()
    for number in numbers:
        history = History(random.Random(number), fault)
        try:
            history.run(steps)
        except (AssertionError, KeyError, ValueError) as error:
            raise AssertionError(f"history {number}: {error}") from error
        totals.update({name: getattr(history, name) for name in COUNTED})
    return totals
