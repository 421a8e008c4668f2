"""Stored form of the records of brokers and businesses: JSON with a format version, validated when it is read."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from venus.errors import Fenced, ProtocolError, Refused
from venus.model import NAME_CHARS_MAX, is_address, is_name
from venus.network.scheduling import Load
from venus.replication.records import InstallationProgress, Leadership, LiveBroker, LossWindow, Member, Policy

FORMAT = 1
VALUE_BYTES_MAX = 64 << 10
MEMBERS_MAX = 64
UNCLEAN_TERMS_MAX = 1000
TERM_MAX = (1 << 63) - 1
#: Maximum term of a record; messages allow twice that (venus/rpc/limits.py), so that later terms fit.
RECORD_TERM_MAX = 1 << 61
TEXT_CHARS_MAX = 300
GROUP_CHARS_MAX = 2 * NAME_CHARS_MAX
INSTALLING_MAX = 100
REASON_CHARS_MAX = 1000
#: Stands for a reason that cannot be shown: a broker that has one is unhealthy all the same.
UNPRINTABLE_REASON = "unhealthy for a reason that is not printable"
_BROKER = {"broker", "store", "address", "site", "priority", "draining", "version"}
_BUSINESS = {
    "business",
    "term",
    "leader",
    "in_sync",
    "last_in_sync",
    "replicas",
    "policy",
    "min_in_sync",
    "unclean_terms",
}
#: Written only if they differ from the default, so that brokers of an older version can read the others.
_BROKER_MORE = {"unhealthy": "", "installing": [], "load": []}
_BUSINESS_MORE = {"successor": "", "leaving": [], "replicas_wanted": 0, "losses": [], "min_in_sync_wanted": 0}
_COUNTS = ("records", "records_expected", "nbytes", "bytes_per_s")
_RESOURCES = ("memory", "cpu", "disk", "network")
_LOSS = ("term", "first_offset", "end_offset", "first_batch", "last_batch", "rows")


def encode_broker(broker: LiveBroker, writer: str = "") -> bytes:
    """Encode a broker; `writer` marks the process that stores it."""
    return _encode(
        {
            "broker": broker.member.broker,
            "store": broker.member.store,
            "address": broker.address,
            "site": broker.site,
            "priority": broker.priority,
            "draining": broker.draining,
            "version": broker.version,
            **_non_default(
                _BROKER_MORE, broker.unhealthy, [asdict(found) for found in broker.installing], _encode_load(broker)
            ),
        },
        writer,
    )


def decode_broker(key: str, value: bytes) -> LiveBroker:
    """Decode a broker. Raises ProtocolError."""
    found = _decode(key, value, _BROKER, _BROKER_MORE)
    texts = [found["address"], found["site"], found["version"]]
    _check(key, all(isinstance(text, str) and len(text) <= TEXT_CHARS_MAX for text in texts), "a text is too long")
    _check(key, all(text.isprintable() for text in texts), "a text is not printable")
    _check(key, is_address(found["address"]), "its address is invalid")
    _check(key, _is_integer(found["priority"], -(1 << 31), 1 << 31), "its priority is invalid")
    _check(key, isinstance(found["draining"], bool), "draining is neither true nor false")
    return LiveBroker(
        member=_decode_member(key, [found["broker"], found["store"]]),
        address=found["address"],
        site=found["site"],
        priority=found["priority"],
        draining=found["draining"],
        version=found["version"],
        unhealthy=_decode_reason(key, found["unhealthy"]),
        installing=tuple(
            _decode_installing(key, one) for one in _decode_list(key, found["installing"], INSTALLING_MAX)
        ),
        **_decode_load(key, found["load"]),
    )


def _encode_load(broker: LiveBroker) -> list[Any]:
    """Return a broker's load report as a list; [] = it has reported none."""
    if broker.load is None:
        return []
    return [broker.report, broker.businesses, *(getattr(broker.load, name) for name in _RESOURCES)]


