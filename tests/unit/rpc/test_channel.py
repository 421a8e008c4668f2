"""A failing connection attempt ends fast, and its error names the remedy."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable

import pytest

from tests.support.waiting import eventually
from venus.errors import Unavailable
from venus.rpc.admin import AdminClient
from venus.rpc.channel import CONNECT_TIMEOUT_S, open_channel
from venus.rpc.producer import Producer
from venus.rpc.snapshots import SnapshotClient
from venus.rpc.subscriber import Subscriber


@pytest.fixture
def unused_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize(
    "make",
    [
        open_channel,
        AdminClient,
        SnapshotClient,
        lambda address: Producer(address, "main", "test", window_bytes_max=1),
        lambda address: Subscriber(address, "main", "test", credit_bytes=1),
    ],
)
def test_no_broker_is_said_at_once(unused_address: str, make: Callable[[str], object]) -> None:
    def is_quick() -> bool:
        started = time.monotonic()
        with pytest.raises(
            Unavailable, match=r"broker at .* cannot be reached; is `venus run` or `venus broker` running\?"
        ) as refused:
            make(unused_address)
        took_s = time.monotonic() - started
        assert refused.value.hint == "check [broker] listen and address (Connection refused)"
        return took_s < CONNECT_TIMEOUT_S / 2

    eventually(is_quick, "a refusal long before the time is up", timeout_s=5 * CONNECT_TIMEOUT_S)


def test_a_port_that_never_answers_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, pytest.raises(Unavailable, match="cannot be reached"):
        open_channel(f"127.0.0.1:{listener.getsockname()[1]}", timeout_s=0.5)


def test_another_program_on_the_port_is_not_taken_as_a_broker() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            client, _ = listener.accept()
            with client:
                client.recv(100)
                client.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(Unavailable, match="cannot be reached"):
            open_channel(f"127.0.0.1:{listener.getsockname()[1]}")
        thread.join()
