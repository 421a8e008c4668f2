"""Mechanisms of subscriptions that can be disabled, to prove that the histories notice."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from venus.broker.listening import listening, replay, watched_table
from venus.broker.listening.replay import Replay
from venus.broker.machine import folding
from venus.broker.snapshot import watched_rows
from venus.broker.snapshot.watched_rows import FoldedSection, WatchedRowLookup
from venus.codec import changed_rows
from venus.codec.changed_rows import Operation
from venus.model import TableSchema
from venus.network.matching.content import ContentIndex
from venus.predicates.ranges import compile_predicate
from venus.wire import broker_pb2

_judge, _fold = watched_table.WatchedTable.judge, watched_rows.fold_watched


def _judge_without_deletions(self: Any, before: Any, after: Any) -> changed_rows.ChangeVerdicts:
    """Judge changes, but send no deletions."""
    found = _judge(self, before, after)
    kept = found.operations != Operation.DELETE
    return changed_rows.ChangeVerdicts(found.changes[kept], found.subscriptions[kept], found.operations[kept])


def _fold_exactly(*args: Any, **options: Any) -> FoldedSection:
    """Fold a section, and claim that the rows before are known exactly."""
    found = _fold(*args, **options)
    return FoldedSection(
        table_id=found.table_id, kind=found.kind, before=found.before, after=found.after, is_exact=True
    )


def _refit_anyway(text: str, _before: Any, now: Any) -> Any:
    return compile_predicate(text, now)  # as if each version of a name were the same column


def _replay_without_deletions(*args: Any, **options: Any) -> broker_pb2.ChangedRows:
    """Encode a replay in which no subscription learns of deletions."""
    found = changed_rows.encode_replay(*args, **options)
    del found.replayed[:]
    return found


def _omit_truncation(*_: Any, **__: Any) -> broker_pb2.ChangedRows:
    """Send nothing for a TRUNCATE."""
    return broker_pb2.ChangedRows(table_id=1)


def _rebuild_in_place(self: Any) -> None:
    """Rebuild the subscriptions, and place equal predicates of two versions together."""
    for number, one in list(self._subscriptions.items()):
        self.remove(number)
        self._index_subscription(number, one.text, one.predicate)


def _has_names_of(self: Any, schema: TableSchema) -> bool:
    """Compare columns by name alone."""
    return {one.column.name for one in self._columns.values()} <= {column.name for column in schema.columns}


def _keep_view(self: Any) -> None:
    """Forget the older half of the written rows, but keep the view."""
    self._older, self._newer, self._nbytes = self._newer, {}, 0


class _ForgetfulReplay(Replay):
    """A replay that never requires a reload."""

    def take(self, body: bytes, committed_at_us: int = 0) -> replay.ReplayedBatch:
        found = super().take(body, committed_at_us)
        found.must_reload = False
        return found


class _BlindReplay(Replay):
    """A replay that leaves out every change."""

    def take(self, body: bytes, committed_at_us: int = 0) -> replay.ReplayedBatch:
        return replay.ReplayedBatch(at_cut_end=True)


#: For each mechanism a context manager that disables it.
FAULTS: Mapping[str, AbstractContextManager[object]] = {
    "a row that leaves is dropped": patch.object(watched_table.WatchedTable, "judge", _judge_without_deletions),
    "what is outside is not deleted when it is read again": patch.object(
        replay, "encode_replay", _replay_without_deletions
    ),
    "an emptied table is not said": patch.object(listening, "encode_truncation", _omit_truncation),
    "an emptied table is not said again": patch.object(replay, "encode_truncation", _omit_truncation),
    "a sweep's end is not noticed": patch.object(watched_rows, "fold_watched", _fold_exactly),
    "a sweep's end is not noticed again": patch.object(replay, "Replay", _ForgetfulReplay),
    "a version is not taken": patch.object(watched_table.WatchedTable, "describe", lambda *_: {}),
    "another column of that name is taken for it": patch.object(watched_table, "refit", _refit_anyway),
    "equal predicates of two versions are one": patch.object(watched_table.WatchedTable, "_rebuild", _rebuild_in_place),
    "a column of another type is compared as before": patch.object(ContentIndex, "has_columns_of", _has_names_of),
    "rows under the floor count as rows": patch.object(
        folding, "is_live", lambda stored, _floor: changed_rows.is_row(stored)
    ),
    "what was written since the view is forgotten": patch.object(WatchedRowLookup, "record", lambda *_: None),
    "the older half is forgotten and the view stays": patch.object(WatchedRowLookup, "_forget_older", _keep_view),
    "other tables are watched and the view stays": patch.object(WatchedRowLookup, "begin", lambda self, _: self),
    "what was not judged is not read again": patch.object(replay, "Replay", _BlindReplay),
    "a position has no old versions": patch.object(replay, "check_meaning", lambda *_: None),
}
