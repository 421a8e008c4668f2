"""State machine of a switch between two databases that replicate to each other, as a table. Pure.

At any moment one database is the application's (the owner), and the other one follows it (the follower). A switch hands
the application from one to the other. Each database has one record of its state. Each step changes one record together
with its effects in one transaction, so an interrupted switch continues at the step that the two records name:

    step     record that it changes   from       to
    PREPARE  the follower's           (none)     FOLLOWING   it rejects writes of the application
    CLOSE    the owner's              OPEN       CLOSED      it rejects them too; its log still drains
    STOP     the owner's              CLOSED     STOPPED     its capture is sealed at a position
    OPEN     the follower's           FOLLOWING  OPEN        it has applied that position, captures, and accepts writes
    FOLLOW   the former owner's       STOPPED    FOLLOWING   it applies from that position on

A database accepts writes only in OPEN. The former owner leaves OPEN before the new owner enters it, so the two never
accept writes at the same time. If a database was restored from a backup, the switch number in its record is too low for
the record of the other database, and the switch is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from venus.errors import Refused

#: The name by which commands call the configured source while it follows a target.
OLD = "@source"


def url_option(name: str) -> str:
    """Return the option with the URL of a database, by its name in commands."""
    return "url in [source]" if name == OLD else f"url in [targets.{name}]"


class SideState(Enum):
    """State of one of the two databases between which the application can switch."""

    OPEN = "OPEN"
    CLOSED = "CLOSED"
    STOPPED = "STOPPED"
    FOLLOWING = "FOLLOWING"


class Step(Enum):
    """Step of a switch of the application from one database to the other."""

    PREPARE = "prepare"
    CLOSE = "close"
    STOP = "stop"
    OPEN = "open"
    FOLLOW = "follow"
    DONE = "done"


@dataclass(frozen=True, slots=True, kw_only=True)
class SideRecord:
    """Record of a database's role in switches. `peer`: the name of the other database in commands."""

    business: str
    name: str
    peer: str
    state: SideState
    switch: int
    offset: int = 0
    changed_at: datetime | None = None


#: Next step by the states of owner and follower; None = no record yet.
STEPS: Mapping[tuple[SideState, SideState | None], Step] = {
    (SideState.OPEN, None): Step.PREPARE,
    (SideState.OPEN, SideState.FOLLOWING): Step.CLOSE,
    (SideState.CLOSED, SideState.FOLLOWING): Step.STOP,
    (SideState.STOPPED, SideState.FOLLOWING): Step.OPEN,
    (SideState.STOPPED, SideState.OPEN): Step.FOLLOW,
    (SideState.FOLLOWING, SideState.OPEN): Step.DONE,
}
#: How much greater the owner's switch number is than the follower's before each step.
_AHEAD = {
    Step.PREPARE: 0,
    Step.CLOSE: 0,
    Step.STOP: 1,
    Step.OPEN: 1,
    Step.FOLLOW: 0,
    Step.DONE: 0,
}


def find_step(owner: SideRecord | None, follower: SideRecord | None) -> Step:
    """Return the next step of a switch from `owner` to `follower`. Raises Refused if the records conflict.

    An owner without a record has never switched.
    """
    state = owner.state if owner is not None else SideState.OPEN
    number = owner.switch if owner is not None else 0
    step = STEPS.get((state, follower.state if follower is not None else None))
    ahead = number - (follower.switch if follower is not None else 0)
    if step is None or ahead != _AHEAD[step]:
        raise contradiction(owner, follower)
    return step


def contradiction(one: SideRecord | None, other: SideRecord | None) -> Refused:
    """Return the error for two contradicting records, which no history of switches can have produced."""
    known = [record for record in (one, other) if record is not None]
    newest = max(known, key=lambda record: record.switch)
    if len(known) == 2 and known[0].switch == known[1].switch:
        states = " and ".join(f"{record.name} is {record.state.value}" for record in known)
        what = f"{states}, both after switch {newest.switch}"
    else:
        what = f"{newest.peer} does not know of switch {newest.switch}, which {newest.name} has recorded"
    return Refused(
        f"{what}: a database was restored from a backup or replaced, and nothing is written to either",
        hint=f"restore a newer backup of {newest.peer}; or keep {newest.name} alone and DROP SCHEMA venus CASCADE in "
        f"{newest.peer}",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchPosition:
    """Position at which the former owner's capture was sealed."""

    offset: int
    epoch: int
    next_sequence: int
    last_batch: int


def is_reversed(old: SideRecord | None, new: SideRecord | None) -> bool:
    """Return whether changes flow from the target to the configured source. Raises Refused if the records conflict."""
    try:
        return find_step(old, new) in (Step.FOLLOW, Step.DONE)
    except Refused:
        if new is None or new.switch == 0:
            raise
        with suppress(Refused):
            return find_step(new, old) not in (Step.FOLLOW, Step.DONE)
        raise


def is_switching(*records: SideRecord | None) -> bool:
    """Return whether a switch has begun and not ended."""
    return any(r is not None and r.state in (SideState.CLOSED, SideState.STOPPED) for r in records)


def switch_command(name: str) -> str:
    """Return the command that makes this database the application's."""
    return "venus fallback" if name == OLD else f"venus cutover --target {name} --fall-back"


def describe_switch(records: Mapping[str, SideRecord | None]) -> tuple[str, str]:
    """Return which database accepts writes, and what to do about an unfinished switch; both as text, or empty.

    `records` maps the names of both databases to their records.
    """
    known = [record for record in records.values() if record is not None]
    unfinished = next((r for r in known if r.state in (SideState.CLOSED, SideState.STOPPED)), None)
    owner = next((r.name for r in known if r.state is SideState.OPEN), "")
    if unfinished is None:
        return owner, ""
    command = switch_command(unfinished.peer)
    if owner == unfinished.peer:
        return owner, f"the switch to {owner} is not finished: `{command}` completes it; only {owner} accepts writes"
    return "", (
        f"the switch from {unfinished.name} to {unfinished.peer} is not finished, and neither accepts writes: "
        f"`{command}` completes it, `{command} --undo` lets {unfinished.name} accept writes again"
    )
