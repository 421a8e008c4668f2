"""`venus cluster balance`: one time limit for all hand-overs together, and output of every move."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from venus.cli import cluster_members
from venus.cli.invocation import Invocation
from venus.cli.output import Output
from venus.errors import Unavailable
from venus.replication.records import Leadership, LiveBroker, Member

MOVE_S = 40.0


def member(name: str) -> Member:
    return Member(broker=name, store="s")


class Cluster:
    """Two brokers, one of which leads everything; a hand-over takes a while."""

    def __init__(self) -> None:
        self.now = 0.0
        self.records = {
            name: Leadership(
                business=name,
                term=1,
                leader=member("a"),
                in_sync=frozenset(map(member, "ab")),
                replicas=("a", "b"),
                version=1,
            )
            for name in ("one", "two", "three", "four")
        }

    def brokers(self) -> list[LiveBroker]:
        return [LiveBroker(member=member(name), address=f"{name}:1") for name in "ab"]

    def leaderships(self) -> list[Leadership]:
        return list(self.records.values())

    def read(self, name: str) -> Leadership:
        return self.records[name]

    def swap(self, before: Leadership, after: Leadership) -> Leadership:
        self.now += MOVE_S
        self.records[before.business] = replace(after, leader=member(after.successor), successor="")
        return after


@pytest.mark.parametrize(("wait", "moved"), [(0.0, 0), (30.0, 1), (600.0, 2)])
def test_no_hand_over_begins_after_the_time_limit(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], wait: float, moved: int
) -> None:
    cluster = Cluster()
    out = Output(json=True, redactor=lambda text: text)  # type: ignore[arg-type]
    run: Any = SimpleNamespace(out=out, settings=None)

    @contextmanager
    def open_cluster(_: object) -> Iterator[Cluster]:
        yield cluster

    monkeypatch.setattr(cluster_members, "open_coordinator", open_cluster)
    monkeypatch.setattr(Invocation, "from_options", lambda *_: run)
    monkeypatch.setattr(time, "monotonic", lambda: cluster.now)
    if moved < 2:
        with pytest.raises(Unavailable) as refused:
            cluster_members.balance(SimpleNamespace(), wait=wait)  # type: ignore[arg-type]
        assert f"not done after {wait:g} s" in str(refused.value)
        assert "--wait" in refused.value.hint
    else:
        cluster_members.balance(SimpleNamespace(), wait=wait)  # type: ignore[arg-type]
    led = [known.leader for known in cluster.records.values()]
    assert led.count(member("b")) == moved
    shown = capsys.readouterr().out
    assert len(json.loads(shown)["moves"] if shown else []) == moved
