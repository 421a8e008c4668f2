"""Rules of broker sets in tiers, and the edits that remove them from the code; as in tests/simulation/rules.py."""

from __future__ import annotations

from tests.simulation.patching import SourceEdit
from tests.simulation.rules import Rule


def _rule(text: str, where: str, old: str, new: str, seed: int, invariant: str) -> Rule:
    edit = SourceEdit(where=where if where.startswith("venus.") else f"venus.broker.{where}", old=old, new=new)
    return Rule(text=text, edits=(edit,), seed=seed, invariant=invariant)


NOT_ALL = "all sets are complete within 60 s"
BATCHES = "every level has the home's batches at the home's offsets"
ROWS = "the full data of a set is the home's rows at its offset, by the filters"
OTHER_ROWS = "no consumer continues at a set with other rows"
BACK = "every set returns to the nearest upstream set"

RULES = (
    _rule(
        "An epoch is greater than the time, so that no lost history had it",
        "machine.half_messages:next_epoch",
        "max(state.epoch, source_epoch, at_us // 1000) + 1",
        "max(state.epoch, source_epoch) + 1",
        seed=1,
        invariant="all targets are complete within 60 s",
    ),
    _rule(
        "A reply of another network is refused, whichever set was checked before",
        "mirrors.replication_plan:ReplicationPlan._check_network",
        "if networks and",
        "if False and",
        seed=23,
        invariant=BATCHES,
    ),
    _rule(
        "A reader at a mirror's cut with an older epoch has diverged",
        "machine.machine:EntryApplication.begin_full_data",
        "max(said.offset, 1) - 1",
        "said.offset",
        seed=1,
        invariant="a target has one history, each change once and in order",
    ),
    _rule(
        "A mirror acknowledges durable batches, not received ones",
        "mirrors.replication_plan:ReplicationPlan._follow_stream",
        "taken, passed_at = position, now",
        "taken, passed_at = position, now; yield requests.Acknowledge(offset=position)",
        seed=0,
        invariant="a mirror never claims more than it has",
    ),
    _rule(
        "Increments do not follow an interrupted fill",
        "mirrors.replication_plan:ReplicationPlan._fill_reason",
        "if not mirror.end:",
        "if False:",
        seed=9,
        invariant=NOT_ALL,
    ),
    _rule(
        "Changed labels refill the mirror",
        "mirrors.replication_plan:ReplicationPlan._find_change",
        "if mirror.only != self.only:",
        "if False:",
        seed=2,
        invariant="no consumer is refused as diverged within one history",
    ),
    _rule(
        "A lost or diverged position refills the mirror",
        "mirrors.replication_plan:ReplicationPlan.on_end",
        "self._again = str(error)",
        "pass",
        seed=1,
        invariant=NOT_ALL,
    ),
    _rule(
        "A repeated batch is dropped by its offset",
        "pipeline.mirror_commands:_take_increment",
        "increment.base_offset + increment.count <= state.next_offset",
        "False",
        seed=2,
        invariant="no consumer is refused as diverged within one history",
    ),
    _rule(
        "A repeated batch must be identical",
        "pipeline.mirror_commands:_take_increment",
        "_check_same(business, increment, store)",
        "pass",
        seed=21,
        invariant=BATCHES,
    ),
    _rule(
        "A loss window is skipped as one batch",
        "pipeline.mirror_commands:take_increments",
        "if arrived.position > business.proposed.next_offset:",
        "if False:",
        seed=1,
        invariant=NOT_ALL,
    ),
    _rule(
        "No consumer reads a mirror during a fill",
        "queue.reader:check_full_data",
        "",
        "def check_full_data(business):\n    return None",
        seed=21,
        invariant=BATCHES,
    ),
    _rule(
        "Old rows are removed before a refill",
        "snapshot.step:_begin_fill",
        "batch.delete_range(keys.ROW, prefix, keys.after_prefix(prefix))",
        "pass",
        seed=1,
        invariant=ROWS,
    ),
    _rule(
        "A mirror returns to the nearest eligible set",
        "mirrors.upstream_selection:UpstreamSelection._find_nearer",
        "nearer = self.names[: self.names.index(self.in_use)]",
        "nearer = ()",
        seed=1,
        invariant=BACK,
    ),
    _rule(
        "A failed probe of a set causes no refill",
        "mirrors.replication_plan:ReplicationPlan.on_end",
        "self._choice.record_end(self.at, error):",
        "self._choice.record_end(self.at, error) and False:",
        seed=1,
        invariant="a failed probe causes no refill",
    ),
    _rule(
        "A late reply of a set that was left causes no refill",
        "mirrors.replication_plan:ReplicationPlan.on_end",
        "if self.at is not None and not self._choice.is_current(self.at):",
        "if False:",
        seed=906,
        invariant="a failed probe causes no refill",
    ),
    _rule(
        "No mirror moves to a set that is cut off or behind",
        "mirrors.upstream_selection:judge_fitness",
        "",
        "def judge_fitness(entry, business, here):\n    return Fitness(FitnessKind.FIT)",
        seed=66,
        invariant="the broker has what the source has committed",
    ),
    _rule(
        "A row outside the filter travels as the deletion of its key",
        "queue.reduced_batches:OpenBatch._reduce",
        "keys_only += self._reduce_to_keys(place, np.frombuffer(verdict, dtype=np.bool_), cut.tables.add())",
        "_leave_out(cut, table.count)",
        seed=4,
        invariant=ROWS,
    ),
    _rule(
        "Rows outside the filter are not sent",
        "venus.codec.filtering:OpenRows.find_kept",
        "found.all()",
        "True",
        seed=4,
        invariant=ROWS,
    ),
    _rule(
        "Full data and increments use the same filter",
        "snapshot.reading:row_chooser",
        "if found is not None",
        "if False",
        seed=4,
        invariant=ROWS,
    ),
    _rule(
        "A changed filter refills the mirror",
        "mirrors.replication_plan:ReplicationPlan._find_change",
        "row_filters.is_same(mirror.where, self.where)",
        "True",
        seed=5,
        invariant=NOT_ALL,
    ),
    _rule(
        "No consumer continues at a set with other rows",
        "queue.row_identities:RowIdentities.check_rows",
        "differ = find_differing(brought, here, only)",
        "differ = ()",
        seed=4,
        invariant=OTHER_ROWS,
    ),
    _rule(
        "The rows identity covers the filters of every set on the way",
        "machine.records:load_levels",
        "(*levels, found.where) if found.where else levels",
        "(found.where,) if found.where else ()",
        seed=39,
        invariant=OTHER_ROWS,
    ),
    _rule(
        "A consumer that finds other rows tries the next set",
        "mirrors.replicator:Replicator.record_end",
        "isinstance(error, OtherRows) and",
        "False and",
        seed=137,
        invariant=BACK,
    ),
    _rule(
        "A consumer exactly at the cut of a refilled set is refused and reloads",
        "queue.row_identities:RowIdentities._other_rows_error",
        "if brought.set == self.name:",
        "if False:",
        seed=97,
        invariant=NOT_ALL,
    ),
    _rule(
        "A refill with another filter waits for a later cut",
        "mirrors.replication_plan:ReplicationPlan._check_cut",
        "list(business.consumers)",
        "[]",
        seed=6,
        invariant=OTHER_ROWS,
    ),
    _rule(
        "A refill of the upstream set with other rows waits for a later cut",
        "mirrors.replication_plan:ReplicationPlan._describe_other_rows",
        "not find_differing(here, there)",
        "True",
        seed=41,
        invariant=OTHER_ROWS,
    ),
    _rule(
        "The epoch of a cut is that of the last change below it",
        "snapshot.reading:_is_of_cut",
        "i == 0 and ",
        "",
        seed=160,
        invariant="applied changes are never reverted",
    ),
    _rule(
        "After a failed move the mirror waits before the next attempt",
        "mirrors.replication_plan:ReplicationPlan.on_end",
        "max(2 * self.wait_s, RETRY_FIRST_S)",
        "2 * self.wait_s",
        seed=53,
        invariant="a failed move waits before the next attempt",
    ),
    _rule(
        "A mirror reports no positions before its fill has begun",
        "pipeline.mirror_commands:MirrorCommands.enter",
        "found.awaits_full_data |= found.is_new",
        "pass",
        seed=38,
        invariant="applied changes are never reverted",
    ),
)
