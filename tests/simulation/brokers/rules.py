"""Rules of whole brokers, and the edits that remove them from the code; as in tests/simulation/rules.py."""

from __future__ import annotations

from tests.simulation.patching import SourceEdit
from tests.simulation.rules import Rule


def _rule(text: str, where: str, old: str, new: str, seed: int, invariant: str) -> Rule:
    edit = SourceEdit(where=f"venus.{where}", old=old, new=new)
    return Rule(text=text, edits=(edit,), seed=seed, invariant=invariant)


RULES = (
    _rule(
        "A caller is answered only after its entry is applied",
        "broker.pipeline.group_writer:AnswerQueue.hold",
        "held.index <= business.log.applied",
        "True",
        seed=36,
        invariant="the broker has what the source has committed",
    ),
    _rule(
        "An entry is applied only once it is safe",
        "broker.replicas.replicated_logs:ReplicatedLogs.watermark",
        "max(standing.high, business.log.applied) if standing is not None else business.log.applied",
        "business.log.end - 1",
        seed=0,
        invariant="applied <= high watermark < end of the log",
    ),
    _rule(
        "A rollback removes every later half message",
        "broker.machine.half_messages:roll_back",
        "left, removed = state.halves[:keep], state.halves[keep:]",
        "left, removed = state.halves[:-1], state.halves[-1:]",
        seed=1,
        invariant="damage is found where it was done",
    ),
    _rule(
        "A producer's half messages are reported from the end of the log, not from the applied index",
        "broker.pipeline.producer_commands:init",
        "state = business.proposed",
        "state = business.committed",
        seed=0,
        invariant="a write is acknowledged within 40 s",
    ),
    _rule(
        "A follower counts again only with a fetch made under the current record",
        "replication.leading:followers_in_sync",
        "progress.version >= known.version",
        "True",
        seed=737,
        invariant="each broker that may lead has every safe entry",
    ),
    _rule(
        "A removed member that had to be in sync takes part in elections until it may leave",
        "broker.replicas.host:Host._has_part_in",
        "(member in known.candidates and self._logs.has(known.business))",
        "False",
        seed=44,
        invariant="a leader within 5 s",
    ),
    _rule(
        "A replica that may be behind never reports divergence to a consumer",
        "broker.queue.reader:check_position",
        "not knows_end",
        "False",
        seed=443,
        invariant="applied changes are never reverted",
    ),
    _rule(
        "A leader that may have been replaced never reports divergence to a source",
        "broker.pipeline.producer_commands:Producers.init",
        "self._knows_end(found)",
        "True",
        seed=347,
        invariant="the broker has what the source has committed",
    ),
)
