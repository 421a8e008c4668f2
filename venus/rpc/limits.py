"""Limits of every number, name and count of a message, checked by its receiver, in both directions of a call.

One table; its part for the directory and the overlay is in network_limits.py. A field that is not in it has no range:
it is a digest, a flag, or bytes that have a digest of their own. Checks that depend on the state of a business (the
next batch, a Sequence that goes back) are in venus/broker/machine/half_messages.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from venus.errors import ProtocolError
from venus.model import NAME_CHARS_MAX
from venus.rpc.limit_rules import AddressRule, Bytes, ListRule, Name, Number, Rule
from venus.rpc.network_limits import NETWORK_RULES, OVERLAY_RULES, SET_ID_CHARS_MAX

#: A target keeps offsets, epochs and Sequences as signed 64-bit integers; messages use only half of their range.
NUMBER_MAX = 2**62
#: Highest epoch in a message. A broker accepts only lower ones (venus/broker/machine/half_messages.py), so later epochs
#: fit.
EPOCH_MAX = 2**56
#: Highest offset at which full data may be cut.
CUT_MAX = 2**56
TIME_US_MAX = 2**60  # in the year 38505
UINT32_MAX = 2**32 - 1
TABLES_MAX = 100_000
#: Limit of the subscriptions of one stream.
SUBSCRIPTIONS_MAX = 1_000_000
#: Bytes of the changes of one batch, for all subscriptions of a stream.
CHANGES_BYTES_MAX = 1 << 26
SPLITS_MAX = 100_000
LEASE_S_MAX = 30 * 86_400
CREDIT_BYTES_MAX = 1 << 40
PART_BYTES_MAX = 1 << 20
KEY_BYTES_MAX = 1 << 20
COUNT_MAX = 1 << 20
#: A body with the overhead of a log entry or of a stored row.
ENTRY_BYTES_MAX = (1 << 24) + (1 << 20)
#: A group's name contains the names of a business and a target; a holder's name contains a group's.
GROUP_CHARS_MAX, HOLDER_CHARS_MAX = 2 * NAME_CHARS_MAX, 3 * NAME_CHARS_MAX


#: Limit of the addresses of a home's brokers.
ADDRESSES_MAX = 100
#: A home term counts promotions: a term that could never be exceeded must not come from outside.
HOME_TERM_MAX = 1_000_000
#: Ids of the networks that a store belongs to.
NETWORKS_MAX, NETWORK_CHARS_MAX = 100, 64
#: Characters of a row filter in its canonical form.
PREDICATE_CHARS_MAX = 40_000
#: Sets on the way from the home, each of which may choose rows.
LEVELS_MAX = 100
#: Limits of an adapter's report (reports.py).
REPORTED_TABLES_MAX = 256
REPORTED_NAME_CHARS_MAX = 300
REPORTED_REASON_CHARS_MAX = 500
REPORTED_MOMENT_CHARS_MAX = 40
REPORTED_ROW_COUNTS_MAX = 1_000

_ANY = Number(0, NUMBER_MAX)
_EPOCH = Number(0, EPOCH_MAX)
_CUT = Number(0, CUT_MAX)
_FROM_1 = Number(1, NUMBER_MAX)
_U32 = Number(0, UINT32_MAX)
_TIME = Number(-TIME_US_MAX, TIME_US_MAX)
_BUSINESS = Name(NAME_CHARS_MAX)
_GROUP = Name(GROUP_CHARS_MAX)
_SNAPSHOT = Name(64)
_VERDICT = Number(0, 2)
_TABLE_IDS = ListRule(TABLES_MAX, _U32)
_ONLY = ListRule(TABLES_MAX, Name(REPORTED_NAME_CHARS_MAX))
_WHERE = ListRule(TABLES_MAX)
_NETWORKS = ListRule(NETWORKS_MAX, Name(NETWORK_CHARS_MAX))

RULES: Mapping[str, Mapping[str, Rule]] = {
    "ProducerFrame": {"halves": ListRule(COUNT_MAX), "decisions": ListRule(COUNT_MAX)},
    "Init": {
        "business": _BUSINESS,
        "producer": Name(HOLDER_CHARS_MAX, may_be_empty=True),
        "source_epoch": _EPOCH,
        "source_last_batch": _ANY,
        "owner": Name(HOLDER_CHARS_MAX, may_be_empty=True),
    },
    "Committed": {"epoch": _EPOCH, "last_batch": _ANY, "next_sequence": _ANY},
    "Half": {"batch_no": _FROM_1},
    "Squeezed": {"number": _U32, "size": Number(0, UINT32_MAX)},
    "Decision": {"epoch": _EPOCH, "batch_no": _FROM_1, "verdict": _VERDICT},
    "HalfRef": {
        "batch_no": _FROM_1,
        "first_sequence": _ANY,
        "count": _U32,
        "received_at_us": _TIME,
        "reviews": _U32,
        "bytes": _ANY,
        "waited_ms": _ANY,
    },
    "BrokerFrame": {"halves_through": _ANY},
    "InitAck": {
        "epoch": Number(1, EPOCH_MAX),
        "last_batch": _ANY,
        "last_sequence": _ANY,
        "next_offset": _ANY,
        "undecided": ListRule(COUNT_MAX),
        "tables": ListRule(COUNT_MAX),
    },
    "KnownTable": {"table_id": _U32, "version": _U32, "last_sequence": _ANY},
    "Review": {"halves": ListRule(COUNT_MAX)},
    "Resend": {"batch_no": _FROM_1},
    "Throttle": {"retry_after_ms": Number(0, 3_600_000)},
    "Decided": {"verdict": _VERDICT, "batch_no": _ANY, "next_offset": _ANY},
    "ConsumerFrame": {
        "acknowledge": _ANY,
        "credit_bytes": Number(0, CREDIT_BYTES_MAX),
        "unaccounted_rows": Number(-NUMBER_MAX, NUMBER_MAX),
        "kept": _ANY,
    },
    "Open": {
        "business": _BUSINESS,
        "group": _GROUP,
        "offset": Number(-1, NUMBER_MAX),
        "epoch": _EPOCH,
        "credit_bytes": Number(0, CREDIT_BYTES_MAX),
        "table_ids": _TABLE_IDS,
        "kept": _ANY,
        "only": _ONLY,
        "set_id": Name(SET_ID_CHARS_MAX, may_be_empty=True),
        "where": _WHERE,
        "rows_at": _ANY,
    },
    "ListenerFrame": {
        "begin": ListRule(SUBSCRIPTIONS_MAX),
        "end": ListRule(SUBSCRIPTIONS_MAX, _U32),
        "credit_bytes": Number(0, CREDIT_BYTES_MAX),
        "acknowledge": _ANY,
    },
    "ListenerOpen": {
        "business": _BUSINESS,
        "group": Name(GROUP_CHARS_MAX, may_be_empty=True),
        "client": Name(NAME_CHARS_MAX, may_be_empty=True),
        "credit_bytes": Number(0, CREDIT_BYTES_MAX),
    },
    "SubscriptionRequest": {
        "number": Number(1, UINT32_MAX),
        "table": Name(REPORTED_NAME_CHARS_MAX),
        "predicate": Bytes(PREDICATE_CHARS_MAX),
        "columns": ListRule(SUBSCRIPTIONS_MAX, Name(REPORTED_NAME_CHARS_MAX)),
        "offset": Number(-2, NUMBER_MAX),
        "epoch": _EPOCH,
    },
    "ChangesFrame": {
        "kept": _ANY,
        "tables": ListRule(TABLES_MAX),
        "news": ListRule(SUBSCRIPTIONS_MAX),
        "changes": ListRule(COUNT_MAX),
    },
    "SubscriptionNews": {
        "number": _U32,
        "state": Number(0, 3),
        "table_id": _U32,
        "kind": Name(64, may_be_empty=True),
        "error": Bytes(PREDICATE_CHARS_MAX),
        "hint": Bytes(PREDICATE_CHARS_MAX),
    },
    "ChangedRows": {
        "table_id": _U32,
        **dict.fromkeys(("stored", "stored_sizes", "rows", "subscriptions", "operations"), Bytes(CHANGES_BYTES_MAX)),
        "replayed": ListRule(SUBSCRIPTIONS_MAX, _U32),
        "loaded": _U32,
        "next_offset": _ANY,
        "epoch": _EPOCH,
        "committed_at_us": _TIME,
    },
    "RowsIdentity": {"set": Name(NAME_CHARS_MAX, may_be_empty=True), "tables": ListRule(TABLES_MAX)},
    "TableRows": {
        "table_id": _U32,
        "name": Name(REPORTED_NAME_CHARS_MAX),
        "rows": Bytes(4 * REPORTED_REASON_CHARS_MAX),
    },
    "RowLevels": {"levels": ListRule(LEVELS_MAX)},
    "RowLevel": {"where": _WHERE},
    "RowFilter": {"table": Name(REPORTED_NAME_CHARS_MAX), "predicate": Bytes(PREDICATE_CHARS_MAX), "tables": _WHERE},
    "TableVersion": {"table_id": _U32, "version": _U32},
    "AdapterReport": {
        "tables": ListRule(REPORTED_TABLES_MAX),
        "tables_left_out": _U32,
        "quarantined": _ANY,
        "cut_over": Name(REPORTED_MOMENT_CHARS_MAX, may_be_empty=True),
    },
    "AdapterFigures": {
        "place": Name(REPORTED_NAME_CHARS_MAX, may_be_empty=True),
        "rows": ListRule(REPORTED_ROW_COUNTS_MAX),
        "fills": ListRule(REPORTED_TABLES_MAX),
        "counted_at_us": _TIME,
        "compares_every_s": _U32,
    },
    "TableRowCount": {"table_id": _U32, "rows": _ANY},
    "TableFill": {
        "table_id": _U32,
        "name": Name(REPORTED_NAME_CHARS_MAX),
        "rows": _ANY,
        "rows_expected": _ANY,
    },
    "Comparison": {
        "ended_at_us": _TIME,
        "verdict": Name(20),
        "leg": Name(REPORTED_NAME_CHARS_MAX, may_be_empty=True),
        "tables": _U32,
        "rows": _ANY,
        "different": _ANY,
        "undecided": _ANY,
    },
    "TableReport": {
        "table_id": _U32,
        "name": Name(REPORTED_NAME_CHARS_MAX),
        "state": Name(20),
        "reason": Name(REPORTED_REASON_CHARS_MAX, may_be_empty=True),
        "rows": Name(REPORTED_REASON_CHARS_MAX, may_be_empty=True),
        "columns": Name(REPORTED_REASON_CHARS_MAX, may_be_empty=True),
        "quarantined": _ANY,
    },
    "DeliveryFrame": {"increments": ListRule(COUNT_MAX), "progress": _ANY},
    "Increment": {
        "base_offset": _ANY,
        "count": _U32,
        "epoch": _EPOCH,
        "committed_at_us": _TIME,
        "state": Number(0, 3),
    },
    "Opened": {
        "next_offset": _ANY,
        "log_start": _ANY,
        "epoch": _EPOCH,
        "kept": _ANY,
        "networks": _NETWORKS,
        "replicas": ListRule(ADDRESSES_MAX),
    },
    "ReadReplica": {"address": AddressRule(), "site": Name(NAME_CHARS_MAX, may_be_empty=True)},
    "OpenSnapshotRequest": {
        "business": _BUSINESS,
        "table_ids": _TABLE_IDS,
        "splits": Number(0, SPLITS_MAX),
        "lease_s": Number(0, LEASE_S_MAX),
        "holder": Name(HOLDER_CHARS_MAX, may_be_empty=True),
        "only": _ONLY,
        "where": _WHERE,
    },
    "Split": {
        "table_id": _U32,
        "low": Bytes(KEY_BYTES_MAX),
        "high": Bytes(KEY_BYTES_MAX),
        "rows_estimate": _ANY,
        "bytes_estimate": _ANY,
    },
    "Snapshot": {
        "snapshot_id": _SNAPSHOT,
        "networks": _NETWORKS,
        "where": _WHERE,
        "offset": _ANY,
        "epoch": _EPOCH,
        "sequence": _ANY,
        "last_batch": _ANY,
        "schemas": ListRule(COUNT_MAX),
        "splits": ListRule(COUNT_MAX),
        "lease_s": Number(0, LEASE_S_MAX),
    },
    "TableTotals": {"table_id": _U32, "rows": _ANY},
    "SnapshotTotals": {"tables": ListRule(TABLES_MAX)},
    "SnapshotRef": {"snapshot_id": _SNAPSHOT},
    "ReadSplitRequest": {
        "snapshot_id": _SNAPSHOT,
        "after": Bytes(KEY_BYTES_MAX),
        "chunk_bytes": Number(0, 1 << 24),
    },
    "ClusterMember": {"broker": Name(NAME_CHARS_MAX), "store": Name(64)},
    "Greeting": {"cluster": Name(64)},
    "FollowerFrame": {"fetches": ListRule(COUNT_MAX)},
    "FetchEntries": {
        "business": _BUSINESS,
        "term": _FROM_1,
        "index": _FROM_1,
        "last_term": _ANY,
        "version": _ANY,
        "start": _ANY,
    },
    "LeaderFrame": {"answers": ListRule(COUNT_MAX), "part": Bytes(PART_BYTES_MAX)},
    "FetchAnswer": {
        "business": _BUSINESS,
        "outcome": Number(0, 3),
        "term": _ANY,
        "index": _ANY,
        "last_term": _ANY,
        "high": _ANY,
        "known_term": _ANY,
        "end": _ANY,
        "entries": ListRule(COUNT_MAX, Bytes(ENTRY_BYTES_MAX)),
    },
    "CopyRequest": {
        "business": _BUSINESS,
        "copy": Name(64, may_be_empty=True),
        "area": Number(0, 255),
        "after": Bytes(KEY_BYTES_MAX),
    },
    "CopyFrame": {
        "area": Number(0, 255),
        "keys": ListRule(COUNT_MAX, Bytes(KEY_BYTES_MAX)),
        "values": ListRule(COUNT_MAX, Bytes(ENTRY_BYTES_MAX)),
        "frames": _ANY,
        "copy": Name(64, may_be_empty=True),
        "records_expected": _ANY,
    },
    "BallotRequest": {"business": _BUSINESS, "term": _FROM_1},
    "BallotAnswer": {"last_term": _ANY, "end": _ANY, "high": _ANY},
    "StatusRequest": {
        "business": Name(NAME_CHARS_MAX, may_be_empty=True),
        "tables_max": _U32,
        "tables_after": _U32,
        "tables": _ONLY,
    },
    "DecideRequest": {"business": _BUSINESS, "batch_no": _FROM_1, "verdict": _VERDICT},
    "ForgetRequest": {"business": _BUSINESS, "group": _GROUP},
    "ForgetBusinessRequest": {"business": _BUSINESS},
    "CloseLossesRequest": {
        "business": _BUSINESS,
        "group": Name(GROUP_CHARS_MAX, may_be_empty=True),
        "terms": ListRule(COUNT_MAX, _FROM_1),
        "home_terms": ListRule(COUNT_MAX, _FROM_1),
    },
    "CloseLossesAnswer": {"waiting_for": ListRule(COUNT_MAX)},
    "Home": {
        "set": Name(NAME_CHARS_MAX),
        "home_term": Number(1, HOME_TERM_MAX),
        "addresses": ListRule(ADDRESSES_MAX, AddressRule()),
    },
    "NetworkStatus": {"networks": _NETWORKS},  # a mirror keeps them
    "PromoteRequest": {"business": _BUSINESS},
    "Promoted": {
        "business": _BUSINESS,
        "set": Name(NAME_CHARS_MAX),
        "old_set": Name(NAME_CHARS_MAX, may_be_empty=True),
        "home_term": _FROM_1,
        "next_offset": _ANY,
        "last_batch": _ANY,
        "last_committed_at_us": _TIME,
    },
    "StepDownRequest": {"business": _BUSINESS},
    "TableSchema": {"table_id": _U32, "version": _U32},
    "MirrorBegin": {
        "set": Name(NAME_CHARS_MAX, may_be_empty=True),
        "only": _ONLY,
        "offset": _CUT,
        "epoch": Number(0, EPOCH_MAX // 2),
        "sequence": _CUT,
        "last_batch": _CUT,
        "rows": _ANY,
        "schemas": ListRule(COUNT_MAX),
        "splits": ListRule(COUNT_MAX),
        "where": _WHERE,
    },
    "TableChanges": {
        "table_id": _U32,
        "schema_version": _U32,
        "kind": Number(0, 4),
        "count": Number(1, UINT32_MAX),
        "sweep_before": _ANY,
    },
    "BatchBody": {
        "batch_no": _FROM_1,
        "first_sequence": _FROM_1,
        "count": _U32,
        "cut": _ANY,
        "captured_at_us": _TIME,
        "schemas": ListRule(TABLES_MAX),
        "tables": ListRule(COUNT_MAX),
        "lost": _U32,
        "left_out": _U32,
    },
    **NETWORK_RULES,
    **OVERLAY_RULES,
}


def check(message: Message, where: str = "") -> None:
    """Check a message and all its parts. Raises ProtocolError, which names the field, its value and range."""
    plan = _plan(message.DESCRIPTOR)
    for field, low, high in plan.numbers:  # without a call for each: every frame comes here, at both ends
        if not low <= getattr(message, field) <= high:
            raise _violation(message, field, Number(low, high), where)
    for field, rule in plan.rules:
        if rule.complaint(getattr(message, field)):
            raise _violation(message, field, rule, where)
    for field, repeated in plan.parts:
        if repeated:
            for part in getattr(message, field):
                check(part, where)
        elif message.HasField(field):
            check(getattr(message, field), where)


def _violation(message: Message, field: str, rule: Rule, where: str) -> ProtocolError:
    """Return the error for a field that is out of its range."""
    return ProtocolError(f"{where}{message.DESCRIPTOR.name}.{field} {rule.complaint(getattr(message, field))}")


@dataclass(frozen=True, slots=True)
class _Plan:
    """Checks of one kind of message: numbers, other fields, and nested messages, repeated or not."""

    numbers: tuple[tuple[str, float, float], ...]
    rules: tuple[tuple[str, Rule], ...]
    parts: tuple[tuple[str, bool], ...]


@cache
def _plan(kind: Descriptor) -> _Plan:
    """Return the checks of a kind of message, prepared once."""
    parts = tuple(
        (field.name, is_repeated(field))
        for field in kind.fields
        if field.message_type is not None and _has_rules(field.message_type)
    )
    own = RULES.get(kind.name, {})
    return _Plan(
        numbers=tuple((field, rule.low, rule.high) for field, rule in own.items() if isinstance(rule, Number)),
        rules=tuple((field, rule) for field, rule in own.items() if not isinstance(rule, Number)),
        parts=parts,
    )


@cache
def _has_rules(kind: Descriptor) -> bool:
    """Return whether a kind of message, or a part of it, has rules."""
    inside = [field.message_type for field in kind.fields if field.message_type not in (None, kind)]
    return kind.name in RULES or any(map(_has_rules, inside))


def is_repeated(field: FieldDescriptor) -> bool:
    """Return whether a field is repeated."""
    return bool(field.is_repeated)
