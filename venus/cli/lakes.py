"""Targets that are folders of Parquet files: what `migrate`, `sync`, `status`, `pause` and `resync` do with them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from venus.cli.overview import TargetTable, TargetView
from venus.errors import ConfigError, VenusError

if TYPE_CHECKING:
    from venus.adapters.targets.parquet.manifest import Manifest
    from venus.adapters.under.load import LoadReport
    from venus.cli.output import Steps
    from venus.config import Settings


def is_lake(settings: Settings, name: str) -> bool:
    """Tell whether a target is a folder of Parquet files."""
    target = settings.targets.get(name)
    return target is not None and target.url.get_secret_value().partition(":")[0] == "parquet"


def load(settings: Settings, name: str, steps: Steps) -> LoadReport:
    """Run the full sync."""
    from venus.adapters.targets.parquet.folder import LakeTarget
    from venus.adapters.targets.parquet.load import load_lake
    from venus.adapters.under.load import LoadReport

    found = load_lake(LakeTarget(settings, name), lambda rows, total: steps.update(f"target {name}", rows, total))
    return LoadReport(
        target=name, offset=found.offset, rows=found.rows, seconds=found.seconds, already=found.already,
        warnings=found.warnings,
    )  # fmt: skip


def require_fit(settings: Settings, name: str) -> None:
    """Refuse a folder that cannot be written, or that has somebody else's files."""
    from venus.adapters.targets.parquet.folder import LakeTarget

    with LakeTarget(settings, name).locked():
        pass


def look_at(settings: Settings, name: str) -> TargetView:
    """Read what the folder says of itself."""
    from venus.adapters.targets.parquet.folder import LakeTarget

    group = f"{settings.business.name}/{name}"
    try:
        target = LakeTarget(settings, name)
        manifest = target.manifest()
    except VenusError as error:
        return TargetView(name=name, group=group, error=str(error))
    if manifest is None:
        return TargetView(name=name, group=group)
    return view(name, manifest, paused=target.paused, resyncing=set(target.asked_resyncs()), now_us=now())


def now() -> int:
    """Return Unix microseconds."""
    return time.time_ns() // 1000


def view(name: str, manifest: Manifest, *, paused: bool, resyncing: set[int], now_us: int) -> TargetView:
    """Return a lake as `status` shows every target."""
    from venus.cli.probes import age_s

    notes = [f"{t.name} {t.note}" for t in manifest.tables.values() if t.note]
    return TargetView(
        name=name,
        group=manifest.group,
        loaded=True,
        paused=paused,
        offset=manifest.offset,
        applied_sequence=manifest.sequence,
        applied_age_s=age_s(manifest.applied_at_us, now_us),
        heartbeat_age_s=age_s(manifest.heartbeat_us, now_us),
        unaccounted_rows=manifest.unaccounted,
        note="; ".join(notes),
        tables=tuple(
            TargetTable(
                table_id=t.table_id,
                name=t.name,
                state="RESYNCING" if t.table_id in resyncing else "ACTIVE",
                rows_applied=t.rows_applied,
            )
            for t in manifest.tables.values()
        ),
    )


def command(settings: Settings, name: str, what: str, table: str | None) -> dict[str, str]:
    """Pause, resume or resync; return the tables' states."""
    from venus.adapters.targets.parquet.folder import LakeTarget

    target = LakeTarget(settings, name)
    manifest = target.manifest()
    if manifest is None:
        raise ConfigError(f"target {name} has not been loaded yet", hint=f"run `venus migrate --target {name}`")
    meant = [t for t in manifest.tables.values() if table in (None, t.name, t.name.partition(".")[2])]
    if not meant:
        known = ", ".join(sorted(t.name for t in manifest.tables.values())[:12])
        raise ConfigError(f"target {name} has no table {table!r}", hint=f"its tables: {known}")
    if what == "resync":
        for one in meant:
            target.ask_resync(one.table_id)
    elif table is not None:
        raise ConfigError(
            f"target {name} is a folder of Parquet files: it can be paused as a whole only",
            hint=f"venus {what} --target {name}",
        )
    else:
        target.pause(paused=what == "pause")
    state = {"pause": "PAUSED", "resume": "ACTIVE", "resync": "RESYNCING"}[what]
    return {t.name: state for t in meant}
