"""Rules of whole brokers, and the edits that take them out; as in tests/simulation/rules.py."""

from __future__ import annotations

from tests.simulation.patching import Edit
from tests.simulation.rules import Rule


def _rule(text: str, where: str, old: str, new: str, seed: int, invariant: str) -> Rule:
    edit = Edit(where=f"venus.broker.{where}", old=old, new=new)
    return Rule(text=text, edits=(edit,), seed=seed, invariant=invariant)


RULES = (
    _rule(
        "Nobody is told before what was proposed is applied",
        "pipeline.acks:Acks.hold",
        "held.index <= business.log.applied",
        "True",
        seed=1,
        invariant="the broker has what the source has committed",
    ),
    _rule(
        "An entry is applied once it is safe",
        "replicas.shared:ReplicatedLogs.watermark",
        "max(standing.high, business.log.applied) if standing is not None else business.log.applied",
        "business.log.end - 1",
        seed=0,
        invariant="applied <= high watermark < end of the log",
    ),
    _rule(
        "A rollback takes every later half message with it",
        "machine.half:roll_back",
        "left, removed = state.halves[:keep], state.halves[keep:]",
        "left, removed = state.halves[:-1], state.halves[-1:]",
        seed=8,
        invariant="damage is found where there is some",
    ),
    _rule(
        "What a producer is told of its half messages is read where the log ends, not where it is applied",
        "pipeline.producer_commands:init",
        "state = business.proposed",
        "state = business.committed",
        seed=0,
        invariant="a write is acknowledged within 40 s",
    ),
)
