"""The services that every gRPC tool expects, health and reflection, and the names of the services."""

from __future__ import annotations

import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from venus.broker.service.process import RunningBroker
from venus.broker.service.server import NAMES
from venus.rpc.channel import open_channel

pytestmark = pytest.mark.integration


def test_health_answers_for_every_service(broker: RunningBroker) -> None:
    channel = open_channel(broker.address)
    stub = health_pb2_grpc.HealthStub(channel)
    for name in ("", *NAMES):
        answer = stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=10)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
    channel.close()


def test_reflection_describes_every_message(broker: RunningBroker) -> None:
    channel = open_channel(broker.address)
    database = ProtoReflectionDescriptorDatabase(channel)
    assert set(NAMES) <= set(database.get_services())
    service = DescriptorPool(database).FindServiceByName("venus.wire.Ingest")
    assert [method.name for method in service.methods] == ["Produce"]
    channel.close()
