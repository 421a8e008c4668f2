"""Random histories of a table and of subscriptions to some of its rows, compared with SQLite's own WHERE.

The product's own code folds batches, judges them live and again after a reconnect, encodes and decodes them. The model
around it has the stored rows, the queue, and each client with its rows and its position. Clients disconnect and resume,
some with equal predicates; the broker restarts, and some batches are too many to be judged live. The table is emptied
and read again by a sweep; its columns are dropped, added again, renamed, and get other types. A live change must also
have the right kind for the client.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, cast
from unittest.mock import patch

import numpy as np

from tests.support.predicates.changing_table import (
    DROPPED,
    ENCODED_ROWS,
    RETYPED,
    VERSIONS,
    WIRE_SCHEMAS,
    amount_text,
    has_halves,
)
from tests.support.predicates.predicate_histories import IDS, KEYS, ROWS, Row, random_text, where
from tests.support.predicates.subscription_faults import FAULTS
from venus.broker.listening import listening, replay, watched_table
from venus.broker.listening.listening import JudgedBatch, Listening, WantedSubscription
from venus.broker.machine import envelope, folding
from venus.broker.machine.business import Business
from venus.broker.machine.queue_index import QueuedBatch
from venus.broker.machine.review_schedule import ReviewSchedule
from venus.broker.snapshot import watched_rows
from venus.broker.snapshot.watched_rows import FoldedBatch, FoldedSection, WatchedRowLookup
from venus.codec.changed_rows import encode_loaded
from venus.codec.packed import PackedBytes, pack_items
from venus.codec.stored_rows import StoredRows
from venus.codec.subscription import ChangeSet, SubscriptionView
from venus.errors import VenusError
from venus.model import ChangeKind, TableSchema
from venus.predicates.ranges import compile_predicate
from venus.predicates.syntax import PredicateRefused
from venus.wire import broker_pb2, change_pb2

#: Number of last steps whose written rows are kept.
WRITTEN_BYTES_MAX = 600


class _Store:
    """The stored rows and schemas, with the interface that judging needs."""

    def __init__(self) -> None:
        self.rows: dict[bytes, bytes] = {}

    def look_up(self, _family: str, keys: Iterable[bytes]) -> dict[bytes, bytes]:
        return {key: self.rows[key] for key in keys if key in self.rows}

    def view(self, _family: str) -> _View:
        return _View(dict(self.rows))


@dataclass(frozen=True)
class _View:
    """The rows as of a batch."""

    rows: dict[bytes, bytes]

    def look_up(self, keys: Iterable[bytes]) -> dict[bytes, bytes]:
        return {key: self.rows[key] for key in keys if key in self.rows}


@dataclass(eq=False)
class Client:
    """A client of one subscription: its rows, and the rows that it should have."""

    number: int
    text: str
    view: SubscriptionView = field(default_factory=lambda: SubscriptionView(1))
    rows: dict[bytes, dict[str, Any]] = field(default_factory=dict)
    judged_as: int = 0
    offset: int = 0
    is_connected: bool = False
    is_exact: bool = True
    ended: str = ""

    def take(self, frame: broker_pb2.ChangesFrame, *, is_live: bool) -> None:
        for found in self.view.take(frame):
            self._apply(found, is_live=is_live)

    def _apply(self, found: ChangeSet, *, is_live: bool) -> None:
        if found.is_truncation:
            self.rows.clear()
            return
        ids = found.rows.record_ids.split()
        for record_id, name, row in zip(ids, found.names, found.values(), strict=True):
            if is_live and self.is_exact:
                has = record_id in self.rows
                assert has == (name != "insert"), f"{name} of a row that the client {'has' if has else 'lacks'}"
            if name == "delete":
                self.rows.pop(record_id, None)
            else:
                self.rows[record_id] = {column: None if value is None else str(value) for column, value in row.items()}


class History:
    """A table, its queue, and the clients."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.kind = self.rng.choice(tuple(VERSIONS))
        self.version, self.sequence, self.batch_no, self.offset = 1, 1, 1, 0
        self.truth: dict[bytes, tuple[Row, int]] = {}
        self.store, self.floor, self.reached = _Store(), 0, 0
        self.queue: list[tuple[QueuedBatch, bytes]] = []
        self.described: list[tuple[int, TableSchema]] = [(-1, VERSIONS[self.kind][1])]
        self.business = Business(1, "main", ReviewSchedule(first_s=1.0))
        self.clients: list[Client] = []
        self.sweep: set[bytes] | None = None
        self.counts = dict.fromkeys(("live", "again", "ended", "reloads", "gaps"), 0)
        self._start_broker()

    # -- the broker ------------------------------------------------------------------------------------------------

    def _start_broker(self) -> None:
        self.judging = Listening(cast("Any", self.store), subscriptions_max=1000)
        self.watched_rows = WatchedRowLookup(cast("Any", self.store), written_bytes_max=WRITTEN_BYTES_MAX)
        for client in self.clients:
            client.is_connected = False

    def _commit(self, sections: list[change_pb2.TableChanges], schemas: Iterable[change_pb2.TableSchema] = ()) -> None:
        """Commit one batch, fold it, judge it, and check every client that is up to date."""
        first = self.sequence
        body = change_pb2.BatchBody(
            batch_no=self.batch_no,
            first_sequence=first,
            count=sum(s.count for s in sections),
            cut=self.batch_no,
            cut_end=True,
            tables=sections,
            schemas=schemas,
        )
        count = max(1, body.count)
        place = QueuedBatch(
            base_offset=self.offset,
            index=self.batch_no,
            count=count,
            epoch=1,
            batch_no=self.batch_no,
            cut=self.batch_no,
            first_sequence=first,
            last_sequence=first + body.count - 1,
            committed_at_us=1,
            captured_at_us=1,
            digest=0,
            nbytes=1,
            before=0,
            cut_end=True,
            tables=(1,),
        )
        self.batch_no, self.sequence, self.offset = self.batch_no + 1, first + body.count, self.offset + count
        encoded = body.SerializeToString()
        self.queue.append((place, encoded))
        self._deliver(self._fold(place, encoded))
        self._check()

    def _fold(self, place: QueuedBatch, body: bytes) -> JudgedBatch:
        message, found = envelope.parse_body(body), list[FoldedSection]()
        written, clears = dict[bytes, bytes](), False
        rows = self.watched_rows
        if self.rng.random() < 0.2:
            rows.drop()
        if self.judging.watched_tables:
            rows.begin(self.judging.watched_tables)
        for section in envelope.build_sections(message):
            blind = place.first_sequence > self.reached
            effect = folding.fold_section(section, b"", self.floor, None if blind else self._look_up(written))
            if self.judging.watched_tables:
                found.append(watched_rows.fold_watched(rows, section, effect, self.floor, blind=blind))
            if effect.clear:
                written, clears = {}, True
            written |= dict(zip(effect.keys, effect.values, strict=True))
            self.floor = effect.floor
        if clears:
            self.store.rows.clear()
        self.store.rows |= written
        self.reached = max(self.reached, place.last_sequence)
        folded = FoldedBatch(place=place, sections=found, schemas=list(message.schemas))
        if self.rng.random() < 0.05:  # more batches than can wait
            self.counts["gaps"] += 1
            gap = JudgedBatch(1, place.base_offset, place.next_offset, place.epoch, is_gap=True)
            gap.schemas += message.schemas
            return self.judging.skip(gap)
        return self.judging.judge(1, folded)

    def _look_up(self, overlay: dict[bytes, bytes]) -> folding.Stored:
        return lambda keys: self.store.look_up("", keys) | {key: overlay[key] for key in keys if key in overlay}

    def _deliver(self, judged: JudgedBatch) -> None:
        for client in [one for one in self.clients if one.is_connected]:
            frame = broker_pb2.ChangesFrame(tables=judged.schemas)
            if (error := next((e for one, _, e in judged.ended if one is client), None)) is not None:
                self._end(client, error)
                continue
            if judged.is_gap:
                client.take(frame, is_live=False)
                self._read_again(client, client.offset)
                continue
            if any(one is client for one, _ in judged.reloads):
                self._load(client, is_reload=True)
                continue
            if client.is_connected:
                frame.changes.extend(judged.changes.get(client, ()))
                self.counts["live"] += len(frame.changes)
                client.take(frame, is_live=True)
                client.offset = judged.next_offset

    def _end(self, client: Client, error: VenusError) -> None:
        assert ("day" if self.kind == RETYPED else "region") in client.text, f"{client.text} ended: {error}"
        client.ended, client.is_connected = str(error), False
        self.counts["ended"] += 1

    # -- clients ---------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        text = "" if self.rng.random() < 0.15 else random_text(self.rng)
        while self.kind == RETYPED and "amount" not in text and self.rng.random() < 0.8:
            text = random_text(self.rng)
        if self.clients and self.rng.random() < 0.3:
            text = self.rng.choice(self.clients).text
        try:
            if text:
                compile_predicate(text, self.described[-1][1])
        except PredicateRefused:
            return  # the table lacks a column now, or its type does not allow a constant
        for _ in range(self.rng.choice((1, 2))):
            client = Client(len(self.clients), text)
            self.clients.append(client)
            self._load(client)

    def _load(self, client: Client, *, is_reload: bool = False) -> None:
        """Send the rows of the full data, and judge live after that."""
        self.counts["reloads"] += is_reload
        state = broker_pb2.RELOADS if is_reload else broker_pb2.BEGUN
        frame = broker_pb2.ChangesFrame(
            tables=[WIRE_SCHEMAS[self.kind][schema.version] for _, schema in self.described],
            news=[broker_pb2.SubscriptionNews(number=1, state=state, table_id=1)],
        )
        client.take(frame, is_live=False)
        assert not client.rows
        table = watched_table.WatchedTable(schema for _, schema in self.described)
        table.add(1, client.text)
        alive = [value for value in self.store.rows.values() if folding.is_live(value, self.floor)]
        inside = table.judge_again(alive).changes.tolist()
        loaded = encode_loaded(1, StoredRows(pack_items([alive[n] for n in inside])), 1)
        client.take(broker_pb2.ChangesFrame(changes=[loaded]), is_live=False)
        self._go_live(client)

    def _go_live(self, client: Client) -> None:
        wanted = [WantedSubscription(1, client.text)]
        with patch.object(listening, "load_schemas", lambda *_: self.described):
            made, refused = self.judging.subscribe(self.business, 1, wanted, client)
        if refused:
            self._end(client, refused[0][1])
            return
        client.judged_as, client.offset, client.is_connected, client.is_exact = made[0], self.offset, True, True
        news = broker_pb2.SubscriptionNews(number=1, state=broker_pb2.LIVE)
        client.take(broker_pb2.ChangesFrame(news=[news]), is_live=False)

    def disconnect(self, client: Client) -> None:
        if client.is_connected:
            self.judging.unsubscribe([client.judged_as])
        client.is_connected = False

    def reconnect(self, client: Client) -> None:
        frame = broker_pb2.ChangesFrame(
            tables=[WIRE_SCHEMAS[self.kind][schema.version] for _, schema in self.described],
            news=[broker_pb2.SubscriptionNews(number=1, state=broker_pb2.BEGUN, table_id=1)],
        )
        client.take(frame, is_live=False)
        if self._read_again(client, client.offset):
            self._go_live(client)

    def _read_again(self, client: Client, offset: int) -> bool:
        """Replay the changes that a client may have missed; return whether it can be judged live again."""
        before = [place for place, _ in self.queue if place.base_offset < offset]
        last = before[-1].last_sequence if before else 0
        again = replay.Replay(self.described, offset, [(1, client.text, None)], last)
        if again.refused:
            self.disconnect(client)
            self._end(client, again.refused[1])
            return False
        for place, body in self.queue:
            if place.base_offset < offset:
                continue
            found = again.take(body)
            self.counts["again"] += len(found.changes)
            if found.ended:
                self.disconnect(client)
                self._end(client, found.ended[1])
                return False
            if found.must_reload:
                self.disconnect(client)
                self._load(client, is_reload=True)
                return False
            client.take(broker_pb2.ChangesFrame(changes=found.changes), is_live=False)
        client.offset = self.offset
        return True

    # -- the source ------------------------------------------------------------------------------------------------

    def change(self) -> None:
        self._commit([self._changes() for _ in range(self.rng.choice((1, 1, 2)))])

    def _changes(self) -> change_pb2.TableChanges:
        ids, rows, deleted = [], [], []
        for _ in range(self.rng.randint(1, 4)):
            key = self.rng.choice(KEYS)
            record_id, is_deleted = IDS[key], self.rng.random() < 0.25
            row = self.rng.choice(ROWS)
            if is_deleted:
                self.truth.pop(record_id, None)
            else:
                self.truth[record_id] = (row, self.version)
            if self.sweep is not None:
                self.sweep.discard(record_id)
            ids.append(record_id)
            rows.append(b"" if is_deleted else ENCODED_ROWS[self.kind][self.version][row])
            deleted.append(is_deleted)
        return self._section(ids, rows, deleted)

    def _section(self, ids: list[bytes], rows: list[bytes], deleted: list[bool]) -> change_pb2.TableChanges:
        packed_ids, packed = PackedBytes.of(ids), PackedBytes.of(rows)
        return change_pb2.TableChanges(
            table_id=1,
            schema_version=self.version,
            count=len(ids),
            record_ids=packed_ids.data,
            record_id_sizes=packed_ids.wire_sizes(),
            rows=packed.data,
            row_sizes=packed.wire_sizes(),
            is_deleted=np.array(deleted, np.bool_).tobytes() if any(deleted) else b"",
        )

    def _marker(self, kind: ChangeKind, sweep_before: int = 0) -> change_pb2.TableChanges:
        return change_pb2.TableChanges(
            table_id=1, schema_version=self.version, kind=cast("Any", int(kind)), count=1, sweep_before=sweep_before
        )

    def truncate(self) -> None:
        self.truth.clear()
        self.sweep = set() if self.sweep is not None else None
        row, record_id = self.rng.choice(ROWS), IDS[self.rng.choice(KEYS)]
        self.truth[record_id] = (row, self.version)
        rows = self._section([record_id], [ENCODED_ROWS[self.kind][self.version][row]], [False])
        self._commit([self._marker(ChangeKind.TRUNCATE), rows])

    def read_whole_table(self) -> None:
        """Read the table again by a sweep, in which rows may be missing without a deletion before."""
        before = self.sequence
        self._commit([self._marker(ChangeKind.SWEEP_BEGIN)])
        for record_id in list(self.truth):
            if self.rng.random() < 0.3:
                del self.truth[record_id]
        there = {key: row for key, (row, _) in self.truth.items()}
        self.truth = {key: (row, self.version) for key, row in there.items()}
        rows = self._section(
            list(there), [ENCODED_ROWS[self.kind][self.version][row] for row in there.values()], [False] * len(there)
        )
        end = self._marker(ChangeKind.SWEEP_END, before)
        self._commit([rows, end] if there else [end])

    def alter(self) -> None:
        if later := [version for version in VERSIONS[self.kind] if version > self.version]:
            self.version = self.rng.choice(later)
            self.described.append((self.offset, VERSIONS[self.kind][self.version]))
            self._commit([], [WIRE_SCHEMAS[self.kind][self.version]])

    def _row_now(self, row: Row, written: int) -> Row:
        gone = self.kind == DROPPED and written < self.version
        return (None, *row[1:]) if gone else row

    # -- the right result --------------------------------------------------------------------------------------------

    def _check(self) -> None:
        for client in self.clients:
            if client.is_connected and not client.ended:
                names_old = self.kind != DROPPED and self.version == 2
                text = client.text.replace("area", "region") if names_old else client.text
                inside = {n: where(text, has_halves=has_halves(self.kind, n)) for n in VERSIONS[self.kind]}
                right = {key: row for key, row in self.truth.items() if self._row_now(*row) in inside[row[1]]}
                assert {key: self._recognised_values(*row) for key, row in right.items()} == {
                    key: {name: row.get(name) for name in self._recognised_values(*self.truth.get(key, (ROWS[0], 0)))}
                    for key, row in client.rows.items()
                }, f"client {client.number}, {client.text!r}, at {self.offset}"

    def _recognised_values(self, row: Row, written: int) -> dict[str, Any]:
        """Return the values that identify a client's row: a dropped column keeps the value that the client has."""
        region, amount, day = row
        values = {"amount": amount_text(amount, self.kind, written), "day": day}
        return values | ({"region": region} if written == self.version != 2 else {})

    def run(self, steps: int) -> None:
        for _ in range(steps):
            lucky = self.rng.random()
            away = [one for one in self.clients if not one.is_connected and not one.ended]
            there = [one for one in self.clients if one.is_connected]
            if lucky < 0.18:
                self.begin()
            elif lucky < 0.28 and there:
                self.disconnect(self.rng.choice(there))
            elif lucky < 0.42 and away:
                self.reconnect(self.rng.choice(away))
                self._check()
            elif lucky < 0.46:
                self.truncate()
            elif lucky < 0.50:
                self.read_whole_table()
            elif lucky < 0.56:
                self.alter()
            elif lucky < 0.59:
                self._start_broker()
            else:
                self.change()
        for client in [one for one in self.clients if not one.is_connected and not one.ended]:
            self.reconnect(client)
        self._check()


def run_histories(seeds: Iterable[int], steps: int, fault: str = "") -> dict[str, int]:
    """Run histories with a disabled mechanism; return counts of events. Raises AssertionError."""
    counts: dict[str, int] = {}
    with FAULTS[fault] if fault else nullcontext():
        for seed in seeds:
            history = History(seed)
            history.run(steps)
            for name, count in history.counts.items():
                counts[name] = counts.get(name, 0) + count
    return counts
