"""Client of the Admin service: the state of a broker, and decisions in place of a lost producer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import TypeVar

from google.protobuf.message import Message

from venus.model import Verdict
from venus.rpc.connection import BrokerConnection
from venus.rpc.sealed import ask
from venus.wire import broker_pb2

M = TypeVar("M", bound=Message)

CALL_TIMEOUT_S = 30.0
#: Number of tables in a status. `whole_status` reads all tables, in pages of this size.
SHOWN_TABLES_MAX = 1_000
NAMED_TABLES_MAX = 50_000
PAGE_TABLES = 10_000
#: The broker frees the space before it answers.
FORGET_TIMEOUT_S = 600.0
#: The broker first asks the brokers of the old home, and waits seconds for each that is gone.
PROMOTE_TIMEOUT_S = 300.0


class AdminClient:
    """Connection to the Admin service of a broker, or of the leader of several."""

    def __init__(self, address: str, *, timeout_s: float = CALL_TIMEOUT_S) -> None:
        self._connection = BrokerConnection(address)
        self._timeout_s = timeout_s

    @property
    def address(self) -> str:
        """HOST:PORT of the broker that answered last."""
        return self._connection.address

    def status(self, business: str = "", *, named: Iterable[str] = ()) -> broker_pb2.BrokerStatus:
        """Return the state of one business, or of all, with some of their tables; `named` selects tables."""
        names = tuple(named)
        most = NAMED_TABLES_MAX if names else SHOWN_TABLES_MAX
        request = broker_pb2.StatusRequest(business=business, tables_max=most, tables=names)
        return self._ask(business, "Status", request, broker_pb2.BrokerStatus)

    def whole_status(self, business: str) -> broker_pb2.BrokerStatus:
        """Return the state of one business, with all of its tables."""
        request = broker_pb2.StatusRequest(business=business, tables_max=PAGE_TABLES)
        status = self._ask(business, "Status", request, broker_pb2.BrokerStatus)
        entry = _entry(status, business)
        if entry is None or len(entry.tables) >= entry.tables_total:
            return status
        del entry.tables[:]
        request.tables_after = 0
        while (page := _entry(self._ask(business, "Status", request, broker_pb2.BrokerStatus), business)) is not None:
            entry.tables.extend(page.tables)
            if not page.tables:
                break
            request.tables_after = page.tables[-1].table_id
        return status

    def mirrored_tables(self, business: str) -> tuple[str, ...]:
        """Return the tables of a business that the broker's set mirrors, as its labels name them; () means all."""
        found = [entry for entry in self.status(business).businesses if entry.business == business]
        return tuple(name for entry in found if entry.HasField("mirror") for name in entry.mirror.only)

    def row_filters(self, business: str) -> tuple[tuple[str, str], ...]:
        """Return the tables that the broker's set mirrors only in part, each with its predicate."""
        found = [entry for entry in self.status(business).businesses if entry.business == business]
        return tuple((one.table, one.predicate) for entry in found for one in entry.mirror.where)

    def decide(self, business: str, batch_no: int, verdict: Verdict) -> broker_pb2.Decided:
        """Decide half messages in place of the producer, which is fenced and reads the outcome when it returns."""
        request = broker_pb2.DecideRequest(
            business=business, batch_no=batch_no, verdict=broker_pb2.Verdict.ValueType(verdict)
        )
        return self._ask(business, "Decide", request, broker_pb2.Decided)

    def forget(self, business: str, group: str) -> None:
        """Remove a consumer group that will not return, so that it no longer holds back retention."""
        request = broker_pb2.ForgetRequest(business=business, group=group)
        self._ask(business, "Forget", request, broker_pb2.Empty)

    def forget_business(self, business: str) -> None:
        """Remove a business permanently, with its queue, full data and consumers; Refused while it is in use."""
        request = broker_pb2.ForgetBusinessRequest(business=business)
        self._ask(business, "ForgetBusiness", request, broker_pb2.Empty, FORGET_TIMEOUT_S)

    def close_losses(
        self, business: str, group: str, terms: Sequence[int], home_terms: Sequence[int] = ()
    ) -> list[str]:
        """Confirm that a group's target equals source and full data; return the groups still to be compared.

        `terms` of unclean elections, `home_terms` of promotions.
        """
        request = broker_pb2.CloseLossesRequest(business=business, group=group, terms=terms, home_terms=home_terms)
        return list(self._ask(business, "CloseLosses", request, broker_pb2.CloseLossesAnswer).waiting_for)

    def give_up(self, business: str, home_terms: Sequence[int]) -> None:
        """Close the loss windows of promotions without a comparison: accept what may have been lost."""
        request = broker_pb2.CloseLossesRequest(business=business, home_terms=home_terms, give_up=True)
        self._ask(business, "CloseLosses", request, broker_pb2.CloseLossesAnswer)

    def promote(self, business: str, *, only_look: bool, force: bool) -> broker_pb2.Promoted:
        """Promote a mirror to the home of a business, or return what that would do. Raises Refused."""
        request = broker_pb2.PromoteRequest(business=business, only_look=only_look, force=force)
        return self._ask(business, "Promote", request, broker_pb2.Promoted, PROMOTE_TIMEOUT_S)

    def step_down(self, business: str, home: broker_pb2.Home) -> None:
        """Inform a returning home that another set has replaced it."""
        request = broker_pb2.StepDownRequest(business=business, home=home)
        self._ask(business, "StepDown", request, broker_pb2.Empty)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _ask(self, business: str, method: str, request: Message, kind: type[M], timeout_s: float | None = None) -> M:
        """Call a method of the Admin service, and return its answer."""
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        return self._connection.call(
            business, lambda channel: ask(channel, f"Admin/{method}", request, kind, timeout_s=limit_s)
        )

    def __enter__(self) -> AdminClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _entry(status: broker_pb2.BrokerStatus, business: str) -> broker_pb2.BusinessStatus | None:
    """Return the status of one business, None if it is not there."""
    return next((found for found in status.businesses if found.business == business), None)


def is_home(network: broker_pb2.NetworkStatus, entry: broker_pb2.BusinessStatus | None) -> bool:
    """Return whether producers may ship a business to this broker: by configuration, or since its promotion.

    `entry` None: the broker has no data of the business yet.
    """
    if entry is not None and (entry.replaced or entry.HasField("mirror")):
        return False
    was_promoted = entry is not None and bool(entry.home.home_term) and entry.home.set == network.set
    return was_promoted or not network.upstream