def _decode_load(key: str, value: object) -> dict[str, Any]:
    """Return the fields of LiveBroker that are in a stored load report. Raises ProtocolError."""
    found = _decode_list(key, value, 2 + len(_RESOURCES))
    if not found:
        return {}
    shares = found[2:]
    valid = len(shares) == len(_RESOURCES) and all(_is_integer(number, 0, TERM_MAX) for number in found[:2])
    valid = valid and all(type(share) in (int, float) and 0 <= share <= 1 for share in shares)
    _check(key, valid, "its load is invalid")
    return {
        "report": found[0],
        "businesses": found[1],
        "load": Load(**dict(zip(_RESOURCES, map(float, shares), strict=True))),
    }


def _decode_reason(key: str, value: object) -> str:
    """Return why a broker is unhealthy; empty = it is healthy. Raises ProtocolError."""
    _check(key, isinstance(value, str) and len(value) <= REASON_CHARS_MAX, "its health is invalid")
    return str(value) if str(value).isprintable() else UNPRINTABLE_REASON


def _decode_installing(key: str, value: object) -> InstallationProgress:
    """Decode how far a broker has installed a copy of the full data. Raises ProtocolError."""
    what = "an installation is invalid"
    _check(key, isinstance(value, dict) and value.keys() == InstallationProgress.__dataclass_fields__.keys(), what)
    assert isinstance(value, dict)
    _check(key, all(isinstance(value[name], str) and is_name(value[name]) for name in ("business", "leader")), what)
    _check(key, all(_is_integer(value[name], 0, TERM_MAX) for name in _COUNTS), what)
    _check(key, _is_integer(value["seconds_left"], -1, TERM_MAX), what)
    return InstallationProgress(**value)


def encode_leadership(leadership: Leadership, writer: str = "") -> bytes:
    """Encode a business; `writer` marks the process that stores it. Raises ProtocolError if the record is too large."""
    leader = leadership.leader
    value = _encode(
        {
            "business": leadership.business,
            "term": leadership.term,
            "leader": None if leader is None else [leader.broker, leader.store],
            "in_sync": [[m.broker, m.store] for m in sorted(leadership.in_sync)],
            "last_in_sync": [[m.broker, m.store] for m in sorted(leadership.last_in_sync)],
            "replicas": list(leadership.replicas),
            "policy": leadership.policy.value,
            "min_in_sync": leadership.min_in_sync,
            "unclean_terms": list(leadership.unclean_terms),
            **_non_default(
                _BUSINESS_MORE,
                leadership.successor,
                list(leadership.leaving),
                leadership.replicas_wanted,
                [_encode_loss(loss) for loss in leadership.losses],
                leadership.min_in_sync_wanted,
            ),
        },
        writer,
    )
    decode_leadership(leadership.business, value, 0)  # an unreadable record must not be stored
    return value


def decode_leadership(key: str, value: bytes, version: int) -> Leadership:
    """Decode a business. Raises ProtocolError."""
    found = _decode(key, value, _BUSINESS, _BUSINESS_MORE)
    _check(key, isinstance(found["business"], str) and is_name(found["business"]), "its name is invalid")
    _check(key, _is_integer(found["term"], 0, RECORD_TERM_MAX), "its term is invalid")
    _check(key, _is_integer(found["min_in_sync"], 1, MEMBERS_MAX), "min_in_sync is invalid")
    _check(key, found["policy"] in [policy.value for policy in Policy], "its policy is unknown")
    replicas, unclean = (
        _decode_list(key, found["replicas"], MEMBERS_MAX),
        _decode_list(key, found["unclean_terms"], UNCLEAN_TERMS_MAX),
    )
    _check(key, all(isinstance(name, str) and is_name(name) for name in replicas), "a replica's name is invalid")
    _check(key, all(_is_integer(term, 1, TERM_MAX) for term in unclean), "an unclean term is invalid")
    successor, leaving = found["successor"], _decode_list(key, found["leaving"], MEMBERS_MAX)
    _check(key, isinstance(successor, str) and (not successor or is_name(successor)), "its successor is invalid")
    _check(key, all(isinstance(name, str) and is_name(name) for name in leaving), "a replica's name is invalid")
    _check(key, _is_integer(found["replicas_wanted"], 0, MEMBERS_MAX), "replicas_wanted is invalid")
    _check(key, _is_integer(found["min_in_sync_wanted"], 0, MEMBERS_MAX), "min_in_sync_wanted is invalid")
    return Leadership(
        business=found["business"],
        term=found["term"],
        leader=None if found["leader"] is None else _decode_member(key, found["leader"]),
        in_sync=_decode_members(key, found["in_sync"]),
        last_in_sync=_decode_members(key, found["last_in_sync"]),
        replicas=tuple(replicas),
        policy=Policy(found["policy"]),
        min_in_sync=found["min_in_sync"],
        unclean_terms=tuple(unclean),
        losses=_decode_losses(key, found["losses"]),
        version=version,
        successor=successor,
        leaving=tuple(leaving),
        replicas_wanted=found["replicas_wanted"],
        min_in_sync_wanted=found["min_in_sync_wanted"],
    )


