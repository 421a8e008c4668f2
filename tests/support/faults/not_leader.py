"""A proxy in front of a real broker that answers some calls with the leader's address, as a follower does."""

from __future__ import annotations

from collections.abc import Iterator

import grpc

from tests.support.faults.grpc_proxy import GrpcProxy
from venus.errors import NotLeader
from venus.rpc.errors import to_status

#: Calls that only the leader answers.
LEADERS_CALLS = frozenset({"Produce", "Subscribe", "OpenSnapshot", "Status", "Decide", "Forget", "ForgetBusiness"})


class NotLeading(GrpcProxy):
    """Forwards the calls that any replica may answer, and every call while `follows` is None."""

    def __init__(self, target: str, follows: str | None = "") -> None:
        super().__init__(target)
        #: The leader's address in its answers; "" = unknown; None = this broker leads.
        self.follows = follows
        self.refused = 0

    def _pass(self, method: str, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        if self.follows is not None and method.rpartition("/")[2] in LEADERS_CALLS:
            next(iter(requests))
            self.refused += 1
            status = to_status(NotLeader("this broker follows", leader=self.follows))
            context.set_trailing_metadata(status.metadata)
            context.abort(status.code, status.details)
        yield from super()._pass(method, requests, context)
