"""A broker process that is killed or overloaded, or whose store reports an error."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.brokers.servers import (
    BUSINESS,
    BrokerProcess,
    RssWatch,
    business_status,
    commit,
    data,
    fill,
    settings,
    take,
)
from tests.support.engines.batches import half
from tests.support.processes import forked
from tests.support.waiting import eventually
from venus.broker.service.process import start_in_thread
from venus.errors import ConfigError, Unavailable
from venus.model import Verdict
from venus.rpc.producer import Producer
from venus.rpc.subscriber import Subscriber

pytestmark = [pytest.mark.fault, pytest.mark.integration]

MIB = 1 << 20


def test_a_kill_between_half_and_commit_leaves_the_half_message_to_be_decided(tmp_path: Path) -> None:
    chosen = settings(tmp_path, review_after_s=0.2)
    with BrokerProcess(chosen) as broker, Producer(broker.address, BUSINESS, "p", window_bytes_max=MIB) as sender:
        first = sender.connect(0, 0)
        commit(sender, [half(1)])
        sender.send_half(half(2))
        sender.send_half(half(3))
        sender.wait_until_persisted(3)
        broker.kill()
        with pytest.raises(Unavailable):
            sender.wait_until_decided(2, 30)
    with BrokerProcess(chosen) as broker, Producer(broker.address, BUSINESS, "p", window_bytes_max=MIB) as sender:
        ack = sender.connect(first.epoch, 1)
        assert ack.epoch > first.epoch
        assert (ack.last_batch, [(r.batch_no, r.digest) for r in ack.undecided]) == (
            1,
            [(n, half(n).digest) for n in (2, 3)],
        )
        reviews = eventually(sender.take_reviews)
        assert reviews[0].batch_no == 2
        sender.decide(3, half(3).digest, Verdict.COMMIT)
        assert sender.wait_until_decided(3).next_offset == 3
        with Subscriber(broker.address, BUSINESS, "g", credit_bytes=MIB) as reader:
            reader.open(0, 0)
            assert data(take(reader, 3)) == [half(n).body for n in (1, 2, 3)]
        assert broker.stop() == 0


def test_ten_times_overload_and_a_stopped_consumer_leave_memory_bounded(tmp_path: Path) -> None:
    limit = 16 * MIB
    chosen = settings(tmp_path, buffer_bytes_max=limit, retain_bytes=MIB)
    with (
        BrokerProcess(chosen) as broker,
        Producer(broker.address, BUSINESS, "p", window_bytes_max=limit) as sender,
        Subscriber(broker.address, BUSINESS, "stopped", credit_bytes=MIB) as stopped,
    ):
        sender.connect(0, 0)
        stopped.open(0, 0)
        before = broker.rss_bytes
        with RssWatch(broker) as watch:
            for n in range(1, 10 * limit // MIB + 1):
                message = half(n, payload="x" * MIB)
                sender.send_half(message)
                if n % 8 == 0:
                    sender.wait_until_persisted(n)
                    sender.decide(n, message.digest, Verdict.COMMIT)
            sender.wait_until_decided(n)
        assert watch.peak_bytes - before < limit + 100 * MIB
        eventually(lambda: business_status(broker.address).consumers[0].backlog_rows == n)
        assert len(data(take(stopped, n))) == n


def test_sigterm_ends_streams_and_the_process(tmp_path: Path) -> None:
    with BrokerProcess(settings(tmp_path)) as broker:
        assert broker.line.startswith("broker listens on 127.0.0.1:")
        assert str(tmp_path) in broker.line
        with Producer(broker.address, BUSINESS, "p", window_bytes_max=MIB) as sender:
            sender.connect(0, 0)
            assert broker.stop() == 0
            with pytest.raises(Unavailable):
                sender.wait_until_persisted(1, 30)


def test_a_fatal_storage_error_ends_the_process_at_once(tmp_path: Path) -> None:
    program = """
import sys
from venus.broker.service.process import end_process
from venus.errors import StorageError
end_process(StorageError("the disk has gone"))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 12
    assert done.stderr == "venus broker: fatal: the disk has gone\n"


def test_the_fatal_line_is_a_line_of_the_log(tmp_path: Path) -> None:
    program = """
import logging, sys
from venus.broker.service.process import end_process
from venus.cli.invocation import start_logging
from venus.errors import StorageError
start_logging(logging.INFO, sys.argv[1], "broker", lambda text: text.replace("geheim", "***"))
end_process(StorageError("the disk at geheim has gone"))
"""
    for log_format in ("json", "text"):
        done = subprocess.run(
            [sys.executable, "-c", program, log_format], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 12
        (line,) = done.stderr.splitlines()
        said = json.loads(line) if log_format == "json" else {"level": line.split()[2], "message": line}
        assert said["level"] == "CRITICAL"
        assert said["message"].endswith("fatal: the disk at *** has gone")


def test_a_port_in_use_is_reported_in_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ConfigError, match=f"broker.listen {address} cannot be used"):
            start_in_thread(settings(tmp_path / "a", listen=address))
        with pytest.raises(ConfigError, match=f"broker.http {address} cannot be used"):
            start_in_thread(settings(tmp_path / "b", http=address))


def test_two_brokers_do_not_share_a_port_or_a_data_directory(tmp_path: Path) -> None:
    first = start_in_thread(settings(tmp_path / "a"))
    try:
        with pytest.raises(ConfigError):
            start_in_thread(settings(tmp_path / "b", listen=first.address))
        with pytest.raises(ConfigError) as caught:
            start_in_thread(settings(tmp_path / "a"))
        assert str(caught.value) == f"broker.data_dir {tmp_path / 'a'} is in use by another broker"
        (tmp_path / "venus.toml").write_text('[broker]\ndata_dir = "a"\nlisten = "127.0.0.1:0"\nhttp = ""\n')
        second = forked.run(
            [sys.executable, "-m", "venus.cli", "broker"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert second.returncode == 2
        assert second.stderr.splitlines() == [
            f"venus: {caught.value}",
            "  Stop the other broker, or give this one a data_dir of its own.",
        ]
        fill(first.address, 1, 3)
    finally:
        first.stop()
    again = start_in_thread(settings(tmp_path / "a"))
    assert business_status(again.address).next_offset == 3
    again.stop()
    assert os.path.isdir(tmp_path / "a")
