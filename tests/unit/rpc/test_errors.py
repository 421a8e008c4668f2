"""Every error class is sent over the wire and raised again as itself."""

from __future__ import annotations

from typing import Any, cast

import grpc
import pytest

from venus import errors
from venus.errors import VenusError
from venus.rpc.errors import BY_NAME, from_rpc_error, to_status


class Failure(grpc.RpcError):
    def __init__(self, code: grpc.StatusCode, details: str, metadata: Any = ()) -> None:
        self._parts = code, details, metadata

    def code(self) -> grpc.StatusCode:
        return self._parts[0]

    def details(self) -> str:
        return self._parts[1]

    def trailing_metadata(self) -> Any:
        return tuple(self._parts[2])


@pytest.mark.parametrize("name", sorted(BY_NAME))
def test_class_message_and_hint_are_restored(name: str) -> None:
    status = to_status(BY_NAME[name]("höre zu", hint="schau nach, 42 €"))
    back = from_rpc_error(cast("grpc.RpcError", Failure(*status)))
    assert type(back) is BY_NAME[name]
    assert str(back) == "höre zu"
    assert back.hint == "schau nach, 42 €"
    assert status.code is not grpc.StatusCode.OK


def test_a_class_of_another_module_is_sent_as_its_ancestor() -> None:
    class SpecialError(errors.OffsetTrimmed):
        """An error class outside of venus.errors."""

    assert type(from_rpc_error(Failure(*to_status(SpecialError("x"))))) is errors.OffsetTrimmed


def test_every_class_of_the_module_is_registered() -> None:
    assert {"VenusError", "Fenced", "StoreFull", "DigestMismatch", "SnapshotExpired"} <= BY_NAME.keys()


@pytest.mark.parametrize(
    ("code", "details", "expected"),
    [
        (grpc.StatusCode.UNAVAILABLE, "connection refused", errors.Unavailable),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "", errors.Unavailable),
        (grpc.StatusCode.INTERNAL, "Exception deserializing response!", errors.DigestMismatch),
        (grpc.StatusCode.INTERNAL, "RST_STREAM", errors.Unavailable),
        (grpc.StatusCode.UNIMPLEMENTED, "Method not found!", errors.ProtocolError),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "message larger than max", errors.ProtocolError),
        (grpc.StatusCode.UNKNOWN, "boom", VenusError),
    ],
)
def test_an_error_of_grpc_itself_becomes_a_venus_error(
    code: grpc.StatusCode, details: str, expected: type[VenusError]
) -> None:
    assert type(from_rpc_error(Failure(code, details))) is expected
