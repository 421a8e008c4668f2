"""`venus forget` at a running broker removes businesses, and broker sets that pull from it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.support.brokers.servers import BUSINESS, business_status, fill
from tests.support.processes import forked
from venus.broker.service.process import RunningBroker
from venus.errors import Refused
from venus.rpc.admin import AdminClient
from venus.rpc.producer import Producer
from venus.rpc.subscriber import Subscriber

pytestmark = pytest.mark.integration


@pytest.fixture
def config(tmp_path: Path, broker: RunningBroker) -> Path:
    path = tmp_path / "venus.toml"
    path.write_text(f'[broker]\naddress = "{broker.address}"\n')
    return path


def venus(config: Path, *arguments: str, code: int = 0) -> tuple[str, str]:
    command = [sys.executable, "-m", "venus.cli", "forget", *arguments, "-c", str(config)]
    done = forked.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code, done.stderr
    return done.stdout, done.stderr


def test_a_business_is_forgotten_after_confirmation(broker: RunningBroker, config: Path) -> None:
    fill(broker.address, 1, 3, rows=5)
    fill(broker.address, 1, 1, business="typo")

    assert "--target NAME or --business NAME" in venus(config, code=2)[1]
    assert "--target NAME or --business NAME" in venus(config, "--target", "t", "--business", "b", code=2)[1]
    assert "did you mean typo?" in venus(config, "--business", "tipo", "--yes", code=2)[1]
    refused = venus(config, "--business", "typo", code=3)[1]
    assert "1 table, about 1 row, 1 change;" in refused
    assert "--yes" in refused

    out, _ = venus(config, "--business", "typo", "--yes", "--json")
    assert json.loads(out) == {"forgotten_business": "typo"}
    with AdminClient(broker.address) as admin:
        assert [b.business for b in admin.status().businesses] == [BUSINESS]
    assert business_status(broker.address).next_offset == 15


def test_a_set_that_no_longer_pulls_is_forgotten_by_its_name_in_the_status(broker: RunningBroker, config: Path) -> None:
    fill(broker.address, 1, 1, rows=5)
    for group in ("mirror/eu", f"{BUSINESS}/eu"):
        with Subscriber(broker.address, BUSINESS, group, credit_bytes=1 << 20) as reader:
            reader.open(0, 0)

    assert "It has eu, mirror/eu." in venus(config, "--target", "mirror/us", "--yes", code=2)[1]
    out, _ = venus(config, "--target", "mirror/eu", "--yes")

    assert "no longer keeps anything for target mirror/eu" in out
    assert [c.group for c in business_status(broker.address).consumers] == [f"{BUSINESS}/eu"]


def test_a_business_whose_producer_is_connected_is_not_forgotten(broker: RunningBroker) -> None:
    fill(broker.address, 1, 1)
    with (
        Producer(broker.address, BUSINESS, "p", window_bytes_max=1 << 20) as sender,
        AdminClient(broker.address) as admin,
    ):
        sender.connect(0, 0)
        with pytest.raises(Refused, match="connected"):
            admin.forget_business(BUSINESS)
