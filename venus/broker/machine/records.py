"""Encodes and decodes the records of a business in the column family `state`.

`state` also has table versions, consumer groups, and the predicates by which the upstream sets have chosen the rows.
"""

from __future__ import annotations

import json
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import xxhash

from venus.broker.log.entry import body_of
from venus.broker.log.log import BusinessLog
from venus.broker.machine import half_messages, loss
from venus.broker.machine.business import Business, MaterialisedPosition, TableFigures
from venus.broker.machine.consumers import ConsumerState, QueueMark
from venus.broker.machine.envelope import build_envelope, parse_body
from venus.broker.machine.mirror import Mirror, decode_home, decode_mirror, encode_home, encode_mirror
from venus.broker.machine.review_schedule import ReviewSchedule
from venus.broker.store import keys
from venus.broker.store.files import damage_error
from venus.broker.store.rocks import Store, StoreBatch
from venus.codec import schema as schemas_codec
from venus.model import TableSchema, Verdict
from venus.network.row_filters import Levels, decode_filters
from venus.replication.position import TermCache
from venus.rpc.limits import NUMBER_MAX
from venus.wire import change_pb2

T = TypeVar("T")

_HALF = struct.Struct(">QQIQqQ")
_SCHEMA_OFFSET = struct.Struct(">Q")
#: `json.dumps` would create an encoder for each record.
_compact = json.JSONEncoder(separators=(",", ":")).encode


def encode_materialised_position(found: MaterialisedPosition) -> bytes:
    """Encode the position of the full data as a stored record."""
    record = {
        "offset": found.offset,
        "sequence": found.sequence,
        "nbytes": found.nbytes,
        "cut_end": found.at_cut_end,
        "floors": list(found.floors.items()),
        "filled": found.filled,
    }
    return json.dumps(record).encode()


def decode_materialised_position(value: bytes | None) -> MaterialisedPosition:
    """Decode a record of `encode_materialised_position`; None = there is no full data yet."""
    if value is None:
        return MaterialisedPosition()
    record = json.loads(value)
    return MaterialisedPosition(
        offset=record["offset"],
        sequence=record["sequence"],
        nbytes=record["nbytes"],
        at_cut_end=record["cut_end"],
        floors={int(table): int(floor) for table, floor in record["floors"]},
        filled=record.get("filled", 0),
    )


def save(business: Business, batch: StoreBatch) -> None:
    """Put the main record of a business into a write batch.

    This record is written with every group of log entries, so its long parts, which are numbers only, are encoded only
    when they change.
    """
    short = _compact(_short_parts(business))
    outcomes = _encode_if_changed(business, "outcomes", business.applying.outcomes, _outcome_rows)
    marks = _encode_if_changed(business, "marks", business.marks, _mark_rows)
    record = f'{short[:-1]},"outcomes":{outcomes},"marks":{marks}}}'
    batch.put(keys.STATE, keys.core_key(business.number), record.encode())


def _encode_if_changed(business: Business, name: str, value: T, rows: Callable[[T], list[str]]) -> str:
    """Return `value` as JSON, encoded again only if it is another object: it is replaced when it changes."""
    known = business.encoded.get(name)
    if known is None or known[0] is not value:
        known = business.encoded[name] = value, f"[{','.join(rows(value))}]"
    return known[1]


def _outcome_rows(outcomes: tuple[half_messages.HalfOutcome, ...]) -> list[str]:
    """Return the outcomes of half messages as rows of JSON."""
    return [f"[{o.batch_no},{o.digest},{int(o.verdict)},{o.next_offset}]" for o in outcomes]


def _mark_rows(marks: list[QueueMark]) -> list[str]:
    """Return the queue marks as rows of JSON."""
    return [f"[{m.at_us},{m.sequence},{m.next_offset}]" for m in marks]


def _blank_record(business: Business) -> dict[str, Any]:
    """Return the main record of a business that has nothing stored."""
    return _short_parts(business) | {"outcomes": (), "marks": ()}


def _short_parts(business: Business) -> dict[str, Any]:
    """Return the parts of the main record that are encoded for every write, because they are short."""
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
        "log_start": business.log_start,
        "log_start_index": log.start,
        "applied": log.applied,
        "described_from": business.described_from,
        "terms": log.terms.starts,
        "nbytes": business.nbytes,
        "nbytes_trimmed": business.nbytes_trimmed,
        "epochs": business.epochs,
        "committed_at_us": business.committed_at_us,
        "captured_at_us": business.captured_at_us,
        "counters": counters,
        "losses": loss.encode(state.losses),
        "mirror": encode_mirror(state.mirror),
        "home": encode_home(state.home),
    }


