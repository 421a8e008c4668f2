"""A producer that ships a table version without its columns is refused; other producers and the broker continue."""

from __future__ import annotations

import pytest

from tests.support.brokers.servers import BUSINESS, business_status, commit, fill
from tests.support.engines import engines
from tests.support.engines.batches import half
from venus.broker.service.process import RunningBroker
from venus.errors import ProtocolError
from venus.rpc.producer import Producer

pytestmark = pytest.mark.integration


def test_a_version_without_columns_affects_only_its_sender(broker: RunningBroker) -> None:
    with Producer(broker.address, "another", "p", window_bytes_max=1 << 20) as other:
        other.connect(0, 0)
        fill(broker.address, 1, 2)
        with Producer(broker.address, BUSINESS, "careless", window_bytes_max=1 << 20) as careless:
            careless.connect(0, 2)
            careless.send_half(engines.half(3, 3, engines.rows(0, 1), version=4, described=False))
            with pytest.raises(ProtocolError, match="batch 3 has changes of table 1 in version 4, which neither"):
                careless.wait_until_persisted(3, 30)
        assert commit(other, [half(1)]).next_offset == 1
    assert list(business_status(broker.address).halves) == []
    fill(broker.address, 3, 3)
    assert business_status(broker.address).next_offset == 3
