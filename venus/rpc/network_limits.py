"""Limits of the messages of the directory and the overlay (network.proto, overlay.proto); a part of limits.py."""

from __future__ import annotations

from collections.abc import Mapping

from venus.model import NAME_CHARS_MAX
from venus.rpc.limit_rules import AddressRule, Bytes, ListRule, Name, Number, Rule

#: Digits of an identifier, and values of a digit.
DEPTH_MAX, BASE_MAX = 8, 64
HOPS_MAX = 64
#: Limit of the brokers that one message names.
BROKERS_MAX = 4096
BUDGET_MS_MAX = 60_000
LEASE_MS_MAX = 3_600_000
#: Limit of a load, in processor seconds a second.
LOAD_MAX = 10_000.0
#: A table is named by business and number, a subspace by a digit for each cut.
TABLE_CHARS_MAX, PATH_CHARS_MAX = 2 * NAME_CHARS_MAX, 200
#: Parts and interests of one installation, parts and changes of one request; the size of a message bounds the rest.
PARTS_MAX, INTERESTS_MAX, CHANGES_MAX = 10_000, 200_000, 100_000
COLUMNS_MAX = 2_000
KEYS_MAX = 100_000
KEY_BYTES_MAX = 1 << 20
_INFINITY = float("inf")
#: Sets of a directory, businesses that one of them names, and sites of `[cluster] near`.
SETS_MAX, SET_BUSINESSES_MAX, SITES_MAX = 200, 1_000, 200
SET_ADDRESSES_MAX = 100
SET_ID_CHARS_MAX, TROUBLE_CHARS_MAX = 100, 500

_U32 = Number(0, 2**32 - 1)
_NUMBER = Number(0, 2**62)
_COLUMN = Name(300)
_IDENTIFIER = Bytes(DEPTH_MAX)
_SET = Name(NAME_CHARS_MAX)
_OPTIONAL = Name(NAME_CHARS_MAX, may_be_empty=True)
_ADDRESSES = ListRule(SET_ADDRESSES_MAX, AddressRule())
_BUSINESSES = ListRule(SET_BUSINESSES_MAX, _SET)

NETWORK_RULES: Mapping[str, Mapping[str, Rule]] = {
    "WhereRequest": {"role": Name(20), "business": _OPTIONAL, "site": _OPTIONAL},
    "WhereAnswer": {"sets": ListRule(SETS_MAX)},
    "NamedSet": {"set": _SET, "addresses": _ADDRESSES, "rank": _U32},
    "NetworkReport": {
        "group": Name(2 * NAME_CHARS_MAX, may_be_empty=True),
        "sets": ListRule(SETS_MAX),
        "near": ListRule(SITES_MAX),
    },
    "ReportedSet": {
        "set": _SET,
        "set_id": Name(SET_ID_CHARS_MAX),
        "tier": Name(20),
        "level": Number(0, 100),
        "site": _OPTIONAL,
        "addresses": _ADDRESSES,
        "load": Number(0, 1),
        "lag_ms": _NUMBER,
        "trouble": Name(TROUBLE_CHARS_MAX, may_be_empty=True),
        "promoted": _BUSINESSES,
        "replaced": _BUSINESSES,
        "businesses": _BUSINESSES,
        "unready": _BUSINESSES,
        "age_ms": _U32,
    },
    "Nearness": {"site": _SET, "sets": ListRule(SETS_MAX, _SET)},
}

OVERLAY_RULES: Mapping[str, Mapping[str, Rule]] = {
    "OverlayGreeting": {
        "overlay": Name(NAME_CHARS_MAX),
        "base": Number(2, BASE_MAX),
        "depth": Number(1, DEPTH_MAX),
    },
    "OverlayBroker": {
        "address": AddressRule(),
        "cluster": _IDENTIFIER,
        "stamp": _NUMBER,
        "load": Number(0, LOAD_MAX),
        "age": _U32,
    },
    "OverlayExchange": {"level": Number(0, DEPTH_MAX), "entries": ListRule(BROKERS_MAX)},
    "RouteRequest": {
        "target": _IDENTIFIER,
        "hops": Number(0, HOPS_MAX),
        "sideways": ListRule(HOPS_MAX, AddressRule()),
        "expected": _IDENTIFIER,
        "budget_ms": Number(0, BUDGET_MS_MAX),
    },
    "RouteAnswer": {
        "cluster": _IDENTIFIER,
        "members": ListRule(BROKERS_MAX),
        "hops": Number(0, HOPS_MAX),
        "failed": _U32,
        "results": ListRule(BROKERS_MAX),
    },
    "Installation": {"origin": AddressRule(), "lease_ms": Number(1, LEASE_MS_MAX), "parts": ListRule(PARTS_MAX)},
    "InstalledPart": {
        "table": Name(TABLE_CHARS_MAX),
        "path": Name(PATH_CHARS_MAX),
        "added": ListRule(INTERESTS_MAX),
        "removed": ListRule(INTERESTS_MAX, _NUMBER),
    },
    "InterestEntry": {"number": _NUMBER, "equal": ListRule(COLUMNS_MAX), "between": ListRule(COLUMNS_MAX)},
    "EqualTo": {"column": _COLUMN, "keys": ListRule(KEYS_MAX, Bytes(KEY_BYTES_MAX))},
    "Between": {
        "column": _COLUMN,
        "low": Number(-_INFINITY, _INFINITY),
        "high": Number(-_INFINITY, _INFINITY),
    },
    "InstallAnswer": {"missing": ListRule(PARTS_MAX, _U32)},
    "MatchRequest": {"origin": AddressRule(), "parts": ListRule(PARTS_MAX)},
    "MatchPart": {
        "table": Name(TABLE_CHARS_MAX),
        "path": Name(PATH_CHARS_MAX),
        "count": Number(1, CHANGES_MAX),
        "numbers": ListRule(COLUMNS_MAX),
        "keys": ListRule(COLUMNS_MAX),
    },
    "NumberColumn": {"column": _COLUMN},
    "KeyColumn": {"column": _COLUMN, "values": ListRule(CHANGES_MAX, Bytes(KEY_BYTES_MAX))},
    "MatchAnswer": {"parts": ListRule(PARTS_MAX), "load": Number(0, LOAD_MAX)},
}