def load_all(store: Store, review_after_s: float) -> Iterator[Business]:
    """Read every business of a store, with its undecided half messages."""
    for key, value in store.scan_prefix(keys.STATE, keys.CORE):
        yield load(store, int.from_bytes(key[len(keys.CORE) :], "big"), value, review_after_s)


def load(store: Store, number: int, value: bytes, review_after_s: float) -> Business:
    """Read one business; `value` is its main record."""
    business = Business(number, json.loads(value)["name"], ReviewSchedule(first_s=review_after_s))
    business.described_from = NUMBER_MAX  # the default if its record has no value: an older broker did not check
    business.counters = Counter(json.loads(value)["counters"])
    business.materialised = decode_materialised_position(store.get(keys.STATE, keys.materialised_key(number)))
    restore(store, business)
    business.consumers = load_consumers(store, number)
    return business


def load_consumers(store: Store, number: int) -> dict[str, ConsumerState]:
    """Return the consumer groups of a business, as of the last applied entry."""
    values = (value for _, value in store.scan_prefix(keys.STATE, keys.consumer_prefix(number)))
    return {found.group: found for found in (decode_consumer(json.loads(value)) for value in values)}


def restore(store: Store, business: Business) -> None:
    """Set a business in memory back to its state on disk after the last applied entry."""
    value = store.get(keys.STATE, keys.core_key(business.number))
    blank = Business(business.number, business.name, business.reviews)
    _restore_record(business, json.loads(value) if value is not None else _blank_record(blank))
    _load_parts(store, business)
    _load_halves(store, business)


def _restore_record(business: Business, record: dict[str, Any]) -> None:
    """Set the fields of a business from its main record."""
    outcomes = tuple(
        half_messages.HalfOutcome(batch_no=n, digest=d, verdict=Verdict(v), next_offset=o)
        for n, d, v, o in record["outcomes"]
    )
    business.applying = half_messages.HalfState(
        epoch=record["epoch"],
        producer=record["producer"],
        last_batch=record["last_batch"],
        last_sequence=record["last_sequence"],
        next_offset=record["next_offset"],
        outcomes=outcomes,
        losses=loss.decode(record.get("losses", ())),
        mirror=decode_mirror(record.get("mirror")),
        home=decode_home(record.get("home")),
    )
    business.log_start = record["log_start"]
    business.nbytes, business.nbytes_trimmed = record["nbytes"], record["nbytes_trimmed"]
    business.epochs = tuple((epoch, start) for epoch, start in record["epochs"])
    business.committed_at_us, business.captured_at_us = record["committed_at_us"], record["captured_at_us"]
    business.marks = [
        QueueMark(at_us=at, sequence=sequence, next_offset=offset) for at, sequence, offset in record["marks"]
    ]
    business.described_from = record.get("described_from", business.described_from)
    business.log = _restore_log(business.number, record)


def _restore_log(number: int, record: dict[str, Any]) -> BusinessLog:
    """Return a business's log as the main record has it: up to the last applied entry."""
    applied = record["applied"]
    terms = TermCache(tuple((term, first) for term, first in record["terms"]))
    return BusinessLog(
        number,
        start=record["log_start_index"],
        end=applied + 1,
        committed=applied,
        applied=applied,
        durable_end=applied + 1,
        terms=terms.truncate(applied + 1),  # the terms of later entries are added with these entries
    )


def _load_parts(store: Store, business: Business) -> None:
    """Load the statistics of a business's tables, and its committed table versions."""
    number = business.number
    business.tables, business.schemas = {}, set()
    for key, value in store.scan_prefix(keys.STATE, keys.table_prefix(number)):
        business.tables[int.from_bytes(key[-4:], "big")] = TableFigures(**json.loads(value))
    for key, _ in store.scan_prefix(keys.STATE, keys.schema_prefix(number)):
        business.schemas.add((int.from_bytes(key[-8:-4], "big"), int.from_bytes(key[-4:], "big")))


def _load_halves(store: Store, business: Business) -> None:
    """Load the undecided half messages, and check their bodies."""
    halves = []
    business.envelopes = {}
    for key, value in store.scan_prefix(keys.STATE, keys.half_prefix(business.number)):
        found = decode_half(int.from_bytes(key[-8:], "big"), value)
        halves.append(found)
        body = read_body(store, business, found.index)
        if xxhash.xxh3_64_intdigest(body) != found.digest:
            raise damage_error(store.path, f"entry {found.index} of {business.name}'s log does not hash to its digest")
        business.envelopes[found.batch_no] = build_envelope(parse_body(body))
    business.applying = business.proposed = half_messages.with_halves(business.applying, halves)


def read_body(store: Store, business: Business, index: int) -> bytes:
    """Read a batch's body from the log entry at `index`, without filling the cache: old bodies are read once."""
    value = store.get(keys.RLOG, keys.log_key(business.number, index), fill_cache=False)
    if value is None:
        raise damage_error(store.path, f"entry {index} of {business.name}'s log is missing")
    return body_of(value)


