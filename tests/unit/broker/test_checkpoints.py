"""A checkpoint that has gone ends the call that still wants it, and no more: the store is as whole as it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from venus.broker.machine.mirror import Mirror
from venus.broker.snapshot import reading
from venus.broker.snapshot.lease_manager import Checkpoints
from venus.broker.store.rocks import Store
from venus.errors import SnapshotExpired


def test_a_checkpoint_that_was_dropped_is_no_failure_of_the_store(tmp_path: Path) -> None:
    """A load that is given up closes its snapshot while the broker still sums it up: that ended the broker."""
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
        ([(3, 20), (4, 21)], 21, 3),  # nothing of it is below: a client at the cut has not diverged
        ([(3, 21)], 21, 3),  # a mirror that an older version filled
        ([(3, 21), (4, 25)], 21, 3),
        ([(4, 21)], None, 0),
    ],
)
def test_the_epoch_of_a_cut_is_that_of_the_last_change_below_it(
    epochs: list[tuple[int, int]], cut: int | None, below: int
) -> None:
    source = Mirror(set="core", network="n", offset=cut) if cut is not None else None
    assert reading._epoch_below(21, epochs, source) == below
