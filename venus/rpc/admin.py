"""The operator's view of a broker: what stands where, and decisions that no producer can make any more."""

from __future__ import annotations

from types import TracebackType

import grpc

from venus.model import Verdict
from venus.rpc.channel import open_channel
from venus.rpc.errors import from_rpc_error
from venus.wire import broker_pb2, broker_pb2_grpc

CALL_TIMEOUT_S = 30.0


class Admin:
    """A connection to a broker's Admin service."""

    def __init__(self, address: str, *, timeout_s: float = CALL_TIMEOUT_S) -> None:
        self._channel = open_channel(address)
        self._stub = broker_pb2_grpc.AdminStub(self._channel)
        self._timeout_s = timeout_s

    def status(self, business: str = "") -> broker_pb2.BrokerStatus:
        """Return the state of one business, or of all."""
        try:
            return self._stub.Status(broker_pb2.StatusRequest(business=business), timeout=self._timeout_s)
        except grpc.RpcError as error:
            raise from_rpc_error(error) from error

    def decide(self, business: str, batch_no: int, verdict: Verdict) -> broker_pb2.Decided:
        """Decide half messages in the producer's place; it is fenced and reads the outcome when it comes back."""
        request = broker_pb2.DecideRequest(
            business=business, batch_no=batch_no, verdict=broker_pb2.Verdict.ValueType(verdict)
        )
        try:
            return self._stub.Decide(request, timeout=self._timeout_s)
        except grpc.RpcError as error:
            raise from_rpc_error(error) from error

    def forget(self, business: str, group: str) -> None:
        """Drop a consumer group that will not come back, so that it no longer holds back retention."""
        try:
            self._stub.Forget(broker_pb2.ForgetRequest(business=business, group=group), timeout=self._timeout_s)
        except grpc.RpcError as error:
            raise from_rpc_error(error) from error

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()

    def __enter__(self) -> Admin:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
