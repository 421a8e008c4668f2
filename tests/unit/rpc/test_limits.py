"""Every number, name and count from a peer has a range, and a field without one has a reason."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message_factory import GetMessageClass

from venus.errors import ProtocolError
from venus.rpc import limits
from venus.rpc.limit_rules import Number
from venus.wire import broker_pb2, change_pb2, mirror_pb2, network_pb2, overlay_pb2, replica_pb2

#: Fields without a range, by message: digests, and fields with a digest or a check of their own.
FREE = {
    "*": {"seal", "digest", "rows_digest"},
    "Half": {"body"},
    "Squeezed": {"block"},
    "Increment": {"body"},
    "SnapshotChunk": {"body"},
    "Resend": {"reason"},  # text for people
    "Promoted": {"trouble"},
    "MirrorBegin": {"network", "reason", "snapshot_id"},  # checked where they are read
    "TableChanges": {"record_ids", "record_id_sizes", "rows", "row_sizes", "is_deleted"},  # machine/envelope.py
    "ProducerFrame": set(),
    "InstalledPart": {"base"},  # a digest
    "NumberColumn": {"values"},  # venus/broker/matching/messages.py
    "MatchedPart": {"changes", "interests"},
}
#: Text for people, or read by the codec with checks of its own (venus/codec/schema.py).
NOT_HERE = {"BrokerStatus", "TableSchema"}
BOOLEAN = FieldDescriptor.TYPE_BOOL


def messages() -> list[Descriptor]:
    """Return every message that a call can carry, and the batch."""
    found: dict[str, Descriptor] = {}

    def add(kind: Descriptor) -> None:
        if kind.name not in found and kind.name not in NOT_HERE:
            found[kind.name] = kind
            for field in kind.fields:
                if field.message_type is not None:
                    add(field.message_type)

    files = (broker_pb2.DESCRIPTOR, network_pb2.DESCRIPTOR, overlay_pb2.DESCRIPTOR, replica_pb2.DESCRIPTOR)
    for service in (service for file in files for service in file.services_by_name.values()):
        for method in service.methods:
            add(method.input_type)
            add(method.output_type)
    add(change_pb2.BatchBody.DESCRIPTOR)
    add(mirror_pb2.MirrorBegin.DESCRIPTOR)
    return list(found.values())


@pytest.mark.parametrize("kind", messages(), ids=lambda kind: kind.name)
def test_every_field_has_a_range(kind: Descriptor) -> None:
    rules = limits.RULES.get(kind.name, {})
    free = FREE["*"] | FREE.get(kind.name, set())
    for field in kind.fields:
        single = field.message_type is not None and not limits.is_repeated(field)
        if field.name in free or field.type == BOOLEAN or single:
            continue
        assert field.name in rules, f"{kind.name}.{field.name}"
    assert set(rules) <= {field.name for field in kind.fields}


#: Limits of each protobuf type itself.
MOST = {
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_ENUM: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
}
RANGES = [
    pytest.param(kind, field, rule, id=f"{kind.name}.{field}")
    for kind in messages()
    for field, rule in limits.RULES.get(kind.name, {}).items()
    if isinstance(rule, Number) and kind.fields_by_name[field].cpp_type in MOST
]


@pytest.mark.parametrize(("kind", "field", "rule"), RANGES)
def test_the_range_of_a_number_has_limits_and_leaves_room_for_larger_ones(
    kind: Descriptor, field: str, rule: Number
) -> None:
    most = MOST[kind.fields_by_name[field].cpp_type]
    for beyond in (rule.low - 1, rule.high + 1):
        if most[0] <= beyond <= most[1]:
            message = GetMessageClass(kind)()
            setattr(message, field, beyond)
            with pytest.raises(ProtocolError, match=rf"{kind.name}\.\w+ is|{kind.name}\.\w+ has"):
                limits.check(message)
    assert rule.complaint(rule.low) == rule.complaint(rule.high) == ""
    assert rule.high + limits.UINT32_MAX < 2**63, "an integer with a sign of a target"


@pytest.mark.parametrize(
    ("message", "complaint"),
    [
        (broker_pb2.Init(business="b", source_epoch=2**64 - 2), "Init.source_epoch is 18446744073709551614"),
        (broker_pb2.Init(business=""), "Init.business is ''"),
        (overlay_pb2.OverlayBroker(address="a:1", load=float("nan")), "OverlayBroker.load is nan"),
        (overlay_pb2.OverlayBroker(address="a:1", load=-1.0), "OverlayBroker.load is -1.0"),
        (overlay_pb2.OverlayBroker(address="a"), "OverlayBroker.address"),
        (overlay_pb2.Between(column="a", low=float("nan")), "Between.low is nan"),
        (broker_pb2.Init(business="x" * 129), "(129 characters)"),
        (broker_pb2.Init(business="a\nb"), r"'a\\nb'"),
        (broker_pb2.Init(business=" b"), "no space outside"),
        (broker_pb2.Init(business="b", producer="\x1b[2J"), "Init.producer"),
        (broker_pb2.Decision(batch_no=1, verdict=7), "Decision.verdict is 7: it must be from 0 to 2"),  # type: ignore[arg-type]
        (broker_pb2.Decision(batch_no=0), "Decision.batch_no is 0: it must be from 1"),
        (broker_pb2.ConsumerFrame(acknowledge=2**63), "ConsumerFrame.acknowledge"),
        (broker_pb2.ConsumerFrame(credit_bytes=-1), "ConsumerFrame.credit_bytes is -1"),
        (broker_pb2.ConsumerFrame(unaccounted_rows=-(2**63)), "ConsumerFrame.unaccounted_rows"),
        (broker_pb2.Open(business="b", group="g", offset=-2), "Open.offset is -2: it must be from -1"),
        (broker_pb2.ConsumerFrame(open=broker_pb2.Open(business="b")), "Open.group"),
        (broker_pb2.OpenSnapshotRequest(business="b", splits=2**32 - 1), "OpenSnapshotRequest.splits"),
        (broker_pb2.OpenSnapshotRequest(business="b", lease_s=2**32 - 1), "OpenSnapshotRequest.lease_s"),
        (broker_pb2.ReadSplitRequest(snapshot_id="s", after=b"x" * 2**21), "has 2097152 bytes"),
        (broker_pb2.OpenSnapshotRequest(business="b", table_ids=[1] * 100_001), "has 100001 items"),
        (
            broker_pb2.BrokerStatus(network=broker_pb2.NetworkStatus(networks=["n"] * 101)),
            "NetworkStatus.networks has 101 items",
        ),
        (broker_pb2.BrokerStatus(network=broker_pb2.NetworkStatus(networks=["n" * 65])), "(65 characters)"),
        (change_pb2.BatchBody(batch_no=1, first_sequence=2**64 - 5), "BatchBody.first_sequence"),
        (
            change_pb2.BatchBody(batch_no=1, first_sequence=1, tables=[change_pb2.TableChanges(count=0)]),
            "TableChanges.count is 0",
        ),
        (
            broker_pb2.ProducerFrame(decisions=[broker_pb2.Decision(batch_no=1), broker_pb2.Decision(epoch=2**63)]),
            "Decision.epoch",
        ),
    ],
)
def test_a_value_out_of_its_range_is_named_in_one_line(message: Any, complaint: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        limits.check(message, "here: ")
    assert str(caught.value).startswith("here: ")
    assert complaint.replace("\\\\", "\\") in str(caught.value)
    assert "\n" not in str(caught.value)


def test_usual_values_pass() -> None:
    limits.check(
        broker_pb2.ProducerFrame(
            init=broker_pb2.Init(business="größe/шоп", producer="host:1", source_epoch=2**48, source_last_batch=0),
            halves=[broker_pb2.Half(batch_no=1, digest=2**64 - 1, body=b"x")],
            decisions=[broker_pb2.Decision(epoch=1, batch_no=1, digest=2**64 - 1, verdict=broker_pb2.COMMIT)],
        )
    )
    limits.check(broker_pb2.ConsumerFrame(open=broker_pb2.Open(business="b", group="b/t", offset=-1)))