def writer_of(value: bytes) -> str:
    """Return the mark of the process that stored a value; "" if it has none or cannot be read."""
    try:
        found = json.loads(value) if len(value) <= VALUE_BYTES_MAX else None
    except ValueError:
        return ""
    return str(found.get("writer", "")) if isinstance(found, dict) else ""


def encode_identity(cluster_id: str) -> bytes:
    """Encode the id of a cluster."""
    return _encode({"id": cluster_id}, "")


def decode_identity(key: str, value: bytes) -> str:
    """Decode the id of a cluster. Raises ProtocolError."""
    found = _decode(key, value, {"id"})["id"]
    _check(key, isinstance(found, str) and is_name(found), "its id is invalid")
    return str(found)


def encode_forgotten(business: str, term: int) -> bytes:
    """Encode the last term of a forgotten business."""
    return _encode({"business": business, "term": term}, "")


def decode_forgotten(key: str, value: bytes) -> int:
    """Decode the last term of a forgotten business. Raises ProtocolError."""
    term = _decode(key, value, {"business", "term"})["term"]
    _check(key, _is_integer(term, 0, TERM_MAX), "its term is invalid")
    return int(term)


def encode_newest(store: str, sequence: int) -> bytes:
    """Encode the newest write of a store."""
    return _encode({"store": store, "sequence": sequence}, "")


def decode_newest(key: str, value: bytes) -> int:
    """Decode the newest write of a store. Raises ProtocolError."""
    sequence = _decode(key, value, {"store", "sequence"})["sequence"]
    _check(key, _is_integer(sequence, 0, TERM_MAX), "its sequence is invalid")
    return int(sequence)


def encode_draining(broker: str) -> bytes:
    """Encode the draining mark of a broker."""
    return _encode({"broker": broker}, "")


def decode_draining(key: str, value: bytes) -> str:
    """Decode the broker of a draining mark. Raises ProtocolError."""
    broker = _decode(key, value, {"broker"})["broker"]
    _check(key, isinstance(broker, str) and is_name(broker), "its name is invalid")
    return str(broker)


def _non_default(defaults: dict[str, Any], *values: Any) -> dict[str, Any]:
    """Return the values that differ from their defaults."""
    return {name: value for (name, usual), value in zip(defaults.items(), values, strict=True) if value != usual}


def _encode(fields: dict[str, Any], writer: str) -> bytes:
    """Encode a record as JSON with its format version."""
    marked = fields | ({"writer": writer} if writer else {})
    return json.dumps({"format": FORMAT} | marked, ensure_ascii=False, separators=(",", ":")).encode()


