"""Row filters are read as they were stored, in leases and in mirrors."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

from venus.broker.machine.mirror import Mirror, decode_mirror, encode_mirror, filters_from_wire, filters_to_wire
from venus.broker.snapshot import lease_manager
from venus.broker.snapshot.lease_manager import SnapshotLease
from venus.network.row_filters import RowFilter

FILTERS = (RowFilter(table="app.orders", predicate="region = 'EU'", tables=((1, 3), (7, 1))),)
PIN = SnapshotLease(
    snapshot_id="a",
    directory="d",
    business=1,
    offset=5,
    epoch=2,
    sequence=9,
    made_at_us=1,
    expires_at_us=2,
    lease_s=60,
    plan=((1, "", "ff"),),
    where=FILTERS,
)


def test_leases_and_mirrors_keep_their_filters() -> None:
    assert lease_manager.decode_lease(json.loads(json.dumps(asdict(PIN)))) == PIN
    older = {name: value for name, value in asdict(PIN).items() if name != "where"}
    assert lease_manager.decode_lease(json.loads(json.dumps(older))) == replace(PIN, where=())
    known = Mirror(set="hq", network="n", only=("orders",), where=FILTERS)
    assert decode_mirror(json.loads(json.dumps(encode_mirror(known)))) == known
    assert filters_from_wire(filters_to_wire(FILTERS)) == FILTERS


def test_an_older_broker_can_read_records_without_filters() -> None:
    stored = encode_mirror(Mirror(set="hq", network="n"))
    assert stored is not None
    assert "where" not in stored
    assert decode_mirror(stored) == Mirror(set="hq", network="n")
