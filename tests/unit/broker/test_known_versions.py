"""The table versions that a half message may use, compared with a model that includes rollbacks."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.support.engines import engines
from venus.broker.log.entry import EntryKind, LogEntry, record_entry
from venus.broker.machine import described_versions, machine
from venus.broker.machine.business import Business
from venus.broker.machine.envelope import Envelope, Version, build_envelope, parse_body
from venus.broker.machine.review_schedule import ReviewSchedule
from venus.broker.pipeline.group import CommandGroup, Savepoint
from venus.model import Verdict


class NullBatch:
    """A write batch that stores nothing."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


class Log:
    """A business, and a simple list of its log's live entries: (batch, versions that it describes)."""

    def __init__(self) -> None:
        self.business = Business(1, "main", ReviewSchedule(first_s=6.0))
        self.group = self.new_group()
        self.live: list[tuple[int, set[Version]]] = []
        self.decided = 0

    def arriving_entry(self, version: int, described: bool) -> tuple[Envelope, LogEntry]:
        state = self.business.proposed
        body = engines.body(
            state.end_batch + 1, state.end_sequence + 1, engines.rows(0, 1), version=version, described=described
        )
        return build_envelope(parse_body(body)), LogEntry(kind=EntryKind.PREPARE, epoch=1, at_us=0, digest=1, body=body)

    def prepare(self, version: int, described: bool) -> None:
        content, entry = self.arriving_entry(version, described)
        self.group.append(self.business, entry, content)
        self.live.append((content.batch_no, set(content.described_versions)))

    def decide(self, batch_no: int, verdict: Verdict) -> None:
        record = {"verdict": int(verdict), "batch_no": batch_no, "digest": 1}
        self.group.append(self.business, record_entry(EntryKind.DECIDE, epoch=1, at_us=0, record=record))
        if verdict is Verdict.ROLLBACK:
            self.live = [(n, versions) for n, versions in self.live if n < batch_no]
        else:
            self.decided = batch_no

    def apply(self, count: int) -> None:
        self.group.write_log()
        machine.apply_pending(self.business, self.business.log.applied + count, NullBatch())  # type: ignore[arg-type]
        self.group = self.new_group()

    def new_group(self) -> CommandGroup:
        group = CommandGroup(NullBatch())  # type: ignore[arg-type]
        group.allow(self.business, 0)
        return group

    def known_versions(self) -> set[int]:
        return {version for _, versions in self.live for _, version in versions}


def test_known_versions_equal_the_model() -> None:
    for seed in range(200):
        rng = random.Random(seed)
        log = Log()
        undo: list[tuple[Savepoint, list[tuple[int, set[Version]]], int]] = []
        for _ in range(60):
            take_step(rng, log, undo)
            content, _ = log.arriving_entry(version := rng.randrange(6), described=False)
            wanted = set() if version in log.known_versions() else {(1, version)}
            assert described_versions.find_missing_versions(log.business, content) == wanted, seed


def take_step(rng: random.Random, log: Log, undo: list[tuple[Savepoint, list[tuple[int, set[Version]]], int]]) -> None:
    """Execute a random operation of a broker."""
    halves = log.business.proposed.halves
    chosen = rng.random()
    if chosen < 0.1:
        undo.append((log.group.savepoint(), list(log.live), log.decided))
    elif chosen < 0.2 and undo:
        mark, log.live, log.decided = undo.pop()
        log.group.take_back(mark)
    elif chosen < 0.3 and log.business.pending:
        log.apply(rng.randrange(len(log.business.pending)) + 1)
        undo.clear()
    elif chosen < 0.45 and halves:
        log.decide(rng.choice(halves).batch_no, Verdict.COMMIT)
    elif chosen < 0.6 and halves:
        log.decide(rng.choice(halves).batch_no, Verdict.ROLLBACK)
    else:
        log.prepare(rng.randrange(6), described=rng.random() < 0.4)


def test_the_cache_is_not_rebuilt_while_all_versions_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log()
    log.prepare(1, described=True)
    content, _ = log.arriving_entry(1, described=False)
    assert described_versions.find_missing_versions(log.business, content) == set()
    monkeypatch.setattr(described_versions, "undecided_versions", None)  # read once, then maintained
    for _ in range(5):
        log.prepare(2, described=True)
        content, _ = log.arriving_entry(2, described=False)
        assert described_versions.find_missing_versions(log.business, content) == set()
