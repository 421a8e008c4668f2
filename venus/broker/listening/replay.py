"""Subscriptions that read the queue again: after a reconnect, or after a part of it was not judged live. Pure.

A change is matched without the row's previous state, so each change outside a predicate is sent as the deletion of its
key. The end of a sweep and late changes cannot be matched in this way, so the subscription loads all rows again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from venus.broker.listening.watched_table import WatchedTable, refit
from venus.broker.machine import envelope, folding
from venus.codec import schema as schemas_codec
from venus.codec.changed_rows import ChangeVerdicts, encode_replay, encode_truncation
from venus.errors import VenusError
from venus.model import ChangeKind, TableSchema
from venus.predicates.ranges import compile_predicate
from venus.predicates.syntax import PredicateRefused
from venus.wire import broker_pb2


@dataclass(slots=True)
class ReplayedBatch:
    """Result of matching one batch of the queue again."""

    changes: list[broker_pb2.ChangedRows] = field(default_factory=list)
    at_cut_end: bool = False
    must_reload: bool = False
    ended: dict[int, PredicateRefused] = field(default_factory=dict)


class Replay:
    """Subscriptions to one table that read the queue again: `wanted` has the number, predicate and columns of each.

    Columns None = all. `described` are the versions of the table, each with the offset of the batch that describes it.
    `last_sequence` is the last Sequence of the batch before `offset`.
    """

    def __init__(
        self,
        described: Sequence[tuple[int, TableSchema]],
        offset: int,
        wanted: Iterable[tuple[int, str, frozenset[int] | None]],
        last_sequence: int,
    ) -> None:
        self.table = WatchedTable(schema for _, schema in described)
        self._columns: dict[int, frozenset[int] | None] = {}
        self._last_sequence = last_sequence
        self.refused: dict[int, VenusError] = {}
        before = [schema for at, schema in described if at < offset]
        for number, text, columns in wanted:
            try:
                check_meaning(text, before, self.table.newest)
                self.table.add(number, text)
                self._columns[number] = columns
            except VenusError as error:
                self.refused[number] = error

    def take(self, body: bytes, committed_at_us: int = 0) -> ReplayedBatch:
        """Match the changes of the next batch of the queue with the subscriptions."""
        message, found = envelope.parse_body(body), ReplayedBatch()
        found.at_cut_end = message.cut_end
        table_id = self.table.newest.table_id
        for schema in message.schemas:
            if schema.table_id == table_id:
                found.ended |= self.table.describe(schemas_codec.from_wire(schema))
        is_late = message.first_sequence <= self._last_sequence
        self._last_sequence = max(self._last_sequence, message.first_sequence + message.count - 1)
        for section in envelope.build_sections(message):
            if section.table_id != table_id or section.kind is ChangeKind.SWEEP_BEGIN:
                continue
            if is_late or section.kind is ChangeKind.SWEEP_END:
                found.must_reload = True
            elif section.kind is ChangeKind.TRUNCATE:
                found.changes.append(encode_truncation(table_id, self.table.numbers, is_replay=True))
            elif section.count:
                found.changes += self._judge(folding.encode_values(section))
        for one in found.changes:
            one.committed_at_us = committed_at_us
        return found

    def _judge(self, after: Sequence[bytes]) -> list[broker_pb2.ChangedRows]:
        """Return the changes of a batch, matched with the subscriptions and grouped by their wanted columns."""
        verdicts = self.table.judge_again(after)
        groups: defaultdict[frozenset[int] | None, list[int]] = defaultdict(list)
        for number in self.table.numbers:
            groups[self._columns[number]].append(number)
        table_id = self.table.newest.table_id
        return [
            encode_replay(
                table_id, after, _select_verdicts(verdicts, numbers) if len(groups) > 1 else verdicts, numbers, columns
            )
            for columns, numbers in groups.items()
        ]


def _select_verdicts(verdicts: ChangeVerdicts, numbers: Sequence[int]) -> ChangeVerdicts:
    """Return the verdicts for some subscriptions only."""
    mine = np.isin(verdicts.subscriptions, numbers)
    return ChangeVerdicts(verdicts.changes[mine], verdicts.subscriptions[mine], verdicts.operations[mine])


def check_meaning(text: str, before: Sequence[TableSchema], now: TableSchema) -> None:
    """Raise PredicateRefused if a predicate means something else in version `now` than in the newest of `before`."""
    if not text or not before or before[-1].version == now.version:
        return
    try:
        compile_predicate(text, before[-1])
    except PredicateRefused:
        return  # the predicate did not fit then, so it chose no rows
    refit(text, before[-1], now)
