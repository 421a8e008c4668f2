"""One business as the broker holds it in memory, and how that is kept in the column family `state`.

The commit thread alone changes a `Business`, while it builds a group; what other threads may see of it
(`visible_offset`, `committed`, the tail) is published after the group's fsync. Consumers, reviews and counters are
touched by several threads and have a lock.
"""

from __future__ import annotations

import json
import struct
import threading
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from venus.broker.log.entry import Entry, body_of
from venus.broker.log.log import Log
from venus.broker.log.terms import TermCache
from venus.broker.machine import half
from venus.broker.machine.consumers import Consumer
from venus.broker.machine.envelope import Envelope, envelope, parse
from venus.broker.machine.queue_index import Tail
from venus.broker.machine.retention import Mark
from venus.broker.machine.review_schedule import Reviews
from venus.broker.machine.steps import Step
from venus.broker.store import keys
from venus.broker.store.files import damaged
from venus.broker.store.rocks import Batch, Store
from venus.model import Verdict

_HALF = struct.Struct(">QQIQqQ")
_SCHEMA_OFFSET = struct.Struct(">Q")

#: (offset, half message) in order, on disk.
Ahead = tuple[tuple[int, half.Half], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFigures:
    """What was committed of one table."""

    namespace: str = ""
    name: str = ""
    changes: int = 0
    last_sequence: int = 0
    rows: int = 0  # an estimate: insertions that the source announced, less deletions


@dataclass(frozen=True, slots=True, kw_only=True)
class Materialised:
    """How far the full data has come: written together with the rows."""

    offset: int = 0
    sequence: int = 0
    nbytes: int = 0  # Placed.after of the last batch
    at_cut_end: bool = True
    floors: dict[int, int] = field(default_factory=dict)

    def encode(self) -> bytes:
        """Return what is stored."""
        record = {"offset": self.offset, "sequence": self.sequence, "nbytes": self.nbytes, "cut_end": self.at_cut_end}
        return json.dumps({**record, "floors": list(self.floors.items())}).encode()


def decode_materialised(value: bytes | None) -> Materialised:
    """Read what `Materialised.encode` wrote."""
    if value is None:
        return Materialised()
    record = json.loads(value)
    return Materialised(
        offset=record["offset"],
        sequence=record["sequence"],
        nbytes=record["nbytes"],
        at_cut_end=record["cut_end"],
        floors={int(table): int(floor) for table, floor in record["floors"]},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """An entry that was appended and is not applied yet, with the step it takes on what was proposed before it."""

    index: int
    entry: Entry
    content: Envelope | None
    step: Step


@dataclass(slots=True, eq=False)
class Business:
    """One ordered queue.

    Its half messages are held three times: `proposed` at the log's end decides what is accepted, `applying` is what
    the machine has come to, `committed` is the same once it is on disk: what others are told.
    """

    number: int
    name: str
    reviews: Reviews
    log: Log = field(init=False)
    proposed: half.State = field(default_factory=half.State)
    applying: half.State = field(default_factory=half.State)
    committed: half.State = field(default_factory=half.State)
    pending: deque[Pending] = field(default_factory=deque)
    log_start: int = 0  # the first offset that can be read
    nbytes: int = 0  # of bodies that were ever committed
    nbytes_trimmed: int = 0
    epochs: tuple[tuple[int, int], ...] = ()  # epoch, its first offset
    committed_at_us: int = 0
    captured_at_us: int = 0
    marks: list[Mark] = field(default_factory=list)
    counters: Counter[str] = field(default_factory=Counter)
    tables: dict[int, TableFigures] = field(default_factory=dict)
    consumers: dict[str, Consumer] = field(default_factory=dict)
    readers: dict[int, Consumer] = field(default_factory=dict)  # transient ones, by token
    envelopes: dict[int, Envelope] = field(default_factory=dict)  # of the undecided halves
    schemas: set[tuple[int, int]] = field(default_factory=set)  # table, version
    lock: threading.Lock = field(default_factory=threading.Lock)
    visible_offset: int = 0
    #: The half messages of a cut that is worth sending ahead, with the offsets they would get; replaced as a whole.
    undecided: Ahead = ()
    tail: Tail = field(default_factory=Tail)
    materialised: Materialised = field(default_factory=Materialised)
    scavenged: dict[int, int] = field(default_factory=dict)  # table: floor that is physically gone
    is_forgotten: bool = False  # the materialising thread leaves it alone
    forgotten_below: dict[int, int] = field(default_factory=dict)  # table: older tombstones may be physically gone
    scrubbed_at_us: int = 0  # when the last pass over everything that is stored ended

    def __post_init__(self) -> None:
        self.log = Log(self.number)

    @property
    def is_new(self) -> bool:
        """Whether nothing was ever logged for it."""
        return self.log.end == 1

    @property
    def epoch_at_end(self) -> int:
        """The epoch of the newest increment."""
        return self.epochs[-1][0] if self.epochs else 0

    def end_of_epoch(self, epoch: int) -> int:
        """Return the offset where a consumer of that epoch must have stopped at the latest (KIP-320)."""
        return next((start for known, start in self.epochs if known > epoch), self.visible_offset)

    def attached(self) -> list[Consumer]:
        """Return every consumer group, and every transient reader."""
        with self.lock:
            return [*self.consumers.values(), *self.readers.values()]

    def count(self, counter: str, n: int = 1) -> None:
        """Add to a counter."""
        with self.lock:
            self.counters[counter] += n

    def unmaterialised_bytes(self) -> int:
        """Return how far the full data is behind."""
        return self.nbytes - self.materialised.nbytes


# -- what is stored --------------------------------------------------------------------------------------------


def save(business: Business, batch: Batch) -> None:
    """Put the record of the business itself."""
    record = json.dumps(_record(business), separators=(",", ":")).encode()
    batch.put(keys.STATE, keys.core_key(business.number), record)


def _record(business: Business) -> dict[str, Any]:
    state, log = business.applying, business.log
    with business.lock:
        counters = dict(business.counters)
    return {
        "name": business.name,
        "epoch": state.epoch,
        "producer": state.producer,
        "last_batch": state.last_batch,
        "last_sequence": state.last_sequence,
        "next_offset": state.next_offset,
        "outcomes": [(o.batch_no, o.digest, int(o.verdict), o.next_offset) for o in state.outcomes],
        "log_start": business.log_start,
        "log_start_index": log.start,
        "applied": log.applied,
        "terms": log.terms.starts,
        "nbytes": business.nbytes,
        "nbytes_trimmed": business.nbytes_trimmed,
        "epochs": business.epochs,
        "committed_at_us": business.committed_at_us,
        "captured_at_us": business.captured_at_us,
        "marks": [(m.at_us, m.sequence, m.next_offset) for m in business.marks],
        "counters": counters,
    }


def load_all(store: Store, review_after_s: float) -> Iterator[Business]:
    """Read every business of a store, with what is undecided in it."""
    for key, value in store.scan_prefix(keys.STATE, keys.CORE):
        number = int.from_bytes(key[len(keys.CORE) :], "big")
        business = Business(number, json.loads(value)["name"], Reviews(first_s=review_after_s))
        business.counters = Counter(json.loads(value)["counters"])
        business.materialised = decode_materialised(store.get(keys.STATE, keys.materialised_key(number)))
        restore(store, business)
        for _, found in store.scan_prefix(keys.STATE, keys.consumer_prefix(number)):
            consumer = decode_consumer(json.loads(found))
            business.consumers[consumer.group] = consumer
        yield business


def restore(store: Store, business: Business) -> None:
    """Set what follows from the log, as far as it was applied, to what is on disk."""
    value = store.get(keys.STATE, keys.core_key(business.number))
    blank = Business(business.number, business.name, business.reviews)
    _restore(business, json.loads(value) if value is not None else _record(blank))
    _load_parts(store, business)
    _load_halves(store, business)


def _restore(business: Business, record: dict[str, Any]) -> None:
    outcomes = tuple(
        half.Outcome(batch_no=n, digest=d, verdict=Verdict(v), next_offset=o) for n, d, v, o in record["outcomes"]
    )
    business.applying = half.State(
        epoch=record["epoch"],
        producer=record["producer"],
        last_batch=record["last_batch"],
        last_sequence=record["last_sequence"],
        next_offset=record["next_offset"],
        outcomes=outcomes,
    )
    business.log_start = record["log_start"]
    business.nbytes, business.nbytes_trimmed = record["nbytes"], record["nbytes_trimmed"]
    business.epochs = tuple((epoch, start) for epoch, start in record["epochs"])
    business.committed_at_us, business.captured_at_us = record["committed_at_us"], record["captured_at_us"]
    business.marks = [Mark(at_us=at, sequence=sequence, next_offset=offset) for at, sequence, offset in record["marks"]]
    business.log = _log(business.number, record)


def _log(number: int, record: dict[str, Any]) -> Log:
    applied = record["applied"]
    terms = TermCache(tuple((term, first) for term, first in record["terms"]))
    return Log(
        number, start=record["log_start_index"], end=applied + 1, committed=applied, applied=applied, terms=terms
    )


def _load_parts(store: Store, business: Business) -> None:
    number = business.number
    business.tables, business.schemas = {}, set()
    for key, value in store.scan_prefix(keys.STATE, keys.table_prefix(number)):
        business.tables[int.from_bytes(key[-4:], "big")] = TableFigures(**json.loads(value))
    for key, _ in store.scan_prefix(keys.STATE, keys.schema_prefix(number)):
        business.schemas.add((int.from_bytes(key[-8:-4], "big"), int.from_bytes(key[-4:], "big")))


def _load_halves(store: Store, business: Business) -> None:
    halves = []
    business.envelopes = {}
    for key, value in store.scan_prefix(keys.STATE, keys.half_prefix(business.number)):
        found = decode_half(int.from_bytes(key[-8:], "big"), value)
        halves.append(found)
        business.envelopes[found.batch_no] = envelope(parse(read_body(store, business, found.index)))
    business.applying = business.proposed = half.with_halves(business.applying, halves)


def read_body(store: Store, business: Business, index: int) -> bytes:
    """Read the body of a PREPARE from the log, past the cache: readers of old bodies read each once."""
    value = store.get(keys.RLOG, keys.log_key(business.number, index), fill_cache=False)
    if value is None:
        raise damaged(store.path, f"entry {index} of {business.name}'s log is missing")
    return body_of(value)


def encode_half(found: half.Half) -> bytes:
    """Return what is stored of an undecided half message."""
    return _HALF.pack(found.digest, found.first_sequence, found.count, found.nbytes, found.received_at_us, found.index)


def decode_half(batch_no: int, value: bytes) -> half.Half:
    """Read what `encode_half` wrote."""
    digest, first_sequence, count, nbytes, received_at_us, index = _HALF.unpack(value)
    return half.Half(
        batch_no=batch_no,
        digest=digest,
        first_sequence=first_sequence,
        count=count,
        nbytes=nbytes,
        received_at_us=received_at_us,
        index=index,
    )


def encode_schema(offset: int, schema: bytes) -> bytes:
    """Return what is stored of a schema version: since which offset, and the message."""
    return _SCHEMA_OFFSET.pack(offset) + schema


def decode_schema(value: bytes) -> tuple[int, bytes]:
    """Read what `encode_schema` wrote."""
    return int(_SCHEMA_OFFSET.unpack_from(value)[0]), value[_SCHEMA_OFFSET.size :]


def consumer_record(consumer: Consumer) -> dict[str, Any]:
    """Return what is logged and stored of a consumer group."""
    return {
        "group": consumer.group,
        "acknowledged": consumer.acknowledged,
        "kept": consumer.kept,
        "away_us": consumer.away_us,
        "updated_at_us": consumer.updated_at_us,
    }


def decode_consumer(record: dict[str, Any], updated_at_us: int = 0) -> Consumer:
    """Read what `consumer_record` made; a record of before has one position."""
    return Consumer(
        group=record["group"],
        acknowledged=record["acknowledged"],
        kept=record.get("kept", record["acknowledged"]),
        away_us=record.get("away_us", 0),
        updated_at_us=record.get("updated_at_us", updated_at_us),
    )


def save_consumer(batch: Batch, business: int, consumer: Consumer) -> None:
    """Put what is known of a consumer group."""
    record = json.dumps(consumer_record(consumer)).encode()
    batch.put(keys.STATE, keys.consumer_key(business, consumer.group), record)


def save_table(batch: Batch, business: int, table_id: int, figures: TableFigures) -> None:
    """Put the figures of a table."""
    record = {
        "namespace": figures.namespace,
        "name": figures.name,
        "changes": figures.changes,
        "last_sequence": figures.last_sequence,
        "rows": figures.rows,
    }
    batch.put(keys.STATE, keys.table_key(business, table_id), json.dumps(record).encode())