def _decode(key: str, value: bytes, wanted: set[str], more: dict[str, Any] | None = None) -> dict[str, Any]:
    """Decode a record with the `wanted` fields, and the defaults of `more`. Raises ProtocolError."""
    _check(key, len(value) <= VALUE_BYTES_MAX, f"it has {len(value):,} bytes, at most {VALUE_BYTES_MAX:,} are read")
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        found = None
    _check(key, isinstance(found, dict), "it is not JSON")
    stored = found.get("format")
    newer = isinstance(stored, int) and stored > FORMAT
    what = f"a newer VENUS has written it (format {stored})" if newer else f"its format is {str(stored)[:20]!r}"
    _check(key, stored == FORMAT, what)
    usual = more or {}
    missing, unknown = wanted - found.keys(), found.keys() - wanted - usual.keys() - {"format", "writer"}
    named = ", ".join(str(name)[:40] for name in sorted(missing or unknown)[:5])
    _check(key, not missing and not unknown, f"{named} {'missing' if missing else 'unknown'}")
    return {**usual, **found}


def _check(key: str, valid: bool, what: str) -> None:
    """Raise ProtocolError unless `valid`; `what` says what is wrong with the record."""
    if not valid:
        raise ProtocolError(
            f"{key} cannot be used: {what}",
            hint="let every broker have the same version of VENUS; if the key was changed by hand, correct it",
        )


def _encode_loss(loss: LossWindow) -> list[Any]:
    return [*(getattr(loss, name) for name in _LOSS), list(loss.verified)]


def _decode_losses(key: str, value: object) -> tuple[LossWindow, ...]:
    return tuple(_decode_loss(key, found) for found in _decode_list(key, value, UNCLEAN_TERMS_MAX))


def _decode_loss(key: str, found: object) -> LossWindow:
    numbers, verified = (found[:-1], found[-1]) if isinstance(found, list) and found else ([], None)
    valid = len(numbers) == len(_LOSS) and all(_is_integer(number, -1, TERM_MAX) for number in numbers)
    _check(key, valid and numbers[0] > 0 and numbers[1] >= 0, "a loss window is invalid")
    groups = _decode_list(key, verified, UNCLEAN_TERMS_MAX)
    named = all(isinstance(name, str) and is_name(name, GROUP_CHARS_MAX) for name in groups)
    _check(key, named, "a group's name is invalid")
    return LossWindow(**dict(zip(_LOSS, numbers, strict=True)), verified=tuple(groups))


def _is_integer(value: object, low: int, high: int) -> bool:
    """Return whether a value is an integer within a range; a bool is none."""
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _decode_list(key: str, value: object, most: int) -> list[Any]:
    """Return a value that must be a list of at most `most` items. Raises ProtocolError."""
    _check(key, isinstance(value, list) and len(value) <= most, f"a list is missing or has more than {most} entries")
    assert isinstance(value, list)
    return value


def _decode_members(key: str, value: object) -> frozenset[Member]:
    return frozenset(_decode_member(key, pair) for pair in _decode_list(key, value, MEMBERS_MAX))


def _decode_member(key: str, pair: object) -> Member:
    valid = isinstance(pair, list) and len(pair) == 2 and all(isinstance(part, str) and is_name(part) for part in pair)
    _check(key, valid, "a broker has no valid name or store")
    assert isinstance(pair, list)
    return Member(broker=pair[0], store=pair[1])


def other_broker_error(living: LiveBroker, broker: LiveBroker) -> Refused | None:
    """Return the error for `broker` if `living`, which has its id, is not the same broker before a restart."""
    if living.member == broker.member and living.address == broker.address:
        return None
    if living.address != broker.address:
        what, way = f"at {living.address}", "give each broker an id of its own ([cluster] broker_id)"
    else:
        what = f"with another store ({living.member.store})"
        way = "its lease ends within seconds of its end; if its disk was replaced, start it again then"
    return Refused(f"another broker with the id {broker.member.broker} is alive, {what}", hint=way)


def replaced_error(broker: str) -> Fenced:
    """Return the error for a process that was replaced by another process with the same id, address and store."""
    return Fenced(
        f"another process has the id, the address and the data of broker {broker}, and was started after this one",
        hint="one of the two has a copy of the other's data directory: stop it permanently; each broker needs its own",
    )
