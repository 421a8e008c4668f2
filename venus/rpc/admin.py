"""The operator's view of a broker: what stands where, and decisions that no producer can make any more."""

from __future__ import annotations

from types import TracebackType

from venus.model import Verdict
from venus.rpc.channel import open_channel
from venus.rpc.sealed import ask
from venus.wire import broker_pb2

CALL_TIMEOUT_S = 30.0
#: Space is given back before the answer.
FORGET_TIMEOUT_S = 600.0


class Admin:
    """A connection to a broker's Admin service."""

    def __init__(self, address: str, *, timeout_s: float = CALL_TIMEOUT_S) -> None:
        self._channel = open_channel(address)
        self._timeout_s = timeout_s

    def status(self, business: str = "") -> broker_pb2.BrokerStatus:
        """Return the state of one business, or of all."""
        request = broker_pb2.StatusRequest(business=business)
        return ask(self._channel, "Admin/Status", request, broker_pb2.BrokerStatus, timeout_s=self._timeout_s)

    def decide(self, business: str, batch_no: int, verdict: Verdict) -> broker_pb2.Decided:
        """Decide half messages in the producer's place; it is fenced and reads the outcome when it comes back."""
        request = broker_pb2.DecideRequest(
            business=business, batch_no=batch_no, verdict=broker_pb2.Verdict.ValueType(verdict)
        )
        return ask(self._channel, "Admin/Decide", request, broker_pb2.Decided, timeout_s=self._timeout_s)

    def forget(self, business: str, group: str) -> None:
        """Drop a consumer group that will not come back, so that it no longer holds back retention."""
        request = broker_pb2.ForgetRequest(business=business, group=group)
        ask(self._channel, "Admin/Forget", request, broker_pb2.Empty, timeout_s=self._timeout_s)

    def forget_business(self, business: str) -> None:
        """Remove a business for good, with its queue, its full data and its consumers; Refused while it is in use."""
        request = broker_pb2.ForgetBusinessRequest(business=business)
        ask(self._channel, "Admin/ForgetBusiness", request, broker_pb2.Empty, timeout_s=FORGET_TIMEOUT_S)

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()

    def __enter__(self) -> Admin:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
