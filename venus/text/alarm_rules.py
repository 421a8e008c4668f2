"""The kinds of alarms by name: the rule that recognises the sentences of each, and its hop of a row's path. Pure.

Status, page, metrics, health and messages show the same sentence for each problem. This table names the rule of each
sentence, so that an operator can configure, count and silence it. The rule also extracts the alarm's subject, so that a
sentence whose figures change remains the same alarm. A sentence that no rule matches is of the kind `other`, and is
sent like every other alarm.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

#: The hops of a row's path.
SOURCE, BROKER, TARGET = "source", "broker", "target"
OTHER = "other"
#: The lock of another session delays changes.
WAITS = "table_waits"
#: A switch between two databases was interrupted; the same command completes it.
SWITCH = "switch_unfinished"
SUBJECT_CHARS_MAX = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class AlarmKind:
    """A kind of alarm. The groups of `pattern` are the subject; without groups there is one alarm per business."""

    name: str
    #: Empty: the sentence itself begins with the source or a target.
    hop: str
    pattern: str
    description: str
    #: Seconds that it must last before it is sent, unless the configuration sets another time: a restart is no alarm.
    min_duration_s: float = 0.0


RULES = (
    AlarmKind(
        name="capture_away",
        hop=SOURCE,
        min_duration_s=60.0,
        pattern=r"^source -> broker: (?:capture is not|no upper adapter is) connected",
        description="capture is not connected",
    ),
    AlarmKind(
        name="capture_late",
        hop=SOURCE,
        pattern=r"^source -> broker: nothing has been captured",
        min_duration_s=30.0,
        description="capture is connected and sends nothing, not even heartbeats",
    ),
    AlarmKind(
        name="clocks_differ",
        hop=SOURCE,
        min_duration_s=120.0,
        pattern=r"^source -> broker: (?:the source's clock is|the newest change came) ",
        description="the source's clock and the broker's differ, or changes take very long",
    ),
    AlarmKind(
        name="target_away",
        hop=TARGET,
        min_duration_s=60.0,
        pattern=r"^broker -> target (.+): (?:apply is not|no under adapter is) connected",
        description="apply of a target is not connected",
    ),
    AlarmKind(
        name="target_late",
        hop=TARGET,
        pattern=r"^broker -> target (.+): [\d,]+ changes? behind",
        min_duration_s=30.0,
        description="a target is far behind",
    ),
    AlarmKind(
        name=SWITCH,
        hop="",
        min_duration_s=60.0,
        pattern=r"^(?:source|target .+?): the switch (?:from .+? )?to \S+ is not finished",
        description="a switch of the application between two databases was interrupted",
    ),
    AlarmKind(
        name="table_not_captured",
        hop="",
        min_duration_s=60.0,
        pattern=r"^(source: .+) matches the patterns and (?:is not|cannot be) captured",
        description="a table matches the patterns and is not captured",
    ),
    AlarmKind(
        name="table_halted",
        hop="",
        pattern=r"^((?:source|target .+?): .+) is (?:HALTED|RESYNC)\b",
        description="a table does not follow because of an error",
    ),
    AlarmKind(
        name="resync_failed",
        hop="",
        pattern=r"^(target .+?: .+): resync failed: ",
        description="a table could not be made equal to the full data",
    ),
    AlarmKind(
        name="table_paused",
        hop="",
        pattern=r"^((?:source|target .+?): .+) is PAUSED\b",
        description="an operator paused a table",
    ),
    AlarmKind(
        name=WAITS,
        hop="",
        pattern=r"^((?:source|target .+?): .+) is WAITING\b",
        min_duration_s=30.0,
        description="the lock of another session delays changes",
    ),
    AlarmKind(
        name="table_releasing",
        hop="",
        pattern=r"^(source: .+) is RELEASING\b",
        min_duration_s=60.0,
        description="the removal of a table from capture was not finished",
    ),
    AlarmKind(
        name="tables_many",
        hop="",
        pattern=r"^(source|target .+?): [\d,]+ more tables? do(?:es)? not follow",
        description="more tables do not follow than are listed",
    ),
    AlarmKind(
        name="paused",
        hop="",
        pattern=r"^(source|target .+?): paused;",
        description="a whole source or target is paused",
    ),
    AlarmKind(
        name="quarantine",
        hop="",
        pattern=r"^(source|target .+?): [\d,]+ refused changes? waits?",
        description="refused changes wait in quarantine",
    ),
    AlarmKind(
        name="compared_different",
        hop=TARGET,
        pattern=r"^(target .+?): the last comparison found ",
        description="the last `venus verify` found rows that differ, and they were not repaired",
    ),
    AlarmKind(
        name="unaccounted",
        hop="",
        pattern=r"^(target .+?): -?[\d,]+ changes? below its offset (?:is|are) unaccounted for",
        description="changes below a target's offset are not at the target",
    ),
    AlarmKind(
        name="half_undecided",
        hop=SOURCE,
        pattern=r"half message [\d,]+ (?:has been undecided|was asked about)",
        description="half messages have had no decision for a long time",
    ),
    AlarmKind(
        name="half_damaged",
        hop=SOURCE,
        pattern=r"damaged half messages in a row from",
        description="half messages arrive damaged",
    ),
    AlarmKind(
        name="full_data_behind",
        hop=BROKER,
        pattern=r"^the full data is [\d,]+ MiB behind",
        description="the full data cannot keep up, and producers are slowed",
    ),
    AlarmKind(
        name="lane_degraded",
        hop=BROKER,
        pattern=r"^lane (\d) .+ is degraded since",
        min_duration_s=30.0,
        description="the broker is overloaded and has given up its least important work",
    ),
    AlarmKind(
        name="unhealthy",
        hop=BROKER,
        pattern=r"^another broker should lead instead:",
        min_duration_s=30.0,
        description="a broker's disk is nearly full or slow, and it leads only if no other broker can",
    ),
    AlarmKind(
        name="alarms_many",
        hop=BROKER,
        pattern=r"^[\d,]+ more alarms are active than are kept",
        description="more alarms are active than are listed",
    ),
    AlarmKind(
        name="queue_held",
        hop=BROKER,
        pattern=r"^the queue keeps .+ for held tables of ([^,]+),",
        description="held tables keep much of the queue",
    ),
    AlarmKind(
        name="undescribed_rows",
        hop=BROKER,
        pattern=r"^(.+) has rows of version",
        description="there are rows whose column description never arrived",
    ),
    AlarmKind(
        name="disk_space", hop=BROKER, pattern=r"^too little free space: ", description="the data directory is full"
    ),
    AlarmKind(
        name="store_failed", hop=BROKER, pattern=r"^the store has failed", description="the store cannot be written"
    ),
    AlarmKind(
        name="replica_gone", hop=BROKER, pattern=r"^its replica at broker (.+) is gone$", description="a broker is lost"
    ),
    AlarmKind(
        name="replica_late",
        hop=BROKER,
        pattern=r"^its replica at broker (.+) is not in sync$",
        min_duration_s=30.0,
        description="a replica lags behind",
    ),
    AlarmKind(
        name="replica_installed",
        hop=BROKER,
        pattern=r"(?:^|: )(?:cannot follow .+: |.+ is being installed again: )",
        description="this broker's replica is being installed again",
    ),
    AlarmKind(
        name="replica_stopped",
        hop=BROKER,
        pattern=r"^log entry [\d,]+ cannot be applied here|^broker (.+) leads without acknowledged changes",
        description="this broker's replica has stopped permanently",
    ),
    AlarmKind(
        name="changes_lost",
        hop=BROKER,
        pattern=r"^the (?:unclean election of term|promotion of this set .+\(home term) (\d+)\)? may have lost",
        description="an unclean election or a promotion may have lost changes that were acknowledged",
    ),
    AlarmKind(
        name="home_promoted",
        hop=BROKER,
        pattern=r"^this set was promoted and is the home of",
        description="a promotion has overruled [cluster] upstream, which is still in the configuration",
    ),
    AlarmKind(
        name="home_replaced",
        hop=BROKER,
        pattern=r"^this home was replaced",
        description="another set was promoted while this home was away",
    ),
    AlarmKind(
        name="two_homes",
        hop=BROKER,
        pattern=r"(?:^|; )set .+ is a home of (.+) as well|^a broker at (\S+) answers, and may take writes",
        description="the old home answers, and may take writes as well",
    ),
    AlarmKind(
        name="mirror_cut_off",
        hop=BROKER,
        min_duration_s=10.0,
        pattern=r"^set (.+?) does not answer for|^the set above does not answer",
        description="a broker set does not reach the set above; it serves what it has",
    ),
    AlarmKind(
        name="mirror_away",
        hop=BROKER,
        min_duration_s=90.0,
        pattern=r"^set (.+?) is the nearest above, and has not been used for",
        description="a broker set pulls from another set than the nearest",
    ),
    AlarmKind(
        name="mirror_waits",
        hop=BROKER,
        pattern=r"^the mirror waits for set",
        min_duration_s=30.0,
        description="a mirror waits for the set above, or for room",
    ),
    AlarmKind(
        name="mirror_refused",
        hop=BROKER,
        pattern=r"^the mirror is refused by set|^this set mirrors nothing",
        description="a broker set cannot mirror the set above as it is configured",
    ),
    AlarmKind(
        name="mirror_filled",
        hop=BROKER,
        pattern=r"^the mirror takes the full data again",
        description="a mirror takes the full data again",
    ),
    AlarmKind(
        name="set_away",
        hop=BROKER,
        pattern=r"^broker -> set (.+): it does not pull",
        min_duration_s=60.0,
        description="a broker set below is away",
    ),
    AlarmKind(
        name="set_late",
        hop=BROKER,
        pattern=r"^broker -> set (.+): [\d,]+ changes? behind",
        min_duration_s=30.0,
        description="a broker set below is far behind",
    ),
    AlarmKind(
        name="sets_contradict",
        hop=BROKER,
        pattern=r"^two sets are called (.+?): |^set (.+?) reports |^more than [\d,]+ sets are known",
        description="broker sets have one name or one broker, or a set reports an impossible place",
    ),
    AlarmKind(
        name="label_absent",
        hop=BROKER,
        pattern=r"^label (\S+ names .+), which the set above does not have",
        description="a label names a table or a business that is not there",
    ),
    AlarmKind(
        name="label_short",
        hop=BROKER,
        pattern=r"^set (\S+) pulls (?:the label|everything)",
        description="a broker set wants labels that the set above does not get",
    ),
    AlarmKind(
        name="predicate_absent",
        hop=BROKER,
        pattern=r"^\[cluster\.where\.(.+)\] is about",
        description="a predicate of a broker set is about a table or a business that is not there",
    ),
    AlarmKind(
        name="predicate_short",
        hop=BROKER,
        pattern=r"^set (\S+) wants (?:the rows|every row) of",
        description="a broker set wants rows that the set above does not get",
    ),
    AlarmKind(
        name="mirror_table_refused",
        hop=BROKER,
        pattern=r"^table (\S+) is no longer mirrored",
        description="a table does not fit the predicate by which a broker set mirrors it",
    ),
    AlarmKind(
        name="border_table_refused",
        hop=BROKER,
        pattern=r"^table (\S+) is not sent to the sets below",
        description="a table does not fit the rules by which the sets below get masked columns",
    ),
    AlarmKind(
        name="border_rule_absent",
        hop=BROKER,
        pattern=r"^\[(cluster\.columns\..+)\] is about",
        description="a rule for columns of the sets below is about a table that is not there",
    ),
    AlarmKind(
        name="coordinator_record",
        hop=BROKER,
        pattern=r"^a record of the coordinator cannot be used: (\S+)",
        description="a record at etcd cannot be used",
    ),
    AlarmKind(name="no_leader", hop=BROKER, pattern=r"^no broker leads it", description="no broker leads a business"),
    AlarmKind(
        name="not_writable", hop=BROKER, pattern=r"^nothing can be written", description="a business takes no writes"
    ),
    AlarmKind(
        name="coordinator", hop=BROKER, pattern=r"^the coordinator does not answer", description="etcd does not answer"
    ),
    AlarmKind(
        name="unknown_business",
        hop=BROKER,
        pattern=r"^the cluster does not know this business",
        description="this broker keeps a business that the cluster does not know",
    ),
    AlarmKind(
        name="certificate",
        hop=BROKER,
        pattern=r"^the broker's certificate|^renewed files of \[security\]",
        description="a certificate ends or cannot be used",
    ),
    AlarmKind(
        name="audit",
        hop=BROKER,
        pattern=r"^the audit log cannot be written",
        description="the audit log cannot be written",
    ),
    AlarmKind(
        name="alarm_unsent",
        hop=BROKER,
        pattern=r"^alarms cannot be sent to (\S+):",
        description="alarms do not reach a recipient",
    ),
)
#: The kind of every sentence that no rule matches.
UNKNOWN = AlarmKind(name=OTHER, hop=BROKER, pattern="", description="anything else that needs attention")
NAMES = (*(rule.name for rule in RULES), OTHER)

_LASTS_S = {rule.name: rule.min_duration_s for rule in RULES}
_COMPILED = tuple((rule, re.compile(rule.pattern)) for rule in RULES)
_FIGURES = re.compile(r"\d[\d,.]*")
_COMMAND = re.compile(r"`(venus [^`]+)`")


def classify_sentence(sentence: str) -> tuple[AlarmKind, str]:
    """Return the kind of alarm of a sentence, and its subject, which stays the same when only figures change."""
    for rule, pattern in _COMPILED:
        if found := pattern.search(sentence):
            return rule, " ".join(filter(None, found.groups()))[:SUBJECT_CHARS_MAX]
    return UNKNOWN, _FIGURES.sub("#", sentence)[:SUBJECT_CHARS_MAX]


def min_duration_s(name: str) -> float:
    """Return how long an alarm of this kind must last before it is sent."""
    return _LASTS_S.get(name, 0.0)


def hop_of(rule: AlarmKind, sentence: str) -> str:
    """Return the hop to which an alarm belongs."""
    return rule.hop or (SOURCE if sentence.startswith("source") else TARGET)


def prefix_business(business: str, sentence: str) -> str:
    """Return the sentence with its business in front: several businesses may have a target of one name."""
    return f"business {business}: {sentence}" if business else sentence


def find_commands(sentence: str) -> list[str]:
    """Return the `venus` commands that a sentence quotes."""
    return _COMMAND.findall(sentence)
