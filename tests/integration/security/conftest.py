"""A broker with TLS, and a certificate authority."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.brokers.certificates import Authority
from venus.broker.service.process import RunningBroker, start_in_thread

StartSecure = Callable[..., RunningBroker]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "certs")


@pytest.fixture
def start_secure(tmp_path: Path, authority: Authority) -> Iterator[StartSecure]:
    running: list[RunningBroker] = []

    def start(**options: Any) -> RunningBroker:
        found = start_in_thread(authority.settings(tmp_path / f"data{len(running)}", **options))
        running.append(found)
        return found

    yield start
    for broker in running:
        broker.stop()


@pytest.fixture
def secure(start_secure: StartSecure) -> RunningBroker:
    return start_secure()
