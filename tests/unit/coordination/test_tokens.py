"""An expired token of etcd fails no call, even if several calls of this process notice it at the same time."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import grpc
import pytest

from venus.coordination.etcd_client import AUTHENTICATE, EtcdClient
from venus.coordination.login import Login
from venus.wire import etcd_pb2

OLD, NEW = "old", "new"


class Refusal(grpc.RpcError):
    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__()
        self._code, self._details = code, details

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._details


ENDED = Refusal(grpc.StatusCode.UNAUTHENTICATED, "etcdserver: invalid auth token")


class Etcd:
    """Answers calls with the newest token; the first `calls` ones are refused together."""

    def __init__(self, calls: int, refusal: Refusal) -> None:
        self.client = EtcdClient(["127.0.0.1:1"], timeout_s=10.0, login=Login(user="venus"))
        self.client._token = OLD
        self.client._attempt = self.attempt  # type: ignore[method-assign,assignment]
        self.shown: list[str] = []
        self._refusal = refusal
        self._refused, self._logging_in = threading.Barrier(calls), threading.Barrier(calls)

    def attempt(self, _address: str, call: str, _request: Any, _kind: Any, _s: float, token: str, *_: Any) -> Any:
        if call == AUTHENTICATE:
            with suppress(threading.BrokenBarrierError):
                self._logging_in.wait()  # no other token exists before each call was refused
            return etcd_pb2.AuthenticateResponse(token=NEW)
        self.shown.append(token)
        if token != NEW:
            self._refused.wait()
            raise self._refusal
        return etcd_pb2.RangeResponse()

    def read(self) -> None:
        try:
            self.client.read("key")
        finally:
            self._logging_in.abort()


@pytest.mark.parametrize(
    "refusal",
    [
        ENDED,
        Refusal(grpc.StatusCode.INVALID_ARGUMENT, "etcdserver: revision of auth store is old"),
        Refusal(grpc.StatusCode.UNKNOWN, "auth: revision in header is old"),
    ],
)
@pytest.mark.parametrize("calls", [1, 2, 3])
def test_concurrent_calls_with_an_expired_token_all_continue(calls: int, refusal: Refusal) -> None:
    """The second call was taken as a call without a user, and a token from before a change of roles was never replaced.

    The lease of the broker ended, and with it all its leaderships.
    """
    etcd = Etcd(calls, refusal)
    with ThreadPoolExecutor(calls) as pool:
        for done in [pool.submit(etcd.read) for _ in range(calls)]:
            done.result(60)
    assert sorted(etcd.shown) == [NEW] * calls + [OLD] * calls


def test_a_token_that_another_thread_got_is_kept() -> None:
    etcd = Etcd(1, ENDED)
    etcd.client._token = NEW
    assert etcd.client._has_expired(OLD, ENDED)
    assert etcd.client._token == NEW
    assert not etcd.client._has_expired(OLD, Refusal(grpc.StatusCode.INVALID_ARGUMENT, "etcdserver: key is not given"))
    assert not etcd.client._has_expired("", ENDED)
