"""A flipped bit in any message of a call is detected, in both directions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message

from tests.integration.service.conftest import StartBroker
from tests.support.brokers.servers import BUSINESS, business_status, fill
from tests.support.faults.grpc_proxy import GrpcProxy
from tests.support.faults.proxy import Direction
from venus.broker.service.process import RunningBroker
from venus.errors import DigestMismatch, IllegalTransition, ProtocolError, Refused, Unavailable
from venus.model import Verdict
from venus.rpc import snapshots as snapshots_module
from venus.rpc.admin import AdminClient
from venus.rpc.channel import open_channel
from venus.rpc.errors import from_rpc_error
from venus.rpc.sealed import SEAL_BYTES
from venus.rpc.snapshots import SnapshotClient
from venus.wire import broker_pb2, broker_pb2_grpc

ROWS = 40

Ends = tuple[AdminClient, SnapshotClient, broker_pb2.Snapshot]
Call = Callable[[Ends], object]


def _status(ends: Ends) -> object:
    status = ends[0].status(BUSINESS)
    (found,) = status.businesses
    return found.next_offset, found.last_sequence, [t.rows_estimate for t in found.tables], status.version


def _decide(ends: Ends) -> object:
    with pytest.raises(IllegalTransition, match=r"half message 77$"):
        ends[0].decide(BUSINESS, 77, Verdict.ROLLBACK)
    return "refused"


def _forget(ends: Ends) -> object:
    with pytest.raises(Unavailable, match="has no consumer 'missing'"):
        ends[0].forget(BUSINESS, "missing")
    return "refused"


def _forget_business(ends: Ends) -> object:
    with pytest.raises(Unavailable, match="does not know business 'nothing'"):
        ends[0].forget_business("nothing")
    return "refused"


def _close_losses(ends: Ends) -> object:
    return ends[0].close_losses(BUSINESS, f"{BUSINESS}/missing", (1,))


def _promote(ends: Ends) -> object:
    with pytest.raises(Refused, match="is not a mirror at this set"):
        ends[0].promote(BUSINESS, only_look=True, force=False)
    return "refused"


def _step_down(ends: Ends) -> object:
    ends[0].step_down(BUSINESS, broker_pb2.Home(set="second", home_term=1, addresses=["b:1"]))
    return "replaced"


def _open(ends: Ends) -> object:
    found = ends[1].open(BUSINESS, splits=2, lease_s=30, holder="test")
    ends[1].close(found.snapshot_id)
    found.ClearField("snapshot_id")
    return found


def _renew(ends: Ends) -> object:
    return ends[1].renew(ends[2].snapshot_id)


def _sum(ends: Ends) -> object:
    return ends[1].totals(ends[2].snapshot_id)


def _close(ends: Ends) -> object:
    ends[1].close("no such snapshot")
    return "closed"


def _read(ends: Ends) -> object:
    split = ends[2].splits[-1]
    chunks = list(ends[1].read_split(ends[2].snapshot_id, split, chunk_bytes=1 << 20))
    return [chunk.rows.packed.data for chunk in chunks]


CALLS: dict[str, Call] = {
    "Status": _status,
    "Decide": _decide,
    "Forget": _forget,
    "ForgetBusiness": _forget_business,
    "CloseLosses": _close_losses,
    "Promote": _promote,
    "StepDown": _step_down,
    "OpenSnapshot": _open,
    "RenewSnapshot": _renew,
    "SumSnapshot": _sum,
    "CloseSnapshot": _close,
    "ReadSplit": _read,
}
#: Methods whose answer is an error: a gRPC status without a message.
NO_ANSWER = ("Decide", "Forget", "ForgetBusiness", "Promote")
#: All bits of this many bytes at the start, and of the seal, are flipped; between them one bit in this many.
SOME, MOST = (20, 113), (150, 9)


def test_every_method_is_tested() -> None:
    services = broker_pb2.DESCRIPTOR.services_by_name
    unary = {m.name for s in services.values() for m in s.methods if not m.client_streaming}
    assert unary == set(CALLS)


@pytest.mark.parametrize("bits", [SOME, pytest.param(MOST, marks=pytest.mark.slow)], ids=["some", "most"])
@pytest.mark.parametrize("way", Direction)
@pytest.mark.parametrize("method", CALLS)
def test_a_flipped_bit_is_refused_or_harmless(
    broker: RunningBroker, method: str, way: Direction, bits: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    if way is Direction.DOWN and method in NO_ANSWER:
        return
    monkeypatch.setattr(snapshots_module, "RESUMES_MAX", 0)
    fill(broker.address, 1, 1, rows=ROWS)
    with (
        GrpcProxy(broker.address) as proxy,
        AdminClient(proxy.address) as admin,
        SnapshotClient(proxy.address) as snapshots,
    ):
        ends = admin, snapshots, snapshots.open(BUSINESS, splits=2)
        proxy.damage(f"/{method}", way, None)
        expected = CALLS[method](ends)
        length = len(proxy.seen)
        assert length
        refused, (first_bytes, stride) = 0, bits
        each = {*range(8 * min(length, first_bytes)), *range(8 * (length - SEAL_BYTES), 8 * length)}
        for bit in sorted({*each, *range(0, 8 * length, stride)}):
            proxy.damage(f"/{method}", way, bit)
            try:
                assert CALLS[method](ends) == expected, f"bit {bit} of {method} was believed"
            except (DigestMismatch, ProtocolError):
                refused += 1
        assert refused >= 0.9 * len(each)


# -- older peers without seals
# ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("service", "method", "request_"),
    [
        (broker_pb2_grpc.DeliveryStub, "OpenSnapshot", broker_pb2.OpenSnapshotRequest(business=BUSINESS)),
        (broker_pb2_grpc.AdminStub, "Decide", broker_pb2.DecideRequest(business=BUSINESS, batch_no=1)),
        (broker_pb2_grpc.AdminStub, "ForgetBusiness", broker_pb2.ForgetBusinessRequest(business=BUSINESS)),
    ],
)
def test_an_older_client_gets_an_error_about_its_missing_seals(
    broker: RunningBroker, service: Any, method: str, request_: Any
) -> None:
    fill(broker.address, 1, 1)
    with open_channel(broker.address) as channel:
        with pytest.raises(grpc.RpcError) as caught:
            getattr(service(channel), method)(request_, timeout=60)
        error = from_rpc_error(caught.value)
    assert type(error) is ProtocolError  # the client does not retry after this error
    assert str(error) == f"a request of {method} has no seal: its sender is an older VENUS, or none"
    assert error.hint == "run the same version of VENUS on both sides"
    assert business_status(broker.address).next_offset == 1


@pytest.mark.parametrize("service", ["Ingest/Produce", "Delivery/Subscribe"])
def test_an_older_clients_stream_gets_the_same_error(broker: RunningBroker, service: str) -> None:
    frame: Message = (
        broker_pb2.ProducerFrame(init=broker_pb2.Init(business=BUSINESS))
        if service == "Ingest/Produce"
        else broker_pb2.ConsumerFrame(open=broker_pb2.Open(business=BUSINESS, group="g"))
    )
    with open_channel(broker.address) as channel:
        call: Any = channel.stream_stream(f"/venus.wire.{service}")
        with pytest.raises(grpc.RpcError) as caught:
            list(call(iter([frame.SerializeToString()]), timeout=60))
    error = from_rpc_error(caught.value)
    assert type(error) is ProtocolError
    assert "has no seal: its sender is an older VENUS" in str(error)


def test_any_grpc_tool_may_ask_for_the_status(broker: RunningBroker) -> None:
    fill(broker.address, 1, 1)
    with open_channel(broker.address) as channel:
        stub = broker_pb2_grpc.AdminStub(channel)
        for request in (broker_pb2.StatusRequest(), broker_pb2.StatusRequest(business=BUSINESS)):
            (found,) = stub.Status(request, timeout=60).businesses
            assert found.next_offset == 1


def test_an_answer_without_a_seal_is_taken_as_an_older_brokers(
    monkeypatch: pytest.MonkeyPatch, broker: RunningBroker
) -> None:
    with GrpcProxy(broker.address) as proxy, AdminClient(proxy.address) as admin:
        monkeypatch.setattr(proxy, "_pass_through", lambda method, way, messages: _open_sealed(method, way, messages))
        with pytest.raises(ProtocolError, match="the broker's answer to Status has no seal") as caught:
            admin.status()
    assert not caught.value.retryable


def _open_sealed(method: str, way: Direction, messages: Any) -> Any:
    for message in messages:
        yield message[:-9] if way is Direction.DOWN and method.endswith("/Status") else message


# -- the plan and its totals -----------------------------------------------------------------------------------------


def test_an_unplanned_split_is_refused(broker: RunningBroker) -> None:
    fill(broker.address, 1, 1, rows=ROWS)
    with SnapshotClient(broker.address) as snapshots:
        found = snapshots.open(BUSINESS, splits=2)
        rows = [sum(len(c.rows) for c in snapshots.read_split(found.snapshot_id, split)) for split in found.splits]
        assert len(rows) == 2
        assert sum(rows) == ROWS
        narrow = broker_pb2.Split(
            table_id=found.splits[1].table_id, low=found.splits[1].low + b"\xff", high=found.splits[1].high
        )
        with pytest.raises(ProtocolError, match="no such split"):
            list(snapshots.read_split(found.snapshot_id, narrow))
        assert sum(len(c.rows) for c in snapshots.read_split(found.snapshot_id, narrow, own_range=True)) < rows[1]
        outside = snapshots_module.Resume(after=found.splits[1].low)
        with pytest.raises(ProtocolError, match="outside"):
            list(snapshots.read_split(found.snapshot_id, found.splits[0], outside))


def test_the_plan_survives_a_restart_of_the_broker(start_broker: StartBroker) -> None:
    first = start_broker()
    fill(first.address, 1, 1, rows=ROWS)
    with SnapshotClient(first.address) as snapshots:
        found = snapshots.open(BUSINESS, splits=2)
    first.stop()
    with SnapshotClient(start_broker().address) as snapshots:
        assert sum(len(c.rows) for s in found.splits for c in snapshots.read_split(found.snapshot_id, s)) == ROWS
        (totals,) = snapshots.totals(found.snapshot_id).values()
        assert totals.rows == ROWS


def test_a_resumed_split_has_the_totals_of_the_whole(broker: RunningBroker) -> None:
    fill(broker.address, 1, 4, rows=500)
    with SnapshotClient(broker.address) as snapshots:
        found = snapshots.open(BUSINESS)
        (split,) = found.splits
        resume = snapshots_module.Resume()
        first = next(snapshots.read_split(found.snapshot_id, split, resume, chunk_bytes=1 << 14))
        rest = list(snapshots.read_split(found.snapshot_id, split, resume, chunk_bytes=1 << 14))
        assert len(rest) > 1
        assert len(first.rows) + sum(len(chunk.rows) for chunk in rest) == 2000 == resume.totals.rows
        skipping = snapshots_module.Resume(after=rest[0].last)  # as if the first two chunks had been received
        with pytest.raises(ProtocolError, match="a split of 2000 rows arrived with"):
            list(snapshots.read_split(found.snapshot_id, split, skipping, chunk_bytes=1 << 14))


def test_the_broker_verifies_the_planned_splits_itself(broker: RunningBroker) -> None:
    fill(broker.address, 1, 1, rows=ROWS)
    with SnapshotClient(broker.address) as snapshots:
        found = snapshots.open(BUSINESS, splits=2)
        table_id = found.splits[0].table_id
        before = snapshots.totals(found.snapshot_id)[table_id]  # no split was read yet
        resume = [snapshots_module.Resume() for _ in found.splits]
        for split, at in zip(found.splits, resume, strict=True):
            list(snapshots.read_split(found.snapshot_id, split, at))
        assert snapshots.totals(found.snapshot_id)[table_id] == before
        loaded = {table_id: resume[0].totals}
        with pytest.raises(ProtocolError, match=r"shop\.t1: \d+ rows were loaded of the 40"):
            snapshots.confirm(found.snapshot_id, loaded, {table_id: "shop.t1"})
        with pytest.raises(ProtocolError, match=r"shop\.t1: 0 rows"):
            snapshots.confirm(found.snapshot_id, {}, {table_id: "shop.t1"})
        loaded[table_id].include(resume[1].totals)
        snapshots.confirm(found.snapshot_id, loaded, {table_id: "shop.t1"})
        loaded[table_id].digest ^= 1
        with pytest.raises(ProtocolError, match="other rows were loaded"):
            snapshots.confirm(found.snapshot_id, loaded, {table_id: "shop.t1"})
