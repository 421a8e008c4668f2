"""The kinds of alarms, by name: which sentence is of which kind, and on which hop of a row's path it stands. Pure.

Status, page, metrics, health and messages show the same sentence for whatever needs attention. This table names the
rule of each sentence, so that an operator can configure, count and silence it. It also extracts the subject, so that a
sentence whose figures change remains the same alarm. A sentence that no rule matches is of the kind `other`, and is
sent like every other one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

#: The hops of a row's path.
SOURCE, BROKER, TARGET = "source", "broker", "target"
OTHER = "other"
#: The lock of another session holds changes up.
WAITS = "table_waits"
SUBJECT_CHARS_MAX = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A kind of alarm. The groups of its pattern are the subject; without groups there is one for each business."""

    name: str
    #: Empty: the sentence itself begins with the source or a target.
    hop: str
    pattern: str
    says: str
    #: Seconds that it must last before it is sent, unless the configuration sets another time: a restart is no alarm.
    lasts_s: float = 0.0


RULES = (
    Rule(
        name="capture_away",
        hop=SOURCE,
        lasts_s=60.0,
        pattern=r"^source -> broker: (?:capture is not|no upper adapter is) connected",
        says="capture is not connected",
    ),
    Rule(
        name="capture_late",
        hop=SOURCE,
        pattern=r"^source -> broker: nothing has been captured",
        lasts_s=30.0,
        says="capture is connected and sends nothing, not even heartbeats",
    ),
    Rule(
        name="clocks_differ",
        hop=SOURCE,
        lasts_s=120.0,
        pattern=r"^source -> broker: (?:the source's clock is|the newest change came) ",
        says="the source's clock and the broker's differ, or changes take very long",
    ),
    Rule(
        name="target_away",
        hop=TARGET,
        lasts_s=60.0,
        pattern=r"^broker -> target (.+): (?:apply is not|no under adapter is) connected",
        says="apply of a target is not connected",
    ),
    Rule(
        name="target_late",
        hop=TARGET,
        pattern=r"^broker -> target (.+): [\d,]+ changes? behind",
        lasts_s=30.0,
        says="a target is far behind",
    ),
    Rule(
        name="table_not_captured",
        hop="",
        lasts_s=60.0,
        pattern=r"^(source: .+) matches the patterns and (?:is not|cannot be) captured",
        says="a table matches the patterns and is not captured",
    ),
    Rule(
        name="table_halted",
        hop="",
        pattern=r"^((?:source|target .+?): .+) is (?:HALTED|RESYNC)\b",
        says="a table does not follow because of an error",
    ),
    Rule(
        name="resync_failed",
        hop="",
        pattern=r"^(target .+?: .+): resync failed: ",
        says="a table could not be made equal to the full data",
    ),
    Rule(
        name="table_paused",
        hop="",
        pattern=r"^((?:source|target .+?): .+) is PAUSED\b",
        says="an operator paused a table",
    ),
    Rule(
        name=WAITS,
        hop="",
        pattern=r"^((?:source|target .+?): .+) is WAITING\b",
        lasts_s=30.0,
        says="the lock of another session holds changes up",
    ),
    Rule(
        name="table_releasing",
        hop="",
        pattern=r"^(source: .+) is RELEASING\b",
        lasts_s=60.0,
        says="a table was to be taken out of capture, and that was not finished",
    ),
    Rule(
        name="tables_many",
        hop="",
        pattern=r"^(source|target .+?): [\d,]+ more tables? do(?:es)? not follow",
        says="more tables do not follow than are listed",
    ),
    Rule(name="paused", hop="", pattern=r"^(source|target .+?): paused;", says="a whole source or target is paused"),
    Rule(
        name="quarantine",
        hop="",
        pattern=r"^(source|target .+?): [\d,]+ refused changes? waits?",
        says="refused changes wait in quarantine",
    ),
    Rule(
        name="compared_different",
        hop=TARGET,
        pattern=r"^(target .+?): the last comparison found ",
        says="the last `venus verify` found rows that differ, and they were not repaired",
    ),
    Rule(
        name="unaccounted",
        hop="",
        pattern=r"^(target .+?): -?[\d,]+ changes? below its offset (?:is|are) unaccounted for",
        says="changes below a target's offset are not at the target",
    ),
    Rule(
        name="half_undecided",
        hop=SOURCE,
        pattern=r"half message [\d,]+ (?:has been undecided|was asked about)",
        says="half messages have had no decision for a long time",
    ),
    Rule(
        name="half_damaged",
        hop=SOURCE,
        pattern=r"damaged half messages in a row from",
        says="half messages arrive damaged",
    ),
    Rule(
        name="full_data_behind",
        hop=BROKER,
        pattern=r"^the full data is [\d,]+ MiB behind",
        says="the full data cannot keep up, and producers are slowed",
    ),
    Rule(
        name="lane_degraded",
        hop=BROKER,
        pattern=r"^lane (\d) .+ is degraded since",
        lasts_s=30.0,
        says="the broker is overloaded and has given up what matters least",
    ),
    Rule(
        name="unhealthy",
        hop=BROKER,
        pattern=r"^another broker should lead instead:",
        lasts_s=30.0,
        says="a broker's disk is nearly full or slow, and it leads only if no other broker can",
    ),
    Rule(
        name="alarms_many",
        hop=BROKER,
        pattern=r"^[\d,]+ more alarms stand than are kept",
        says="more alarms stand than are listed",
    ),
    Rule(
        name="queue_held",
        hop=BROKER,
        pattern=r"^the queue keeps .+ for held tables of ([^,]+),",
        says="held tables keep much of the queue",
    ),
    Rule(
        name="undescribed_rows",
        hop=BROKER,
        pattern=r"^(.+) has rows of version",
        says="there are rows whose column description never arrived",
    ),
    Rule(name="disk_space", hop=BROKER, pattern=r"^too little free space: ", says="the data directory is full"),
    Rule(name="store_failed", hop=BROKER, pattern=r"^the store has failed", says="the store cannot be written"),
    Rule(name="replica_gone", hop=BROKER, pattern=r"^its replica at broker (.+) is gone$", says="a broker is lost"),
    Rule(
        name="replica_late",
        hop=BROKER,
        pattern=r"^its replica at broker (.+) is not in sync$",
        lasts_s=30.0,
        says="a replica lags behind",
    ),
    Rule(
        name="replica_installed",
        hop=BROKER,
        pattern=r"(?:^|: )(?:cannot follow .+: |.+ is being installed again: )",
        says="this broker's replica is being installed again",
    ),
    Rule(
        name="replica_stopped",
        hop=BROKER,
        pattern=r"^log entry [\d,]+ cannot be applied here|^broker (.+) leads without what was acknowledged",
        says="this broker's replica has stopped for good",
    ),
    Rule(
        name="changes_lost",
        hop=BROKER,
        pattern=r"^the (?:unclean election of term|promotion of this set .+\(home term) (\d+)\)? may have lost",
        says="an unclean election or a promotion may have lost changes that were acknowledged",
    ),
    Rule(
        name="home_promoted",
        hop=BROKER,
        pattern=r"^this set was promoted and is the home of",
        says="a promotion has overruled [cluster] upstream, which is still in the configuration",
    ),
    Rule(
        name="home_replaced",
        hop=BROKER,
        pattern=r"^this home was replaced",
        says="another set was promoted while this home was away",
    ),
    Rule(
        name="two_homes",
        hop=BROKER,
        pattern=r"(?:^|; )set .+ is a home of (.+) as well|^a broker at (\S+) answers, and may take writes",
        says="the old home answers, and may take writes as well",
    ),
    Rule(
        name="mirror_cut_off",
        hop=BROKER,
        lasts_s=10.0,
        pattern=r"^set (.+?) does not answer for|^the set above does not answer",
        says="a broker set does not reach the set above; it serves what it has",
    ),
    Rule(
        name="mirror_away",
        hop=BROKER,
        lasts_s=90.0,
        pattern=r"^set (.+?) is the nearest above, and is not used for",
        says="a broker set pulls from another set than the nearest",
    ),
    Rule(
        name="mirror_waits",
        hop=BROKER,
        pattern=r"^the mirror waits for set",
        lasts_s=30.0,
        says="a mirror waits for the set above, or for room",
    ),
    Rule(
        name="mirror_refused",
        hop=BROKER,
        pattern=r"^the mirror is refused by set|^this set mirrors nothing",
        says="a broker set cannot mirror the set above as it is configured",
    ),
    Rule(
        name="mirror_filled",
        hop=BROKER,
        pattern=r"^the mirror takes the full data again",
        says="a mirror takes the full data again",
    ),
    Rule(
        name="set_away",
        hop=BROKER,
        pattern=r"^broker -> set (.+): it does not pull",
        lasts_s=60.0,
        says="a broker set below is away",
    ),
    Rule(
        name="set_late",
        hop=BROKER,
        pattern=r"^broker -> set (.+): [\d,]+ changes? behind",
        lasts_s=30.0,
        says="a broker set below is far behind",
    ),
    Rule(
        name="label_absent",
        hop=BROKER,
        pattern=r"^label (\S+ names .+), which the set above does not have",
        says="a label names a table or a business that is not there",
    ),
    Rule(
        name="label_short",
        hop=BROKER,
        pattern=r"^set (\S+) pulls (?:the label|everything)",
        says="a broker set wants labels that the set above does not get",
    ),
    Rule(
        name="predicate_absent",
        hop=BROKER,
        pattern=r"^\[cluster\.where\.(.+)\] is about",
        says="a predicate of a broker set is about a table or a business that is not there",
    ),
    Rule(
        name="predicate_short",
        hop=BROKER,
        pattern=r"^set (\S+) wants (?:the rows|every row) of",
        says="a broker set wants rows that the set above does not get",
    ),
    Rule(
        name="mirror_table_refused",
        hop=BROKER,
        pattern=r"^table (\S+) is no longer mirrored",
        says="a table does not fit the predicate by which a broker set mirrors it",
    ),
    Rule(
        name="coordinator_record",
        hop=BROKER,
        pattern=r"^a record of the coordinator cannot be used: (\S+)",
        says="a record at etcd cannot be used",
    ),
    Rule(name="no_leader", hop=BROKER, pattern=r"^no broker leads it", says="no broker leads a business"),
    Rule(name="not_writable", hop=BROKER, pattern=r"^nothing can be written", says="a business takes no writes"),
    Rule(name="coordinator", hop=BROKER, pattern=r"^the coordinator does not answer", says="etcd does not answer"),
    Rule(
        name="unknown_business",
        hop=BROKER,
        pattern=r"^the cluster does not know this business",
        says="this broker keeps a business that the cluster does not know",
    ),
    Rule(
        name="certificate",
        hop=BROKER,
        pattern=r"^the broker's certificate|^renewed files of \[security\]",
        says="a certificate ends or cannot be used",
    ),
    Rule(name="audit", hop=BROKER, pattern=r"^the audit log cannot be written", says="the audit log cannot be written"),
    Rule(
        name="alarm_unsent",
        hop=BROKER,
        pattern=r"^alarms cannot be sent to (\S+):",
        says="alarms do not reach a recipient",
    ),
)
#: For every sentence that no rule matches.
UNKNOWN = Rule(name=OTHER, hop=BROKER, pattern="", says="anything else that needs attention")
NAMES = (*(rule.name for rule in RULES), OTHER)

