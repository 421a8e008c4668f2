"""Replication in the status of a broker. Any thread reads the status; only the loop changes the state behind it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import asdict
from urllib.parse import unquote

from venus.broker.replicas.broker_load import BrokerHealth
from venus.broker.replicas.coordinator_thread import CoordinatorThread
from venus.broker.replicas.host import Host
from venus.broker.replicas.replicated_logs import ReplicatedLogs
from venus.replication.leaders import count_roles
from venus.replication.leading import FollowerProgress, replication_mode
from venus.replication.records import InstallationProgress, Leadership, LiveBroker, LossWindow, Member
from venus.replication.replica import Replica
from venus.wire import broker_pb2

#: Finds the business in the key of a record of the coordinator.
_OF_A_BUSINESS = re.compile(r"/(?:businesses|forgotten)/(\S+)")


class ReplicationStatus:
    """Adds the state of the replicas to the status of the broker."""

    def __init__(
        self,
        name: str,
        host: Host,
        shared: ReplicatedLogs,
        coordination: CoordinatorThread,
        installing: Callable[[], tuple[InstallationProgress, ...]],
        health: BrokerHealth,
    ) -> None:
        self._name = name
        self._installing, self._health = installing, health
        self._host, self._shared, self._coordination = host, shared, coordination

    def add_to_status(self, status: broker_pb2.BrokerStatus, business: str = "") -> None:
        """Add the cluster, each business's replicas and their problems, for one business or for all."""
        status.cluster, status.broker_id = self._name, self._host.me.member.broker
        if self._coordination.unreachable:
            status.alarms.append(f"the coordinator does not answer: {self._coordination.unreachable}")
        status.alarms.extend(
            f"a record of the coordinator cannot be used: {line}"
            for line in self._coordination.invalid
            if not business or business_of(line) in ("", business)
        )
        if self._health.trouble:  # recent facts and lanes are in the status of traffic
            status.alarms.append(f"another broker should lead instead: {self._health.trouble}")
        if not business:
            status.brokers.extend(load_messages(self._host.brokers.live.values(), self._host.records.values()))
        for found in self._installing():  # the business is listed only once its copy is complete
            if business not in ("", found.business):
                continue
            why = self._host.troubles.get(found.business, "it was interrupted")
            status.alarms.append(f"{found.business} is being installed again: {why}; {describe_progress(found)}")
            status.installations.add(
                business=found.business,
                leader=found.leader,
                reason=why,
                records=found.records,
                records_expected=found.records_expected,
                bytes=found.nbytes,
                bytes_per_s=found.bytes_per_s,
                seconds_left=found.seconds_left,
            )
        for entry in status.businesses:
            replica = self._host.replicas.get(entry.business)
            if replica is None or replica.known is None:
                entry.alarms.append(
                    "the cluster does not know this business: this broker keeps it and accepts no writes"
                )
            else:
                self._describe(entry, replica, replica.known)
                if self._is_without_record(entry.business):
                    entry.alarms.append(missing_record_alarm(replica.known))

    def _is_without_record(self, business: str) -> bool:
        """Return whether the coordinator was read and has no record, not even an invalid one."""
        named = {business_of(line) for line in self._coordination.invalid}
        return business not in self._host.records and not named & {"", business}

    def _describe(self, entry: broker_pb2.BusinessStatus, replica: Replica, known: Leadership) -> None:
        """Add the replication of one business to its status."""
        standing, leading = self._shared.standing(entry.business), replica.leading
        found = entry.replication
        found.term, found.policy, found.min_in_sync = known.term, known.policy.value, known.min_in_sync
        if known.leader is not None:
            found.leader, found.leader_address = known.leader.broker, self._host.brokers.address_of(known.leader)
        found.log_end, found.high, found.refusal = replica.position.end, standing.high, standing.refusal
        found.trouble = self._host.troubles.get(entry.business, "")
        found.losses.extend(_window_message(window) for window in known.losses)
        followers = dict(leading.followers) if leading is not None else {}
        for name in known.replicas:
            found.replicas.append(self._describe_replica(name, known, followers, replica))
        if leading is not None:
            mode, found.reason = replication_mode(known, followers, replica.position.end)
            found.mode = mode.value
        entry.alarms.extend(
            line for line in replication_alarms(found, leads=leading is not None) if line not in entry.alarms
        )
        entry.alarms.extend(loss_alarms(known))

    def _describe_replica(
        self, name: str, known: Leadership, followers: dict[Member, FollowerProgress], replica: Replica
    ) -> broker_pb2.ReplicaStatus:
        """Describe one replica of a business."""
        live = next((broker for member, broker in self._host.brokers.live.items() if member.broker == name), None)
        found = broker_pb2.ReplicaStatus(
            broker=name,
            address=live.address if live is not None else "",
            alive=live is not None,
            in_sync=any(member.broker == name for member in known.in_sync),
        )
        if replica.leading is not None:
            ends = [progress.end for member, progress in followers.items() if member.broker == name]
            if known.leader is not None and name == known.leader.broker:
                found.behind = 0
            elif ends:
                found.behind = max(replica.position.end - max(ends), 0)
        return found


