"""The text form of roles, and the role that each call requires."""

from __future__ import annotations

from typing import Any

import pytest

from venus.errors import ConfigError
from venus.security.roles import CALLS, Call, PeerIdentity, admits, covers, missing_roles, parse, roles_of
from venus.wire import broker_pb2, network_pb2, overlay_pb2, replica_pb2

PRODUCE, SUBSCRIBE = CALLS["/venus.wire.Ingest/Produce"], CALLS["/venus.wire.Delivery/Subscribe"]
STATUS, DECIDE = CALLS["/venus.wire.Admin/Status"], CALLS["/venus.wire.Admin/Decide"]


def identity(*roles: str) -> PeerIdentity:
    return PeerIdentity("a peer", roles_of(roles))


def test_every_method_of_every_service_has_a_required_role() -> None:
    services = [
        s
        for file in (broker_pb2, network_pb2, overlay_pb2, replica_pb2)
        for s in file.DESCRIPTOR.services_by_name.values()
    ]
    known = {f"/{service.full_name}/{method.name}": method for service in services for method in service.methods}

    assert {name for name in CALLS if name.startswith("/venus.")} == known.keys()
    for name, method in known.items():
        call = CALLS[name]
        assert call.kinds, name
        assert not call.is_public, name
        for path in filter(None, (call.business, call.group, call.snapshot)):
            found: Any = method.input_type
            *inner, last = path.split(".")
            for part in inner:
                found = found.fields_by_name[part].message_type
            assert found.fields_by_name[last].type == found.fields_by_name[last].TYPE_STRING, f"{name}: {path}"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("viewer", "viewer"),
        (" operator ", "operator"),
        ("producer(main)", "producer(main)"),
        ("consumer( eu ,main )", "consumer(eu, main)"),
        ("consumer(*, *)", "consumer(*, *)"),
    ],
)
def test_roles_are_parsed(text: str, shown: str) -> None:
    assert str(parse(text)) == shown
    assert parse(shown) == parse(text)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("opertor", "did you mean operator?"),
        ("", "does not exist"),
        ("producer", "it is written producer(BUSINESS)"),
        ("producer()", "it is written producer(BUSINESS)"),
        ("producer(a, b)", "it is written producer(BUSINESS)"),
        ("consumer(a)", "it is written consumer(GROUP, BUSINESS)"),
        ("viewer(main)", "it is written viewer"),
        ("viewer)", "does not exist"),
        ("viewer; operator", "does not exist"),
    ],
)
def test_an_unknown_role_is_refused(text: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text)
    assert says in str(caught.value)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("roles", "call", "business", "group", "may"),
    [
        (("producer(main)",), PRODUCE, "main", "", True),
        (("producer(main)",), PRODUCE, "other", "", False),
        (("producer(main)",), PRODUCE, "", "", False),
        (("producer(*)",), PRODUCE, "other", "", True),
        (("producer(a)", "producer(b)"), PRODUCE, "b", "", True),
        (("consumer(eu, main)",), SUBSCRIBE, "main", "main/eu", True),
        (("consumer(eu, main)",), SUBSCRIBE, "main", "eu", True),
        (("consumer(eu, main)",), SUBSCRIBE, "main", "main/us", False),
        (("consumer(eu, main)",), SUBSCRIBE, "other", "main/eu", False),
        (("consumer(eu, main)",), SUBSCRIBE, "main", "other/eu", False),
        (("consumer(*, main)",), SUBSCRIBE, "main", "anything", True),
        (("consumer(eu, *)",), SUBSCRIBE, "b", "b/eu", True),
        (("consumer(a, b)", "consumer(b, a)"), SUBSCRIBE, "b", "b/b", False),
        (("producer(main)",), STATUS, "main", "", True),
        (("consumer(eu, main)",), STATUS, "main", "", True),
        (("producer(main)",), STATUS, "", "", False),
        (("viewer",), STATUS, "", "", True),
        (("operator",), STATUS, "other", "", True),
        (("viewer",), DECIDE, "", "", False),
        (("operator",), DECIDE, "", "", True),
        (("producer(*)", "consumer(*, *)", "viewer", "broker"), DECIDE, "", "", False),
        (("operator",), PRODUCE, "main", "", False),
        (("operator",), SUBSCRIBE, "main", "main/eu", False),
    ],
)
def test_a_role_applies_to_what_it_names(
    roles: tuple[str, ...], call: Call, business: str, group: str, may: bool
) -> None:
    found = identity(*roles)

    assert (admits(found, call) and covers(found, call, business, group)) is may
    if not may:
        text = missing_roles(call, business, group)
        granted = identity(*text.split(" or "))
        assert business == "" or covers(granted, call, business, group), "the role that is named would be enough"


def test_an_unlisted_method_is_denied() -> None:
    everything = identity("producer(*)", "consumer(*, *)", "broker", "operator", "viewer")

    assert not admits(everything, Call())
    assert not admits(PeerIdentity(), CALLS["/grpc.health.v1.Health/Check"])
    assert admits(identity(), CALLS["/grpc.health.v1.Health/Check"])


def test_a_reader_may_listen_without_a_group() -> None:
    reader, listen = identity("reader(main)"), CALLS["/venus.wire.Delivery/Listen"]
    assert covers(reader, listen, "main")
    assert not covers(reader, listen, "other")
    assert not covers(reader, listen, "main", "main/eu")  # a group would have the position of a target
    assert covers(identity("consumer(mailer, main)"), listen, "main", "mailer")
    assert not covers(reader, SUBSCRIBE, "main", "eu")
    assert covers(reader, STATUS, "main")
