"""Records of the coordinator are validated before they are used."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from venus.coordination import stored_records
from venus.errors import ProtocolError
from venus.replication.records import Leadership, LiveBroker, LossWindow, Member, Policy

KEY = "/venus/shop/businesses/main"
A, B = Member(broker="a", store="sa"), Member(broker="b", store="sb")
MAIN = Leadership(
    business="main",
    term=3,
    leader=A,
    in_sync=frozenset({A, B}),
    last_in_sync=frozenset({B}),
    replicas=("a", "b"),
    policy=Policy.AVAILABILITY,
    min_in_sync=2,
    unclean_terms=(2, 3),
    version=9,
    losses=(
        LossWindow(term=2, first_offset=10, end_offset=28, first_batch=2, last_batch=4, rows=15, verified=("main/x",)),
        LossWindow(term=3, first_offset=30, first_batch=7),
    ),
)
LIVING = LiveBroker(member=A, address="[::1]:7400", site="north", priority=-1, draining=True, version="0.2.0")


def change(value: bytes, **fields: object) -> bytes:
    return json.dumps(json.loads(value) | fields).encode()


def test_a_stored_record_is_read_as_it_was_written() -> None:
    assert stored_records.decode_leadership(KEY, stored_records.encode_leadership(MAIN, "mark"), 9) == MAIN
    assert stored_records.decode_broker(KEY, stored_records.encode_broker(LIVING)) == LIVING
    assert stored_records.decode_identity(KEY, stored_records.encode_identity("ab12")) == "ab12"
    assert stored_records.writer_of(stored_records.encode_leadership(MAIN, "mark")) == "mark"
    assert (
        stored_records.writer_of(stored_records.encode_leadership(MAIN))
        == stored_records.writer_of(b"{")
        == stored_records.writer_of(b"[]")
        == ""
    )


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"format": 2}, "a newer VENUS has written it (format 2)"),
        ({"format": "1"}, "its format is '1'"),
        ({"format": None}, "its format is 'None'"),
        ({"surprise": 1}, "surprise unknown"),
        ({"business": ""}, "its name is invalid"),
        ({"business": 7}, "its name is invalid"),
        ({"term": -1}, "its term is invalid"),
        ({"term": 1 << 63}, "its term is invalid"),
        ({"term": True}, "its term is invalid"),
        ({"term": 1.5}, "its term is invalid"),
        ({"leader": "a"}, "a broker has no valid name or store"),
        ({"leader": ["a"]}, "a broker has no valid name or store"),
        ({"leader": ["a", ""]}, "a broker has no valid name or store"),
        ({"in_sync": None}, "a list is missing or has more than 64 entries"),
        ({"in_sync": [["a", "s"]] * 65}, "a list is missing or has more than 64 entries"),
        ({"in_sync": ["a"]}, "a broker has no valid name or store"),
        ({"last_in_sync": {}}, "a list is missing or has more than 64 entries"),
        ({"replicas": ["a\n"]}, "a replica's name is invalid"),
        ({"policy": "both"}, "its policy is unknown"),
        ({"policy": []}, "its policy is unknown"),
        ({"min_in_sync": 0}, "min_in_sync is invalid"),
        ({"unclean_terms": [0]}, "an unclean term is invalid"),
        ({"losses": [[0, 1, 2, 3, 4, 5, []]]}, "a loss window is invalid"),
        ({"losses": [[2, 1, 2, 3, 4, []]]}, "a loss window is invalid"),
        ({"losses": [[2, -1, 2, 3, 4, 5, []]]}, "a loss window is invalid"),
        ({"losses": [[]]}, "a loss window is invalid"),
        ({"losses": {}}, "a list is missing or has more than 1000 entries"),
        ({"losses": [[2, 1, 2, 3, 4, 5, [7]]]}, "a group's name is invalid"),
    ],
)
def test_an_impossible_leadership_is_refused(fields: dict[str, object], sentence: str) -> None:
    value = change(stored_records.encode_leadership(MAIN), **fields)

    with pytest.raises(ProtocolError) as caught:
        stored_records.decode_leadership(KEY, value, 1)

    assert str(caught.value) == f"{KEY} cannot be used: {sentence}"
    assert caught.value.hint


@pytest.mark.parametrize(
    "fields",
    [
        {"address": "here"},
        {"address": 7},
        {"address": "a:1\n"},
        {"site": None},
        {"site": "x" * 301},
        {"version": 2},
        {"priority": "1"},
        {"priority": 1 << 40},
        {"draining": 0},
        {"broker": " a"},
        {"store": []},
    ],
)
def test_an_impossible_broker_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ProtocolError, match="cannot be used"):
        stored_records.decode_broker(KEY, change(stored_records.encode_broker(LIVING), **fields))


@pytest.mark.parametrize("missing", ["term", "in_sync", "format", "unclean_terms"])
def test_a_missing_field_is_named(missing: str) -> None:
    found = json.loads(stored_records.encode_leadership(MAIN))
    del found[missing]

    with pytest.raises(ProtocolError, match="format is 'None'" if missing == "format" else f"{missing} missing"):
        stored_records.decode_leadership(KEY, json.dumps(found).encode(), 1)


@pytest.mark.parametrize("value", [b"", b"{", b"[]", b"null", b"\xff", b"[" * 60_000, b" " * (64 << 10) + b" "])
def test_bytes_in_another_format_are_refused(value: bytes) -> None:
    for decode in (stored_records.decode_broker, stored_records.decode_identity):
        with pytest.raises(ProtocolError, match="cannot be used"):
            decode(KEY, value)


@given(st.binary(max_size=300))
def test_any_bytes_raise_an_error_and_never_crash(value: bytes) -> None:
    with pytest.raises(ProtocolError):
        stored_records.decode_leadership(KEY, value, 1)


def test_a_record_that_could_not_be_read_is_not_written() -> None:
    from dataclasses import replace

    crowd = frozenset(Member(broker=f"b{number}", store="s") for number in range(65))
    with pytest.raises(ProtocolError, match="more than 64"):
        stored_records.encode_leadership(replace(MAIN, in_sync=crowd))
