"""`venus cluster promote` refuses with a remedy, and does exactly what it announces."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.brokers import networks
from tests.support.brokers.servers import BUSINESS, business_status, commit, fill
from tests.support.engines.batches import half
from tests.support.ports import free_port
from tests.support.waiting import eventually
from venus.broker.service.process import RunningBroker
from venus.cli.app import run
from venus.errors import NotLeader
from venus.rpc.admin import AdminClient
from venus.rpc.producer import Producer

pytestmark = pytest.mark.integration
Start = Callable[..., RunningBroker]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with networks.starting(tmp_path) as start:
        yield start


class Console:
    """Commands with a configuration that names one broker."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._file, self._capsys = folder / "venus.toml", capsys

    def run_at(self, address: str, *arguments: str, code: int = 0) -> str:
        """Run a command; return its output and messages."""
        self._file.write_text(f'[broker]\naddresses = ["{address}"]\n[security]\naudit_file = "{self._file}.audit"\n')
        assert run([*arguments, "-c", str(self._file)]) == code, self._capsys.readouterr()
        said = self._capsys.readouterr()
        return said.out + said.err

    @property
    def audit(self) -> list[dict[str, Any]]:
        """Return the lines of the audit log."""
        return [json.loads(line) for line in Path(f"{self._file}.audit").read_text().splitlines()]