def load_messages(live: Iterable[LiveBroker], records: Iterable[Leadership]) -> list[broker_pb2.BrokerLoad]:
    """Return the reported load of each living broker, with how many businesses it leads and follows."""
    roles = count_roles(records)
    found = []
    for broker in sorted(live, key=lambda broker: broker.member):
        leads, follows = roles.get(broker.member.broker, (0, 0))
        shares = asdict(broker.load) if broker.load is not None else {}
        found.append(
            broker_pb2.BrokerLoad(
                broker=broker.member.broker,
                address=broker.address,
                site=broker.site,
                reported=broker.load is not None,
                leads=leads,
                follows=follows,
                unhealthy=broker.unhealthy,
                draining=broker.draining,
                **shares,
            )
        )
    return found


def business_of(line: str) -> str:
    """Return the business that a message about a record names, "" if it names none."""
    found = _OF_A_BUSINESS.search(line)
    return unquote(found[1]) if found is not None else ""


def replication_alarms(found: broker_pb2.ReplicationStatus, *, leads: bool) -> list[str]:
    """Return the alarms of replication."""
    said = [found.trouble] if found.trouble else []
    if not found.leader:
        said.append("no broker leads it: nothing can be written")
    elif leads and found.refusal:
        said.append(f"nothing can be written: {found.refusal}")
    if leads:
        gone = [replica.broker for replica in found.replicas if not replica.alive]
        late = [replica.broker for replica in found.replicas if replica.alive and not replica.in_sync]
        said += [f"its replica at broker {name} is gone" for name in gone]
        said += [f"its replica at broker {name} is not in sync" for name in late]
    return said


def missing_record_alarm(known: Leadership) -> str:
    """Return the alarm for a business without a record, with the way to repair it."""
    led = f"broker {known.leader.broker} led it last" if known.leader is not None else "no broker led it last"
    return (
        "the coordinator has no record of it any more, so no broker can take over: was etcd emptied or replaced? "
        f"{led}, in term {known.term}. Restore etcd's backup; without one: stop all brokers, "
        "`venus cluster dissolve --accept-loss` there, start it first, then the others with empty data directories"
    )


def loss_alarms(known: Leadership) -> list[str]:
    """Return one alarm for each unclean election whose losses are not repaired."""
    windows = {window.term: window for window in known.losses}
    return [
        f"the unclean election of term {term} may have lost "
        f"{windows.get(term, 'changes that were acknowledged before it')}: `venus verify --repair` finds and ships them"
        for term in known.unclean_terms
    ]


def _window_message(window: LossWindow) -> broker_pb2.LossWindow:
    return broker_pb2.LossWindow(
        term=window.term,
        first_offset=window.first_offset,
        end_offset=window.end_offset if window.is_measured else None,
        rows=window.rows,
        first_batch=window.first_batch,
        last_batch=window.last_batch,
        verified=window.verified,
    )


def describe_progress(found: InstallationProgress) -> str:
    """Return the progress of an installation as text."""
    of = f" of about {found.records_expected:,}" if found.records_expected else ""
    left = f", about {found.seconds_left} s left" if found.seconds_left >= 0 else ""
    rate = f"{found.bytes_per_s / 2**20:.1f} MiB/s"
    return f"{found.records:,}{of} records received, {found.nbytes >> 20} MiB, {rate}{left}"
