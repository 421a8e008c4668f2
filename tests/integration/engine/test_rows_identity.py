"""The identity of the full data's rows: unknown from an older set above, and new when the full data is taken again."""

from __future__ import annotations

from pathlib import Path

from tests.support.engines import mirrored
from tests.support.engines.engines import BUSINESS, WAIT_S, Producer, make, rows
from tests.support.waiting import eventually
from venus.broker.core import Core
from venus.wire import broker_pb2


def check_position(engine: Core, offset: int) -> broker_pb2.Opened:
    return engine.subscriptions.check_position(BUSINESS, offset, 0)


def test_the_rows_identity_is_stored_once_the_set_above_reports_it(home: Core, tmp_path: Path) -> None:
    Producer(home).commit(rows(1, 3))
    mirror = make(tmp_path / "mirror")
    try:
        business = mirrored.fill(home, mirror)
        eventually(lambda: business.is_filled)
        assert not check_position(mirror, 3).HasField("rows")
        begin = business.committed.mirror.begin  # type: ignore[union-attr]
        mirror.mirrors.record_levels(business, begin, "tandem", ()).result(WAIT_S)
        mirror.subscriptions.rows.invalidate(business)
        assert check_position(mirror, 3).HasField("rows")
    finally:
        mirror.stop()
    mirror = make(tmp_path / "mirror")
    try:
        assert check_position(mirror, 3).HasField("rows")
        found = mirror.subscriptions.rows.for_mirror(mirrored.business_of(mirror), 3)
        assert found is not None
        assert found.set == "tandem"
        business = mirrored.fill(home, mirror)  # this fill reports no identity of its rows
        eventually(lambda: business.is_filled)
        assert not check_position(mirror, 3).HasField("rows")
    finally:
        mirror.stop()


def test_a_snapshot_of_full_data_that_was_taken_again_is_not_shared(home: Core, mirror: Core) -> None:
    """Both have their cut at the same offset, and the rows of the first one come from another set."""
    Producer(home).commit(rows(1, 3))
    request = broker_pb2.OpenSnapshotRequest(business=BUSINESS, splits=1)
    for says in (None, broker_pb2.RowLevels()):
        mirrored.fill(home, mirror, levels=says)
        eventually(lambda: mirrored.business_of(mirror).is_filled)
        snapshot = mirror.full_data.open(request)
        assert snapshot.offset == 3
        assert snapshot.HasField("levels") == (says is not None)