@pytest.fixture
def console(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Console:
    return Console(tmp_path, capsys)


def two_cores(start: Start) -> tuple[RunningBroker, RunningBroker]:
    home = start("hq")
    fill(home.address, 1, 3, rows=5)
    second = start("second", home.address, tier="core", level=0)
    networks.has(second.address, 15)
    return home, second


PROMOTE = ("cluster", "promote")


def test_promote_is_refused_while_the_home_answers_unless_forced(start: Start, console: Console) -> None:
    home, second = two_cores(start)
    said = console.run_at(second.address, *PROMOTE, "--yes", code=3)
    assert f"main: the home is not gone, set hq at {home.address} answers: there would be two homes" in said
    assert "Stop the brokers of the old home first" in said
    assert business_status(second.address).mirror.state == "following"

    said = console.run_at(second.address, *PROMOTE, "--yes", "--force")
    assert "main: set second is the home now, no longer hq (home term 1)" in said
    assert eventually(lambda: business_status(home.address).replaced)
    with (
        Producer(home.address, BUSINESS, "late", window_bytes_max=1 << 20) as late,
    ):
        late.connect(1, 3)  # the client is redirected
        assert late.address == second.address
    assert [line["result"] for line in console.audit] == ["exit code 3", "done"]
    assert "promote" in console.audit[1]["what"]


def test_promote_does_nothing_without_yes(start: Start, console: Console) -> None:
    home, second = two_cores(start)
    home.stop()
    said = console.run_at(second.address, *PROMOTE, code=3)
    assert "nothing was done: set second would become the home of main in place of hq" in said
    assert "everything below offset 15" in said
    assert "Repeat with --yes" in said
    assert not business_status(second.address).HasField("home")
    with (
        Producer(second.address, BUSINESS, "early", window_bytes_max=1 << 20) as early,
        pytest.raises(NotLeader, match="takes no changes from producers"),
    ):
        early.connect(1, 3)


def test_a_set_that_was_restarted_while_the_home_is_gone_is_still_a_mirror(start: Start, console: Console) -> None:
    home, second = two_cores(start)
    home.stop()
    second.stop()
    second = start("second", home.address, tier="core", level=0)
    assert networks.wait_for_state(second.address, "cut off").set == "hq"
    said = console.run_at(second.address, *PROMOTE, "--yes")
    assert "main: set second is the home now, no longer hq (home term 1)" in said


def test_promote_is_refused_below_the_core(start: Start, console: Console) -> None:
    home = start("hq")
    fill(home.address, 1, 1)
    access = start("lyon", home.address)
    networks.has(access.address, 1)
    home.stop()
    said = console.run_at(access.address, *PROMOTE, "--yes", code=3)
    assert "set lyon is of tier access: only a core set becomes the home" in said


def test_promote_is_refused_at_a_home_and_for_an_unknown_business(start: Start, console: Console) -> None:
    home, second = two_cores(start)
    said = console.run_at(home.address, *PROMOTE, "--yes", code=3)
    assert "set hq mirrors nothing: it is the home of main" in said
    said = console.run_at(home.address, *PROMOTE, "--business", BUSINESS, "--yes", code=3)
    assert "main is not a mirror at this set, which is its home" in said
    said = console.run_at(second.address, *PROMOTE, "--business", "mian", "--yes", code=2)
    assert "set second has no business 'mian' (did you mean main?)" in said


def test_promote_needs_an_upstream_to_ask_about_the_home(start: Start, console: Console, tmp_path: Path) -> None:
    home, second = two_cores(start)
    home.stop()
    second.stop()
    second = start("second")
    said = console.run_at(second.address, *PROMOTE, "--business", BUSINESS, "--yes", code=3)
    assert "the home cannot be asked whether it is alive: [cluster] upstream is not set" in said
    console.run_at(second.address, *PROMOTE, "--business", BUSINESS, "--yes", "--force")
    with Producer(second.address, BUSINESS, "next", window_bytes_max=1 << 20) as producer:
        assert producer.connect(1, 3).in_doubt


def test_losses_can_be_given_up_without_etcd(start: Start, console: Console) -> None:
    home, second = two_cores(start)
    home.stop()
    console.run_at(second.address, *PROMOTE, "--yes")
    with Producer(second.address, BUSINESS, "next", window_bytes_max=1 << 20) as producer:
        assert producer.connect(1, 5).in_doubt
        producer.report_committed(5, 26)
        assert producer.wait_until_decided(5).next_offset == 15 + 10 + 2
    said = console.run_at(second.address, "cluster", "accept-loss", BUSINESS, code=3)
    assert "main may have lost offsets from 15 to 26 (promotion of home term 1)" in said
    said = console.run_at(second.address, "cluster", "accept-loss", BUSINESS, "--confirm", BUSINESS)
    assert "given up: offsets from 15 to 26" in said
    assert not business_status(second.address).losses
    assert "knows no business 'mian'" in console.run_at(second.address, "cluster", "accept-loss", "mian", code=2)


def test_an_uninformed_old_home_is_shown_and_refuses_the_source_that_moved(start: Start, console: Console) -> None:
    port = free_port()
    home = start("hq", listen=f"127.0.0.1:{port}")
    fill(home.address, 1, 3, rows=5)
    second = start("second", home.address, tier="core", level=0)
    networks.has(second.address, 15)
    home.stop()
    console.run_at(second.address, *PROMOTE, "--yes")
    with Producer(second.address, BUSINESS, "next", window_bytes_max=1 << 20) as producer:
        epoch = producer.connect(1, 3).epoch
        producer.report_committed(3, 16)
        producer.wait_until_decided(3)
    second.stop()  # no set informs the old home any more
    home = start("hq", listen=f"127.0.0.1:{port}")
    with (
        Producer(home.address, BUSINESS, "late", window_bytes_max=1 << 20) as late,
        pytest.raises(NotLeader, match=f"the source is at epoch {epoch} and this home has assigned"),
    ):
        late.connect(epoch, 3)
    second = start("second")  # without an upstream it monitors no set
    said = console.run_at(second.address, "cluster", "topology", home.address, code=1)
    assert "main has two homes, set hq (home term 0) and set second (home term 1): stop all but second" in said


def test_a_set_below_takes_no_data_from_the_old_home(start: Start, console: Console) -> None:
    port = free_port()
    home = start("hq", listen=f"127.0.0.1:{port}")
    fill(home.address, 1, 3, rows=5)
    second = start("second", home.address, tier="core", level=0)
    networks.has(second.address, 15)
    lyon = start("lyon", home.address, second.address)
    networks.has(lyon.address, 15)
    home.stop()
    console.run_at(second.address, *PROMOTE, "--yes")
    with Producer(second.address, BUSINESS, "next", window_bytes_max=1 << 20) as producer:
        producer.connect(1, 3)
        producer.report_committed(3, 16)
        producer.wait_until_decided(3)
        commit(producer, [half(4, rows=5)])
    networks.has(lyon.address, 20)
    eventually(lambda: business_status(lyon.address).home.set == "second")
    second.stop()
    home = start("hq", listen=f"127.0.0.1:{port}")
    eventually(lambda: "follows an older home" in business_status(lyon.address).mirror.not_back)
    found = business_status(lyon.address)
    assert (found.next_offset, found.mirror.fills) == (20, 1)
    with AdminClient(lyon.address) as admin:
        assert admin.status().businesses[0].log_start == found.log_start
