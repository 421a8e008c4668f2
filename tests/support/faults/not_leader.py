"""A place in front of a real broker that answers, for chosen calls, that another broker leads."""

from __future__ import annotations

from collections.abc import Iterator

import grpc

from tests.support.faults.grpc_proxy import GrpcProxy
from venus.errors import NotLeader
from venus.rpc.errors import to_status

#: What it leaves to the leader.
LEADERS_CALLS = frozenset({"Produce", "Subscribe", "OpenSnapshot", "Status", "Decide", "Forget", "ForgetBusiness"})


class NotLeading(GrpcProxy):
    """Passes on what any replica may answer, and everything once `follows` is None."""

    def __init__(self, target: str, follows: str | None = "") -> None:
        super().__init__(target)
        #: The leader's address in its answers; "" = it is not known; None = this one leads.
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