_LASTS_S = {rule.name: rule.lasts_s for rule in RULES}
_COMPILED = tuple((rule, re.compile(rule.pattern)) for rule in RULES)
_FIGURES = re.compile(r"\d[\d,.]*")
_COMMAND = re.compile(r"`(venus [^`]+)`")


def recognised(sentence: str) -> tuple[Rule, str]:
    """Return the rule of a sentence and its subject, which is the same for the same problem with other figures."""
    for rule, pattern in _COMPILED:
        if found := pattern.search(sentence):
            return rule, " ".join(filter(None, found.groups()))[:SUBJECT_CHARS_MAX]
    return UNKNOWN, _FIGURES.sub("#", sentence)[:SUBJECT_CHARS_MAX]


def lasts_s(name: str) -> float:
    """Return how long an alarm of this kind must last before it is sent."""
    return _LASTS_S.get(name, 0.0)


def hop_of(rule: Rule, sentence: str) -> str:
    """Return the hop on which an alarm stands."""
    return rule.hop or (SOURCE if sentence.startswith("source") else TARGET)


def placed(business: str, sentence: str) -> str:
    """Return the sentence with its business in front: a target may have the same name."""
    return f"business {business}: {sentence}" if business else sentence


def commands(sentence: str) -> list[str]:
    """Return the commands that the sentence names."""
    return _COMMAND.findall(sentence)
