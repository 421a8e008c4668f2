"""Execution of the replicas' effects: on the logs, over the connections, at the coordinator.

The host of the replicas needs the protocols `Logs`, `Transport`, `Installations` and `Coordination`, which the
simulation implements in its own way. Every method of a protocol returns at once. Results reach the host in its thread,
as calls of the host's methods.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol, TypeAlias

from venus.broker.machine import loss
from venus.broker.replicas.placement import KnownBrokers
from venus.replication import messages as m
from venus.replication.messages import Answer, Append, SendFetch, Truncate
from venus.replication.position import LogChanged
from venus.replication.records import Ballot, InstallationProgress, Leadership, LiveBroker, Member
from venus.replication.replica import Replica

#: Runs a call in the host's thread, in the order of posting; from any thread.
Post = Callable[[Callable[[], None]], None]


class Transport(Protocol):
    """Connections to other brokers. Lost messages are requested again; messages arrive in order."""

    def fetch(self, to: LiveBroker, business: str, fetch: SendFetch) -> None:
        """Send a fetch to a leader; `Host.on_fetch_reply` or `Host.on_connection_lost` follows."""

    def reply(self, to: Member, business: str, answer: Answer) -> None:
        """Reply to a follower's fetch; ignored if the follower is gone."""

    def ask_ballot(self, to: LiveBroker, business: str, term: int) -> None:
        """Request a ballot from a replica; `Host.on_ballot` follows, or nothing."""


class Logs(Protocol):
    """Interface to the logs of this broker."""

    def open(self, business: str) -> tuple[LogChanged, int, bool]:
        """Return the state of a log, its applied index, and False if an installation was interrupted.

        Creates an empty log if there is none.
        """

    def has(self, business: str) -> bool:
        """Whether the business has a log."""

    def append(self, business: str, effect: Append, sender: str) -> None:
        """Append a leader's entries; LogChanged with its order follows in any case."""

    def truncate(self, business: str, effect: Truncate) -> None:
        """Remove every entry from an index on; LogChanged with its order follows in any case."""

    def advance(self, business: str) -> None:
        """Apply the entries that the standing reports as safe."""

    def lead(self, business: str, term: int) -> None:
        """Begin a leadership; LogChanged follows."""

    def refuse(self, business: str) -> None:
        """Fail waiting requests with the standing's refusal: this broker leads, but can no longer acknowledge."""

    def retire(self, business: str, leader: str) -> None:
        """Fail waiting requests; `leader` is the address of the present leader, empty if unknown."""

    def recent(self, business: str, first: int, *, is_bulk: bool = False) -> tuple[bytes, ...] | None:
        """Return stored entries from `first` on, as many as one frame holds, if they are in memory."""

    def read(
        self, business: str, first: int, then: Callable[[tuple[bytes, ...]], None], *, is_bulk: bool = False
    ) -> None:
        """Read stored entries from `first` on from the disk; `then` is called from any thread."""


class Installations(Protocol):
    """Installs copies of leaders for replicas that cannot follow a log."""

    def begin(self, business: str, leader: LiveBroker, done: Callable[[LogChanged], None]) -> None:
        """Install a leader's copy, with retries; `done` follows in the host's thread."""

    def progress(self) -> tuple[InstallationProgress, ...]:
        """Return the progress of the running installations."""

    def remove(self, business: str, done: Callable[[], None]) -> None:
        """Remove all data of a business and cancel its installation; `done` follows in the host's thread."""


class Coordination(Protocol):
    """Calls of the coordinator that do not block the host."""

    def read_soon(self) -> None:
        """Read leaderships and living brokers soon; `Host.on_topology` follows."""

    def swap(self, before: Leadership, after: Leadership) -> None:
        """Replace a record; `Host.on_swap_result` follows."""

    def create(self, leadership: Leadership) -> None:
        """Store a new business; `Host.on_topology` follows."""

    def publish(self, me: LiveBroker) -> None:
        """Publish a changed description of this broker."""

    def ask_forgotten(self, business: str) -> None:
        """Ask whether a business without a record was forgotten; `Host.on_forgotten_term` follows."""


logger = logging.getLogger(__name__)

_Handler: TypeAlias = Callable[["Effects", str, Any], None]


