"""Rules of broker sets in tiers, and the edits that take them out; as in tests/simulation/rules.py."""

from __future__ import annotations

from tests.simulation.patching import Edit
from tests.simulation.rules import Rule


def _rule(text: str, where: str, old: str, new: str, seed: int, invariant: str) -> Rule:
    edit = Edit(where=f"venus.broker.{where}", old=old, new=new)
    return Rule(text=text, edits=(edit,), seed=seed, invariant=invariant)


NOT_ALL = "all sets have everything within 60 s"
BACK = "every set is back at the nearest set above"

RULES = (
    _rule(
        "An epoch is above the time, so that no lost history had it",
        "machine.half:next_epoch",
        "max(state.epoch, source_epoch, at_us // 1000) + 1",
        "max(state.epoch, source_epoch) + 1",
        seed=1,
        invariant="all targets have everything within 60 s",
    ),
    _rule(
        "What another network answers is refused, whoever was looked at before",
        "mirrors.pulling:Pulling._check_network",
        "if networks and",
        "if False and",
        seed=23,
        invariant="the full data of a set is the fold of one history",
    ),
    _rule(
        "Who is at the cut of a mirror in an older epoch has diverged",
        "machine.full_data:begin",
        "max(said.offset, 1) - 1",
        "said.offset",
        seed=1,
        invariant="a target has one history, each change once and in order",
    ),
    _rule(
        "A mirror acknowledges what is safe, not what has come",
        "mirrors.pulling:Pulling._take_all",
        "taken, passed_at = position, now",
        "taken, passed_at = position, now; yield Acknowledge(offset=position)",
        seed=0,
        invariant="a mirror never claims more than it has",
    ),
    _rule(
        "Full data that was interrupted is not followed",
        "mirrors.pulling:Pulling._reason",
        "if not mirror.end:",
        "if False:",
        seed=9,
        invariant=NOT_ALL,
    ),
    _rule(
        "Other labels take the full data again",
        "mirrors.pulling:Pulling._changed",
        "if mirror.only != self.only:",
        "if False:",
        seed=2,
        invariant="nobody is told of another history while there is one",
    ),
    _rule(
        "A position that is gone or of another history takes the full data again",
        "mirrors.pulling:Pulling.ended",
        "self._again = str(error)",
        "pass",
        seed=1,
        invariant=NOT_ALL,
    ),
    _rule(
        "What comes twice is dropped by its offset",
        "pipeline.mirror_commands:_take",
        "increment.base_offset + increment.count <= state.next_offset",
        "False",
        seed=2,
        invariant="nobody is told of another history while there is one",
    ),
    _rule(
        "What is passed over is passed over as a batch",
        "pipeline.mirror_commands:take",
        "if arrived.position > business.proposed.next_offset:",
        "if False:",
        seed=1,
        invariant=NOT_ALL,
    ),
    _rule(
        "Nobody reads a mirror whose full data is on its way",
        "queue.filled:check",
        "",
        "def check(business):\n    return None",
        seed=21,
        invariant="a target has one history, each change once and in order",
    ),
    _rule(
        "The old rows go before the full data comes again",
        "snapshot.filling:_begin",
        "batch.delete_range(keys.ROW, prefix, keys.after_prefix(prefix))",
        "pass",
        seed=1,
        invariant="the full data of a set is the fold of one history",
    ),
    _rule(
        "Who is away goes back to the nearest set that is fit",
        "mirrors.uppers:Uppers._nearer",
        "nearer = self.names[: self.names.index(self.in_use)]",
        "nearer = ()",
        seed=1,
        invariant=BACK,
    ),
    _rule(
        "What a set that is tried says costs no full data",
        "mirrors.pulling:Pulling.ended",
        "self._whom.ended(self.at, error):",
        "self._whom.ended(self.at, error) and False:",
        seed=1,
        invariant="a set that is tried costs no full data",
    ),
    _rule(
        "Nobody goes to a set that is cut off itself, or behind",
        "mirrors.whom:fitness",
        "",
        "def fitness(entry, business, here):\n    return Fitness(Kind.FIT)",
        seed=66,
        invariant="the broker has what the source has committed",
    ),
)
