"""A checkpoint that is gone fails the call that still needs it and nothing else: the store is intact."""

from __future__ import annotations

from pathlib import Path

import pytest

from venus.broker.machine.mirror import Mirror
from venus.broker.snapshot import reading
from venus.broker.snapshot.lease_manager import Checkpoints
from venus.broker.store.rocks import Store
from venus.errors import SnapshotExpired


def test_a_dropped_checkpoint_is_no_failure_of_the_store(tmp_path: Path) -> None:
    """A load that is given up closes its snapshot while the broker still sums it up: that stopped the broker."""
    store, checkpoints = Store(tmp_path / "db"), Checkpoints(tmp_path / "snapshots")
    store.checkpoint(checkpoints.path("one"))
    with checkpoints.open_reader("one") as reader:
        checkpoints.drop("one")
        assert reader.sequence == store.sequence
        with pytest.raises(SnapshotExpired), checkpoints.open_reader("one"):
            pass
    assert not checkpoints.path("one").exists()
    with pytest.raises(SnapshotExpired), checkpoints.open_reader("one"):
        pass
    store.close()


@pytest.mark.parametrize(
    ("epochs", "cut", "below"),
    [
        ([(3, 20)], None, 3),
        ([(3, 20), (4, 21)], None, 3),
        ([(3, 20), (4, 21)], 21, 3),  # the cut is at the end of the last epoch: a client there has not diverged
        ([(3, 21)], 21, 3),  # a mirror that an older version has filled
        ([(3, 21), (4, 25)], 21, 3),
        ([(4, 21)], None, 0),
    ],
)
def test_a_cut_has_the_epoch_of_the_last_change_below_it(
    epochs: list[tuple[int, int]], cut: int | None, below: int
) -> None:
    source = Mirror(set="core", network="n", offset=cut) if cut is not None else None
    assert reading._epoch_below(21, epochs, source) == below
