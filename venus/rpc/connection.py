"""Connection to one broker of several, which follows the leader.

With one address this is a channel to it. With several, unreachable brokers are skipped, and the connection moves from
a broker that does not lead to the one that does. Of several sets the nearest that serves is used.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import grpc

from venus.errors import Diverged, NotLeader, OtherRows, Overloaded, Unavailable, Untrusted, VenusError
from venus.rpc.address import BrokerAddress, proof_of
from venus.rpc.broker_selection import shared_selector
from venus.rpc.channel import CLUSTER_KEEPALIVE_S, CONNECT_TIMEOUT_S, KEEPALIVE_S, open_channel
from venus.rpc.errors import reason
from venus.rpc.stopwatch import Stopwatch

T = TypeVar("T")

#: How long to search for a leader: longer than a lease and an election.
FAILOVER_S = 5.0
#: Interval between two attempts while no broker leads.
ASK_AGAIN_S = 0.1
#: How long to repeat a request to a broker that says when to ask again.
OVERLOADED_S = 60.0
#: Minimum time to connect to each of several brokers.
SHARE_S_MIN = 1.0
#: If this process stood still for more than this part of a silent broker's timeout, the broker is not blamed.
STALLED_PART = 0.5
#: Timeout of a probe of a nearer set.
LOOK_TIMEOUT_S = 2.0


class BrokerConnection:
    """Channel to a broker that serves. Raises Unavailable, with all brokers that were tried, if none serves."""

    def __init__(
        self,
        reach: str,
        *,
        business: str = "",
        keepalive_s: float = KEEPALIVE_S,
        timeout_s: float = CONNECT_TIMEOUT_S,
        failover_s: float = FAILOVER_S,
    ) -> None:
        self._brokers = shared_selector(reach)
        self._proof = proof_of(reach)  # also for a leader that one of the brokers names
        several = len(self._brokers.addresses) > 1
        self._keepalive_s = min(keepalive_s, CLUSTER_KEEPALIVE_S) if several else keepalive_s
        self._timeout_s = timeout_s
        self._failover_s = failover_s
        self.address, self.channel = self._open(self._brokers.in_order(business))

    @property
    def can_move_nearer(self) -> bool:
        """Whether a nearer set is in use than when this connection was made: the next connection goes there."""
        return self._brokers.is_nearer_in_use(self._set)

    def call(self, business: str, ask: Callable[[grpc.Channel], T]) -> T:
        """Return the result of `ask`; if the broker does not lead, ask the one that does, for `failover_s` at most.

        If a broker over a limit says when to ask again, the request is repeated, for OVERLOADED_S at most.
        """
        began = time.monotonic()
        end = began + self._failover_s
        asked: list[str] = []
        in_vain: set[str] = set()  # those that could not be reached on the way
        apart: dict[str, Diverged] = {}  # brokers with another history: a former home that does not know it yet
        while True:
            asked.append(self.address)
            try:
                return ask(self.channel)
            except Overloaded as error:
                if not error.retry_after_s or time.monotonic() + error.retry_after_s > began + OVERLOADED_S:
                    raise
                time.sleep(error.retry_after_s)
                continue
            except Diverged as error:
                self._switch_set(business, error, apart)
                pause = 0.0
            except NotLeader as error:
                self.record_error(business, error)
                pause = 0.0 if error.leader and error.leader not in {*asked, *in_vain} else ASK_AGAIN_S
                if time.monotonic() + pause >= end:
                    raise self._no_leader_error(error, asked) from error
            time.sleep(pause)
            in_vain |= self._move(business)

    def _switch_set(self, business: str, error: Diverged, apart: dict[str, Diverged]) -> None:
        """Use another set, which may be the new home or have the caller's rows. Raises the error if no set is left.

        Raises Unavailable if no other set can be reached: until one answers, it is not known which history counts.
        """
        if self.address in apart:
            why = "have these rows" if isinstance(error, OtherRows) else "be the home by now"
            raise Unavailable(f"{error}; another set may {why}, and none can be reached", hint=error.hint) from error
        apart[self.address] = error
        if type(error) not in (Diverged, OtherRows) or not self._brokers.has_other_set(apart):
            raise next(iter(apart.values()))
        self._brokers.record_leader(business, "")
        self._brokers.record_lost_set(self.address)

    def record_error(self, business: str, error: VenusError) -> None:
        """Record what an error says about leaders and unreachable brokers, for the next connection."""
        if isinstance(error, NotLeader):
            self._brokers.record_leader(business, error.leader if error.leader != self.address else "")
            if not error.leader:
                self._brokers.try_last(self.address)
        elif type(error) is Unavailable:
            if error.said_by_peer:
                self._brokers.record_refusal(self.address)
            else:
                self._brokers.record_lost(self.address, str(error))

    def close(self) -> None:
        """Close the channel."""
        self.channel.close()

    def _move(self, business: str) -> set[str]:
        """Move to the most promising broker; return those that could not be reached."""
        order = self._brokers.in_order(business, self.address)
        if order[0] == self.address:
            return set()
        address, channel = self._open(order)
        self.channel.close()
        self.address, self.channel = address, channel
        return set(order[: order.index(address)])

    def _open(self, order: list[str]) -> tuple[str, grpc.Channel]:
        """Connect to the first broker in `order` that serves, and begin to probe nearer sets."""
        try:
            return self._connect_to_first(order)
        finally:
            self._set = self._brokers.set_in_use
            self._brokers.start_probing(self._accepts_connection)

    def _accepts_connection(self, address: str) -> bool:
        """Return whether a broker accepts a connection."""
        try:
            self._open_channel(address, LOOK_TIMEOUT_S).close()
        except VenusError:
            return False
        return True

    def _connect_to_first(self, order: list[str]) -> tuple[str, grpc.Channel]:
        """Connect to the first broker that serves, within the time limit for all of them."""
        end = time.monotonic() + self._timeout_s
        share_s = self._timeout_s if len(order) == 1 else max(SHARE_S_MIN, self._timeout_s / len(order))
        failures: dict[str, Unavailable] = {}
        for address in order:
            left_s = end - time.monotonic()
            if left_s <= 0:
                break
            patience_s = self._brokers.patience_s(address) if len(order) > 1 else None
            waited = Stopwatch()
            allowed_s = min(left_s, patience_s or share_s)
            try:
                channel = self._open_channel(address, allowed_s)
            except Unavailable as error:
                self._on_failure(address, error, stalled=waited.missed_s() > STALLED_PART * allowed_s)
                failures[address] = error
                continue
            self._brokers.record_success(address, waited.awake_s())
            return address, channel
        if len(order) == 1:
            raise failures[order[0]]
        why = ", ".join(f"{address} ({_reason(failures.get(address))})" for address in order)
        raise Unavailable(
            f"none of the brokers can be reached: {why}; is `venus run` or `venus broker` running?",
            hint="check [broker] addresses",
        ) from failures[order[0]]

    def _on_failure(self, address: str, error: Unavailable, *, stalled: bool) -> None:
        """Record that a broker could not be reached; silence does not count if this process did not run meanwhile."""
        cause = error.__cause__
        silent = isinstance(cause, grpc.RpcError) and cause.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        if silent and stalled:
            self._brokers.record_unknown(address)
        else:
            self._brokers.record_lost(address, _reason(error))

    def _open_channel(self, address: str, timeout_s: float) -> grpc.Channel:
        """Open a channel to one broker, with this client's credentials."""
        return open_channel(BrokerAddress(address, self._proof), timeout_s=timeout_s, keepalive_s=self._keepalive_s)

    def _no_leader_error(self, error: NotLeader, asked: list[str]) -> NotLeader:
        """Record the set as lost, and return the error that no broker led in time."""
        self._brokers.record_lost_set(self.address)
        tried = ", ".join(dict.fromkeys(asked))
        return NotLeader(f"no broker leads after {self._failover_s:g} s, asked {tried}: {error}", hint=error.hint)


def _reason(failure: Unavailable | None) -> str:
    """Return briefly why a broker could not be reached."""
    if failure is None:
        return "no time left"
    if isinstance(failure, Untrusted):
        return str(failure)
    cause = failure.__cause__
    return reason(cause) if isinstance(cause, grpc.RpcError) else "starting or stopping"
