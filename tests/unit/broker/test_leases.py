"""Leases expire in time, and finding expired ones does not take longer with more live ones."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from venus.broker.snapshot.lease_manager import LeaseTable, SnapshotLease
from venus.errors import SnapshotExpired


def pin(name: str, until: int, directory: str = "d") -> SnapshotLease:
    return SnapshotLease(
        snapshot_id=name,
        directory=directory,
        business=1,
        offset=0,
        epoch=1,
        sequence=0,
        made_at_us=0,
        expires_at_us=until,
        lease_s=1,
    )


def test_a_renewed_lease_ends_later_and_each_is_reported_once() -> None:
    leases = LeaseTable()
    for n in range(3):
        leases.add(pin(str(n), 10 + n))
    leases.replace(pin("0", 30))
    assert leases.expired_snapshots(9) == []
    assert leases.expired_snapshots(12) == ["1", "2"]
    assert leases.expired_snapshots(12) == []
    assert leases.find_live("0", 12).expires_at_us == 30
    assert leases.expired_snapshots(30) == ["0"]
    with pytest.raises(SnapshotExpired):
        leases.find_live("0", 30)


def test_the_last_lease_on_a_checkpoint_is_recognised() -> None:
    leases = LeaseTable()
    for name, directory in (("a", "x"), ("b", "x"), ("c", "y")):
        leases.add(pin(name, 10, directory))
    found = [leases.end(name) for name in ("a", "a", "b", "c")]
    assert [ended and ended[1] for ended in found] == [False, None, True, True]
    assert leases.directories() == set()
    with pytest.raises(SnapshotExpired):
        leases.replace(pin("a", 20))


def test_ending_very_many_leases_is_linear() -> None:
    leases = LeaseTable()
    count = 50_000
    for n in range(count):
        leases.add(pin(str(n), n))
        leases.replace(replace(pin(str(n), n), expires_at_us=n + 1))
    began = time.process_time()
    for now in range(count + 2):
        for name in leases.expired_snapshots(now):
            assert leases.end(name) is not None
    assert leases.all_leases() == []
    assert time.process_time() - began < 10  # each lease was compared with all the others once


def test_leases_that_are_closed_early_are_removed_completely() -> None:
    leases = LeaseTable()
    for n in range(10_000):
        leases.add(pin(str(n), 10**9))
        leases.end(str(n))
    assert leases.remembered_ends < 100
