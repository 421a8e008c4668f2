"""How far a PostgreSQL target is, as `status` shows every target."""

from __future__ import annotations

from datetime import datetime

from venus.adapter_figures import comparison_from_text
from venus.adapters.targets.cutting import Mark
from venus.adapters.targets.postgresql.catalogue import shown_state
from venus.adapters.targets.postgresql.control import Progress
from venus.adapters.targets.postgresql.cutmark import moment
from venus.adapters.targets.postgresql.database import Position, TableState
from venus.adapters.targets.views import TargetTable, TargetView, age_s
from venus.predicates.ranges import same


def view(found: Progress) -> TargetView:
    """Return what VENUS's own tables at the target say."""
    position = found.position
    if position is None:
        return TargetView(name=found.target, group=found.group, place=found.place, constraints=found.constraints)
    return _loaded(found, position)


def _loaded(found: Progress, position: Position) -> TargetView:
    heartbeat_us = moment_us(position.heartbeat_at)
    return TargetView(
        name=found.target,
        group=found.group,
        place=found.place,
        loaded=True,
        compared=comparison_from_text(position.compared),
        paused=position.paused,
        offset=position.offset,
        applied_sequence=position.last_sequence,
        applied_age_s=age_s(moment_us(position.applied_at), found.now_us),
        heartbeat_age_s=age_s(heartbeat_us, found.now_us),
        heartbeat_at_us=heartbeat_us,
        open_quarantine=found.open_quarantine,
        unaccounted_rows=found.unaccounted,
        constraints=found.constraints,
        note=position.note,
        cut_over=moment(found.cut_over),
        committed_at_cut=committed_at_cut(found.cut_over),
        waiting=found.waiting,
        tables=tuple(
            table(
                t,
                resyncing=t.source_name in found.resyncing,
                wanted=found.wanted.get(t.source_name),
                differs=found.differing.get(t.source_name, ()),
            )
            for t in found.tables
        ),
    )


def table(
    found: TableState, *, resyncing: bool = False, wanted: str | None = None, differs: tuple[str, ...] = ()
) -> TargetTable:
    """Return one table of them; `wanted` = which rows it shall get by the configuration, None = as it does."""
    configured = None if wanted is None or same(found.predicate, wanted, ()) else wanted
    return TargetTable(
        table_id=found.table_id,
        name=found.source_name,
        state=shown_state(found, resyncing=resyncing),
        reason=found.reason,
        held_from=found.held_from,
        rows_applied=found.rows_applied,
        quarantined=found.rows_quarantined,
        skipped=found.rows_skipped,
        held=found.rows_held,
        predicate=found.predicate,
        predicate_before=found.predicate_before,
        predicate_configured=configured,
        rows_brought=found.rows_brought,
        rows_removed=found.rows_removed,
        differs=differs,
    )


def committed_at_cut(mark: Mark | None) -> dict[int, int]:
    """Return how many changes of each table the broker had committed when the target was cut over."""
    return {int(t): int(n) for t, n in mark.certificate["committed_changes"].items()} if mark else {}


def moment_us(moment: datetime | None) -> int:
    """Return Unix microseconds, 0 for never."""
    return 0 if moment is None else int(moment.timestamp() * 1e6)
