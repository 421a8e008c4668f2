"""Mirrors as Prometheus sees them: how far behind the set above, and whether they reach it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from venus.wire import broker_pb2

GAUGES: tuple[tuple[str, str, Callable[[broker_pb2.MirrorStatus], float]], ...] = (
    ("venus_mirror_lag_offsets", "Offsets that the set above has and this one has not", lambda m: m.lag),
    ("venus_mirror_lag_seconds", "For how long it has not had everything", lambda m: m.lag_ms / 1000),
    (
        "venus_mirror_hop_seconds",
        "From the commit at the home until visible here, newest batch",
        lambda m: m.hop_ms / 1000,
    ),
    ("venus_mirror_following", "1 while it follows the set above", lambda m: float(m.state == "following")),
    ("venus_mirror_predicates", "Tables of which some rows only are mirrored", lambda m: float(len(m.where))),
    ("venus_mirror_away", "1 while it comes from another set than the nearest", lambda m: float(bool(m.nearest))),
    ("venus_mirror_cut_off", "1 while nobody of the set above answers", lambda m: float(m.state == "cut off")),
)


def families(status: broker_pb2.BrokerStatus) -> Iterable[Metric]:
    """Return every family; none at the home."""
    rows = [(entry.business, entry.mirror) for entry in status.businesses if entry.HasField("mirror")]
    if not rows:
        return
    for name, text, read in GAUGES:
        family = GaugeMetricFamily(name, text, labels=["business"])
        for business, mirror in rows:
            family.add_metric([business], read(mirror))
        yield family
    nbytes = CounterMetricFamily("venus_mirror_bytes", "Bytes pulled from the set above", labels=["business"])
    fills = CounterMetricFamily("venus_mirror_fills", "How often the full data was taken", labels=["business"])
    for business, mirror in rows:
        nbytes.add_metric([business], mirror.bytes)
        fills.add_metric([business], mirror.fills)
    yield nbytes
    yield fills
