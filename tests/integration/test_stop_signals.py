"""Signals stop a long-running process cleanly."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.brokers.servers import settings

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
COMMAND = """
import signal, sys, threading
signal.signal(signal.SIGHUP, signal.{at_first})
from venus.cli.sync import stop_on_signals
stop = threading.Event()
stop_on_signals(stop)
print("runs", flush=True)
print("in order" if stop.wait({patience_s}) else "continues", flush=True)
sys.stdin.read()
"""
#: The signal comes at a moment at which `Event.wait` has the event's lock.
IN_THE_LOCK = """
import signal, threading
from venus.cli.sync import stop_on_signals
stop = threading.Event()
stop_on_signals(stop)
with stop._cond:
    signal.raise_signal(signal.SIGTERM)
print("in order" if stop.wait(60) else "continues")
"""
BROKER = """
import signal, sys
signal.signal(signal.SIGHUP, signal.SIG_DFL)
from venus.broker.service.process import serve
from venus.config import Settings
sys.exit(serve(Settings.model_validate_json(sys.argv[1])))
"""


def start(at_first: str, patience_s: float) -> subprocess.Popen[str]:
    """Return a process that waits for a signal as `venus sync` does."""
    found = subprocess.Popen(
        [sys.executable, "-c", COMMAND.format(at_first=at_first, patience_s=patience_s)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert found.stdout is not None
    assert found.stdout.readline() == "runs\n"
    return found


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_stops_the_process_in_order(number: signal.Signals) -> None:
    process = start("SIG_DFL", 300)
    process.send_signal(number)
    assert process.communicate(timeout=120)[0] == "in order\n"
    assert process.returncode == 0


def test_a_signal_may_come_at_any_moment_of_a_wait() -> None:
    found = subprocess.run([sys.executable, "-c", IN_THE_LOCK], capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert (found.stdout, found.returncode) == ("in order\n", 0)


def test_a_closed_terminal_may_send_its_signal_twice() -> None:
    process = start("SIG_DFL", 300)
    assert process.stdout is not None
    process.send_signal(signal.SIGHUP)
    assert process.stdout.readline() == "in order\n"
    process.send_signal(signal.SIGHUP)
    assert process.communicate(timeout=120)[0] == ""
    assert process.returncode == 0


def test_a_second_signal_stops_the_process_at_once() -> None:
    process = start("SIG_DFL", 300)
    assert process.stdout is not None
    process.send_signal(signal.SIGTERM)
    assert process.stdout.readline() == "in order\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(120) == 128 + signal.SIGTERM


def test_a_process_under_nohup_continues() -> None:
    process = start("SIG_IGN", 0.5)
    process.send_signal(signal.SIGHUP)
    assert process.communicate(timeout=120)[0] == "continues\n"


def test_a_broker_stops_in_order_when_its_terminal_is_closed(tmp_path: Path) -> None:
    chosen = settings(tmp_path / "data").model_dump_json()
    broker = subprocess.Popen([sys.executable, "-u", "-c", BROKER, chosen], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert broker.stdout is not None
    assert "http://" in broker.stdout.readline()
    broker.send_signal(signal.SIGHUP)
    broker.communicate(timeout=60)
    assert broker.returncode == 0
