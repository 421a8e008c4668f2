"""Rules of broker sets in tiers, and the edits that take them out; as in tests/simulation/rules.py."""

from __future__ import annotations

from tests.simulation.patching import Edit
from tests.simulation.rules import Rule


def _rule(text: str, where: str, old: str, new: str, seed: int, invariant: str) -> Rule:
    edit = Edit(where=where if where.startswith("venus.") else f"venus.broker.{where}", old=old, new=new)
    return Rule(text=text, edits=(edit,), seed=seed, invariant=invariant)


NOT_ALL = "all sets have everything within 60 s"
BATCHES = "every level has the home's batches at the home's offsets"
ROWS = "the full data of a set is the home's rows at its offset, by the predicates"
OTHER_ROWS = "no consumer continues where other rows are"
BACK = "every set is back at the nearest set above"

RULES = (
    _rule(
        "An epoch is above the time, so that no lost history had it",
        "machine.half_messages:next_epoch",
        "max(state.epoch, source_epoch, at_us // 1000) + 1",
        "max(state.epoch, source_epoch) + 1",
        seed=1,
        invariant="all targets have everything within 60 s",
    ),
    _rule(
        "What another network answers is refused, whichever set was checked before",
        "mirrors.replication_plan:ReplicationPlan._check_network",
        "if networks and",
        "if False and",
        seed=23,
        invariant=BATCHES,
    ),
    _rule(
        "Who is at the cut of a mirror in an older epoch has diverged",
        "machine.machine:begin_full_data",
        "max(said.offset, 1) - 1",
        "said.offset",
        seed=1,
        invariant="a target has one history, each change once and in order",
    ),
    _rule(
        "A mirror acknowledges what is safe, not what has come",
        "mirrors.replication_plan:ReplicationPlan._follow_stream",
        "taken, passed_at = position, now",
        "taken, passed_at = position, now; yield Acknowledge(offset=position)",
        seed=0,
        invariant="a mirror never claims more than it has",
    ),
    _rule(
        "Full data that was interrupted is not followed",
        "mirrors.replication_plan:ReplicationPlan._fill_reason",
        "if not mirror.end:",
        "if False:",
        seed=9,
        invariant=NOT_ALL,
    ),
    _rule(
        "Other labels take the full data again",
        "mirrors.replication_plan:ReplicationPlan._find_change",
        "if mirror.only != self.only:",
        "if False:",
        seed=2,
        invariant="no consumer is refused as diverged while there is one history",
    ),
    _rule(
        "A position that is gone or of another history takes the full data again",
        "mirrors.replication_plan:ReplicationPlan.on_end",
        "self._again = str(error)",
        "pass",
        seed=1,
        invariant=NOT_ALL,
    ),
    _rule(
        "What comes twice is dropped by its offset",
        "pipeline.mirror_commands:_take_increment",
        "increment.base_offset + increment.count <= state.next_offset",
        "False",
        seed=2,
        invariant="no consumer is refused as diverged while there is one history",
    ),
    _rule(
        "What comes twice is the same batch",
        "pipeline.mirror_commands:_take_increment",
        "_check_same(business, increment, store)",
        "pass",
        seed=21,
        invariant=BATCHES,
    ),
    _rule(
        "What is passed over is passed over as a batch",
        "pipeline.mirror_commands:take_increments",
        "if arrived.position > business.proposed.next_offset:",
        "if False:",
        seed=1,
        invariant=NOT_ALL,
    ),
    _rule(
        "No consumer reads a mirror whose full data is on its way",
        "queue.reader:check_full_data",
        "",
        "def check_full_data(business):\n    return None",
        seed=21,
        invariant=BATCHES,
    ),
    _rule(
        "The old rows go before the full data comes again",
        "snapshot.step:_begin",
        "batch.delete_range(keys.ROW, prefix, keys.after_prefix(prefix))",
        "pass",
        seed=1,
        invariant=ROWS,
    ),
    _rule(
        "Who is away goes back to the nearest set that is fit",
        "mirrors.upstream_selection:UpstreamSelection._find_nearer",
        "nearer = self.names[: self.names.index(self.in_use)]",
        "nearer = ()",
        seed=1,
        invariant=BACK,
    ),
    _rule(
        "What a set that is tried says costs no full data",
        "mirrors.replication_plan:ReplicationPlan.on_end",
        "self._choice.record_end(self.at, error):",
        "self._choice.record_end(self.at, error) and False:",
        seed=1,
        invariant="a set that is tried costs no full data",
    ),
    _rule(
        "What a set says that was left meanwhile costs no full data",
        "mirrors.replication_plan:ReplicationPlan.on_end",
        "if self.at is not None and not self._choice.is_current(self.at):",
        "if False:",
        seed=906,
        invariant="a set that is tried costs no full data",
    ),
    _rule(
        "No mirror changes to a set that is cut off itself, or behind",
        "mirrors.upstream_choice:judge_fitness",
        "",
        "def judge_fitness(entry, business, here):\n    return Fitness(FitnessKind.FIT)",
        seed=66,
        invariant="the broker has what the source has committed",
    ),
    _rule(
        "What a predicate does not take travels on as the deletion of its key",
        "queue.reduced_batches:OpenBatch._reduce",
        "keys_only += self._reduce_to_keys(place, np.frombuffer(verdict, dtype=np.bool_), cut.tables.add())",
        "_leave_out(cut, table.count)",
        seed=4,
        invariant=ROWS,
    ),
    _rule(
        "Nothing that a predicate does not take is sent",
        "venus.codec.filtering:OpenRows.find_kept",
        "found.all()",
        "True",
        seed=4,
        invariant=ROWS,
    ),
    _rule(
        "The full data is chosen by the predicates of the increments",
        "snapshot.reading:row_chooser",
        "if found is not None",
        "if False",
        seed=4,
        invariant=ROWS,
    ),
    _rule(
        "Other predicates take the full data again",
        "mirrors.replication_plan:ReplicationPlan._find_change",
        "row_filters.is_same(mirror.where, self.where)",
        "True",
        seed=5,
        invariant=NOT_ALL,
    ),
    _rule(
        "No consumer continues where other rows are",
        "queue.row_identities:RowIdentities.check_rows",
        "if differ := find_differing(brought, here, only):",
        "if (differ := find_differing(brought, here, only)) and False:",
        seed=4,
        invariant=OTHER_ROWS,
    ),
    _rule(
        "Which rows there are depends on every set on the way",
        "machine.records:load_levels",
        "(*levels, found.where) if found.where else levels",
        "(found.where,) if found.where else ()",
        seed=39,
        invariant=OTHER_ROWS,
    ),
    _rule(
        "Who finds other rows goes on where his may be",
        "mirrors.replicator:Replicator.record_end",
        "isinstance(error, OtherRows) and",
        "False and",
        seed=137,
        invariant=BACK,
    ),
    _rule(
        "A consumer exactly where a set was filled again is refused, and takes the full data again",
        "queue.row_identities:RowIdentities._other_rows_error",
        "if brought.set == self.name:",
        "if False:",
        seed=97,
        invariant=NOT_ALL,
    ),
    _rule(
        "Full data by other predicates waits for a later cut",
        "mirrors.replication_plan:ReplicationPlan._check_cut",
        "list(business.consumers)",
        "[]",
        seed=6,
        invariant=OTHER_ROWS,
    ),
    _rule(
        "Full data of other rows above waits for a later cut",
        "mirrors.replication_plan:ReplicationPlan._describe_other_rows",
        "not find_differing(here, there)",
        "True",
        seed=41,
        invariant=OTHER_ROWS,
    ),
    _rule(
        "The epoch of a cut is that of what is below it",
        "snapshot.checkpoint_metadata:_is_of_cut",
        "i == 0 and ",
        "",
        seed=160,
        invariant="what a consumer has applied is never taken back",
    ),
    _rule(
        "Who fails after a move waits before the next try",
        "mirrors.replication_plan:ReplicationPlan.on_end",
        "max(2 * self.wait_s, RETRY_FIRST_S)",
        "2 * self.wait_s",
        seed=53,
        invariant="who fails waits before the next try",
    ),
    _rule(
        "A mirror says nothing of positions before its full data has begun",
        "pipeline.mirror_commands:MirrorCommands.enter",
        "found.awaits_full_data |= found.is_new",
        "pass",
        seed=38,
        invariant="what a consumer has applied is never taken back",
    ),
)