class Effects:
    """Executes effects in the host's thread. `troubles`: why replicas cannot follow; `ballot`: the newest ballot."""

    def __init__(
        self,
        brokers: KnownBrokers,
        replicas: Mapping[str, Replica],
        logs: Logs,
        transport: Transport,
        coordination: Coordination,
        post: Post,
        install: Callable[[str, LiveBroker], None],
        halt: Callable[[str, str], None],
    ) -> None:
        self.troubles: dict[str, str] = {}
        self.ballot: Ballot | None = None
        self._brokers = brokers
        self._replicas = replicas
        self._logs, self._transport, self._coordination = logs, transport, coordination
        self._post = post
        self._install, self._halt = install, halt

    def carry_out(self, business: str, effect: m.Effect) -> None:
        """Execute an effect of a replica."""
        _HANDLERS[type(effect)](self, business, effect)

    # -- the lines ---------------------------------------------------------------------------------------------

    def _fetch(self, business: str, effect: m.SendFetch) -> None:
        """Send a fetch to the leader; if its address is unknown, read the brokers again."""
        to = self._brokers.find(effect.to)
        if to is not None:
            self._transport.fetch(to, business, effect)
        else:
            self._coordination.read_soon()

    def _reply(self, business: str, effect: m.SendReply) -> None:
        """Reply to a follower's fetch, with entries from memory or else from the disk."""
        answer = effect.answer
        if not isinstance(answer, m.Entries):
            self._transport.reply(effect.to, business, answer)
            return
        values = self._logs.recent(business, answer.first, is_bulk=effect.is_bulk)
        if values is not None:
            self._transport.reply(effect.to, business, replace(answer, entries=values))
        else:
            then = self._reply_callback(business, effect.to, answer)
            self._logs.read(business, answer.first, then, is_bulk=effect.is_bulk)

    def _reply_callback(self, business: str, to: Member, answer: m.Entries) -> Callable[[tuple[bytes, ...]], None]:
        """Return a callback that sends entries read from the disk to a follower."""
        return lambda values: self._post(lambda: self._send_read_entries(business, to, replace(answer, entries=values)))

    def _send_read_entries(self, business: str, to: Member, answer: m.Entries) -> None:
        """Send entries read from the disk, unless the term has ended since the read began."""
        replica = self._replicas.get(business)
        if replica is None or replica.known is None:
            return  # the replica was removed meanwhile
        if replica.leads and replica.known.term == answer.term:
            self._transport.reply(to, business, answer)  # in a newer term the log may have been truncated meanwhile

    def _ask_ballot(self, business: str, effect: m.RequestBallot) -> None:
        """Request a ballot from another replica if its broker lives."""
        to = self._brokers.live.get(effect.to)
        if to is not None:
            self._transport.ask_ballot(to, business, effect.term)

    def _give_ballot(self, _: str, effect: m.SendBallot) -> None:
        """Keep this replica's ballot as the answer to the request that is being handled."""
        self.ballot = effect.ballot

    # -- the log -----------------------------------------------------------------------------------------------

    def _append(self, business: str, effect: m.Append) -> None:
        """Append the leader's entries to the log."""
        known = self._replicas[business].known
        sender = known.leader.broker if known is not None and known.leader is not None else "the leader"
        self._logs.append(business, effect, sender)

    def _truncate(self, business: str, effect: m.Truncate) -> None:
        """Remove the entries that the leader does not have."""
        logger.warning("%s: entries from %d on are reverted: the leader does not have them", business, effect.end)
        self._logs.truncate(business, effect)

    def _advance(self, business: str, _: m.Advance) -> None:
        """Apply the entries that have become safe."""
        self._logs.advance(business)

    def _lead(self, business: str, effect: m.Lead) -> None:
        """Begin this broker's leadership of a business."""
        logger.info("%s: this broker leads in term %d", business, effect.term)
        self.troubles.pop(business, None)
        self._logs.lead(business, effect.term)

    def _retire(self, business: str, effect: m.Retire) -> None:
        """Fail the waiting requests and end the streams, because this broker no longer leads."""
        logger.info("%s: this broker no longer leads", business)
        self._logs.retire(business, self._brokers.address_of(effect.leader))

    def _reinstall(self, business: str, effect: m.Reinstall) -> None:
        """Install the leader's copy; halt the replica instead if a leader that must be complete lacks entries."""
        known = self._replicas[business].known
        if effect.diverged and known is not None and loss.is_leader_complete(known):
            self._halt(business, loss.divergence_message(effect))
            return
        self.troubles[business] = f"cannot follow {effect.leader.broker}: {effect.reason}"
        logger.warning("%s: %s; installing its copy", business, self.troubles[business])
        leader = self._brokers.find(effect.leader)
        if leader is not None:
            self._install(business, leader)

    # -- the coordinator ---------------------------------------------------------------------------------------

    def _swap(self, business: str, effect: m.Swap) -> None:
        """Replace the record of a business at the coordinator."""
        replica = self._replicas.get(business)
        if replica is not None and replica.leads and effect.after.leader is None:
            logger.warning(
                "%s: this broker reaches too few of its followers, though they are alive: another broker should lead",
                business,
            )
        self._coordination.swap(effect.before, effect.after)

    def _read(self, _: str, __: m.ReadRecords) -> None:
        """Read the coordinator's records soon."""
        self._coordination.read_soon()


_HANDLERS: dict[type, _Handler] = {
    m.SendFetch: Effects._fetch,
    m.SendReply: Effects._reply,
    m.RequestBallot: Effects._ask_ballot,
    m.SendBallot: Effects._give_ballot,
    m.Append: Effects._append,
    m.Truncate: Effects._truncate,
    m.Advance: Effects._advance,
    m.Lead: Effects._lead,
    m.Retire: Effects._retire,
    m.Reinstall: Effects._reinstall,
    m.Swap: Effects._swap,
    m.ReadRecords: Effects._read,
}