def encode_half(found: half_messages.HalfMessage) -> bytes:
    """Return the record of an undecided half message."""
    return _HALF.pack(found.digest, found.first_sequence, found.count, found.nbytes, found.received_at_us, found.index)


def decode_half(batch_no: int, value: bytes) -> half_messages.HalfMessage:
    """Decode a record of `encode_half`."""
    digest, first_sequence, count, nbytes, received_at_us, index = _HALF.unpack(value)
    return half_messages.HalfMessage(
        batch_no=batch_no,
        digest=digest,
        first_sequence=first_sequence,
        count=count,
        nbytes=nbytes,
        received_at_us=received_at_us,
        index=index,
    )


def encode_schema(offset: int, schema: bytes) -> bytes:
    """Return the record of a table version: the offset at which it was described, and the encoded schema."""
    return _SCHEMA_OFFSET.pack(offset) + schema


def decode_schema(value: bytes) -> tuple[int, bytes]:
    """Return the offset and the encoded schema of a record of `encode_schema`."""
    return int(_SCHEMA_OFFSET.unpack_from(value)[0]), value[_SCHEMA_OFFSET.size :]


def read_schemas(store: Store, business: int) -> Iterator[tuple[int, change_pb2.TableSchema]]:
    """Yield the stored table versions, by table and oldest first, each with the offset at which it was described."""
    for _, value in store.scan_prefix(keys.STATE, keys.schema_prefix(business)):
        offset, content = decode_schema(value)
        yield offset, change_pb2.TableSchema.FromString(content)


def load_schemas(store: Store, business: int, table_id: int | None = None) -> list[tuple[int, TableSchema]]:
    """Return the versions of one table, or of all, with their offsets, in the order of `read_schemas`."""
    return [
        (offset, schemas_codec.from_wire(schema))
        for offset, schema in read_schemas(store, business)
        if table_id in (None, schema.table_id)
    ]


def consumer_record(consumer: ConsumerState) -> dict[str, Any]:
    """Return the record of a consumer group, to log and to store."""
    return {
        "group": consumer.group,
        "acknowledged": consumer.acknowledged,
        "kept": consumer.kept,
        "away_us": consumer.away_us,
        "updated_at_us": consumer.updated_at_us,
    }


def decode_consumer(record: dict[str, Any], updated_at_us: int = 0) -> ConsumerState:
    """Decode a record of `consumer_record`; an older record has only one position."""
    return ConsumerState(
        group=record["group"],
        acknowledged=record["acknowledged"],
        kept=record.get("kept", record["acknowledged"]),
        away_us=record.get("away_us", 0),
        updated_at_us=record.get("updated_at_us", updated_at_us),
    )


def save_consumer(batch: StoreBatch, business: int, consumer: ConsumerState) -> None:
    """Put the record of a consumer group into a write batch."""
    record = json.dumps(consumer_record(consumer)).encode()
    batch.put(keys.STATE, keys.consumer_key(business, consumer.group), record)


def save_table(batch: StoreBatch, business: int, table_id: int, figures: TableFigures) -> None:
    """Put the statistics of a table into a write batch."""
    record = {
        "namespace": figures.namespace,
        "name": figures.name,
        "changes": figures.changes,
        "last_sequence": figures.last_sequence,
        "rows": figures.rows,
    }
    batch.put(keys.STATE, keys.table_key(business, table_id), json.dumps(record).encode())


def encode_levels(begin: int, above: str, levels: Levels) -> bytes:
    """Encode the row filters that a set above reported, for a mirror whose full data began at log index `begin`."""
    filters = [[{"table": f.table, "predicate": f.predicate, "tables": f.tables} for f in level] for level in levels]
    return json.dumps({"begin": begin, "set": above, "levels": filters}).encode()


def load_levels(store: Store, business: int, found: Mirror | None) -> tuple[str, Levels | None]:
    """Return the set above, and the filters of all sets from the home down to this one; None = they are unknown."""
    if found is None:
        return "", ()
    above, levels = found.set, found.above
    heard = store.get(keys.STATE, keys.levels_key(business))
    record = json.loads(heard) if heard is not None else {}
    if record.get("begin") == found.begin:
        above, levels = record["set"], tuple(decode_filters(level) for level in record["levels"])
    if levels is None:
        return above, None
    return above, (*levels, found.where) if found.where else levels


def load_levels_of_store(store: Store, business: int) -> Levels | None:
    """Return the filters of `load_levels` from a store without writers, such as a checkpoint."""
    record = json.loads(store.get(keys.STATE, keys.core_key(business)) or b"{}")
    return load_levels(store, business, decode_mirror(record.get("mirror")))[1]
