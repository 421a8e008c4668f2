"""The direction of replication between two databases, from the databases' own records, and its settings.

The configuration names the source and the targets of the initial direction. After `venus cutover --fall-back`, changes
flow in the opposite direction: the target becomes the source, and the configured source becomes a target with the name
`@source`. Every command works on the settings of the present direction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from pydantic import SecretStr

from venus.adapters.dialects import DIALECTS, fixed_namespace, has_upper_case_names
from venus.adapters.dialects.contract import Option, Source
from venus.adapters.dialects.registry import dialect_of, open_source, options_of, replace_own_options
from venus.adapters.targets.contract import Target, require_capability
from venus.adapters.targets.cutover_contract import CutoverObstacle
from venus.adapters.targets.registry import KINDS, FormerSource, open_target
from venus.adapters.targets.relational.names import PostgresNames
from venus.adapters.targets.switching import OLD, SideRecord, SideState, describe_switch, is_reversed, is_switching
from venus.adapters.targets.way_back import WayBackLoss, find_losses, find_obstacles, travelling_limits
from venus.config import Settings, SourceSettings, TargetSettings
from venus.errors import ConfigError, Refused, VenusError
from venus.model import TableSchema

#: Error text for a pair of databases that cannot switch.
SUPPORTED = (
    "the source has to be PostgreSQL, MariaDB, MySQL, SQLite or Oracle, and the target PostgreSQL; omit --fall-back"
)


@dataclass(frozen=True, slots=True)
class FallBackPair:
    """The configured source and one target, between which the application can switch."""

    base: Settings
    main: str

    def settings_to(self, follower: str) -> Settings:
        """Return the settings of the direction in which this database follows."""
        return reverse(self.base, self.main) if follower == OLD else self.base

    def other(self, name: str) -> str:
        """Return the name of the other database of the pair."""
        return self.main if name == OLD else OLD

    def open_source(self, follower: str) -> Source:
        """Open the other database as the source of this follower."""
        return open_source(self.settings_to(follower))

    def open_target(self, name: str) -> Target:
        """Return one of the two in its role as a target, which it has while it follows."""
        return open_target(self.settings_to(name), name)


def reverse(base: Settings, main: str) -> Settings:
    """Return the settings in which target `main` is the source and the configured source is a target.

    A row that the configured source cannot hold waits in quarantine, so that the other rows and tables follow. VENUS's
    own options configure capture, so they move to the database that is now captured, if that kind of database has them.
    """
    old, new = base.source, base.targets[main]
    url = replace_own_options(new.url.get_secret_value(), old.url.get_secret_value(), f"[targets.{main}] url")
    changed = (
        _login_options(new) | {"url": SecretStr(url)} | _missing_options(dialect_of(url)) | _spell_patterns(base, new)
    )
    others = {name: target for name, target in base.targets.items() if name != main}
    return base.model_copy(
        update={"source": old.model_copy(update=changed), "targets": {OLD: _as_target(old, new), **others}}
    )


def _missing_options(dialect: str) -> dict[str, Any]:
    """Return the options that this kind of source does not have, with their defaults."""
    defaults, missing = SourceSettings(), set(Option) - options_of(dialect)
    return {name: getattr(defaults, name) for one in missing if hasattr(defaults, name := one.name.lower())}


def _spell_patterns(base: Settings, new: TargetSettings) -> dict[str, Any]:
    """Return the patterns of tables and columns in the target's spelling of names, where that differs."""
    old, dialect = base.source, DIALECTS[_source_scheme(base)]
    if not has_upper_case_names(dialect):
        return {}
    fold = str if new.names == "keep" else str.lower
    user = (sa.make_url(old.url.get_secret_value()).username or "").upper().rpartition("[")[2].rstrip("]")
    namespace = PostgresNames(names=new.names, schema_of_all=new.schema_).namespace(user, dialect)

    def spell_table(pattern: str) -> str:
        owner, has_owner, table = pattern.rpartition(".")
        return f"{(new.schema_ or fold(owner)) if has_owner else namespace}.{fold(table)}"

    return {
        "tables": tuple(map(spell_table, old.tables)),
        "exclude": tuple(map(spell_table, old.exclude)),
        "columns": old.columns.model_copy(
            update={
                "include": tuple(map(fold, old.columns.include)),
                "exclude": tuple(map(fold, old.columns.exclude)),
            }
        ),
    }


def _login_options(place: SourceSettings | TargetSettings) -> dict[str, Any]:
    """Return the options of a database's URL and password."""
    return {"url": place.url, "password_command": place.password_command, "password_file": place.password_file}


def _as_target(source: SourceSettings, new: TargetSettings | None = None) -> FormerSource:
    """Return the configured source as a target; `new`: the target that takes over."""
    url = SecretStr(replace_own_options(source.url.get_secret_value(), "", "[source] url"))
    names = {"names": new.names, "schema_": new.schema_} if new is not None else {}
    target = FormerSource(url=url, on_error="quarantine")
    return target.model_copy(update=_login_options(source) | {"url": url, "captured": source} | names)


@dataclass(frozen=True, slots=True, kw_only=True)
class WayBack:
    """The obstacles to a fall-back to a source, and the losses: values and objects that could not come back to it."""

    obstacles: tuple[CutoverObstacle, ...]
    losses: tuple[WayBackLoss, ...]


def assess_way_back(base: Settings, tables: Sequence[TableSchema]) -> WayBack | None:
    """Assess whether a source could follow a new target with these tables; None if its kind cannot. Reads only."""
    if not _can_follow(base):
        return None
    settings = base.model_copy(update={"targets": {OLD: _as_target(base.source)}})
    new = {(t.qualified_name, c.name): travelling_limits(c, t.types) for t in tables for c in t.columns}
    with closing(open_target(settings, OLD).open_side()) as side:
        losses = find_losses(tables, side.read_limits(tables), new)
        return WayBack(obstacles=(*side.find_obstacles(tables), *find_obstacles(losses)), losses=tuple(losses))


def _can_follow(base: Settings) -> bool:
    """Return whether the configured source is of a kind that can follow a target."""
    settings = base.model_copy(update={"targets": {OLD: _as_target(base.source)}})
    return _source_scheme(base) in KINDS and open_target(settings, OLD).capabilities.falls_back


def _source_scheme(base: Settings) -> str:
    """Return the kind of the configured source's database, as its URL names it."""
    return base.source.url.get_secret_value().partition(":")[0].partition("+")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class FallBackState:
    """Both databases' records of the direction. `errors`: by name, why a database is unreachable; empty = reachable."""

    pair: FallBackPair
    records: Mapping[str, SideRecord | None]
    errors: Mapping[str, str]

    @property
    def is_reversed(self) -> bool:
        """Whether the configured source follows. Raises Refused if the records contradict each other.

        While one database is unreachable, the record of the reachable one decides the direction.
        """
        old, new = self.records[OLD], self.records[self.pair.main]
        if any(self.errors.values()):
            return (old is not None and old.state is SideState.FOLLOWING) or (
                new is not None and new.state is SideState.OPEN
            )
        return is_reversed(old, new)

    def check(self) -> None:
        """Raise Refused if the records contradict each other."""
        _ = self.is_reversed

    @property
    def is_switching(self) -> bool:
        """Whether a switch is unfinished."""
        return is_switching(*self.records.values())

    @property
    def settings(self) -> Settings:
        """The settings of the present direction."""
        return self.pair.settings_to(OLD if self.is_reversed else self.pair.main)

    @property
    def follower(self) -> str:
        """The database that follows, or will follow once the switch is finished."""
        return OLD if self.is_reversed else self.pair.main

    def state_of(self, name: str) -> SideState | None:
        """Return the state of a database; None = it has no record, or is unreachable."""
        record = self.records[name]
        return record.state if record is not None else None

    @property
    def advice(self) -> str:
        """What to do about an unfinished switch; empty = nothing."""
        return describe_switch(self.records)[1]


def check_pair(base: Settings, main: str) -> FallBackPair:
    """Return the pair. Raises ConfigError if source and target cannot replicate in both directions."""
    target = open_target(base, main)
    require_capability(target, "falls_back", hint=SUPPORTED)
    if not _can_follow(base) or not open_target(reverse(base, main), OLD).capabilities.falls_back:
        raise ConfigError("--fall-back: this source cannot follow a target", hint=SUPPORTED)
    if base.source.mode == "inline":
        raise ConfigError("--fall-back: a source in mode inline cannot follow a target", hint=SUPPORTED)
    config, namespace = base.targets[main], fixed_namespace(_source_scheme(base))
    is_mapped = has_upper_case_names(DIALECTS[_source_scheme(base)])  # the rule must convert names back
    if not is_mapped and (config.schema_ != namespace or config.names == "lower"):
        wanted = f'with schema = "{namespace}" since its load, without' if namespace else "without schema and"
        raise ConfigError(
            f"--fall-back: tables have other names at target {main}", hint=f"it needs [targets.{main}] {wanted} names"
        )
    return FallBackPair(base, main)


def read_state(base: Settings) -> FallBackState | None:
    """Read the records; None if no database has one for this business."""
    pairs = [pair for name in base.targets if (pair := _possible_pair(base, name)) is not None]
    if not pairs:
        return None
    old, old_error = _read_record(pairs[0], OLD)
    for pair in pairs:
        new, error = _read_record(pair, pair.main)
        if new is not None or (old is not None and old.peer == pair.main):
            return FallBackState(
                pair=pair, records={OLD: old, pair.main: new}, errors={OLD: old_error, pair.main: error}
            )
    return None


def _possible_pair(base: Settings, name: str) -> FallBackPair | None:
    """Return the pair of databases, None if they cannot switch."""
    try:
        return check_pair(base, name)
    except VenusError:
        return None


def _read_record(pair: FallBackPair, name: str) -> tuple[SideRecord | None, str]:
    """Return the record of one database, None without one; and the error if the database is unreachable."""
    try:
        with closing(pair.open_target(name).open_side()) as side:
            record = side.read()
    except VenusError as error:
        return None, str(error)
    if record is None or record.business != pair.base.business.name or record.name != name:
        return None, ""
    return record, ""


def require_state(base: Settings) -> FallBackState:
    """Return the records. Raises Refused if there are none or they contradict, or the error of an unreachable one."""
    if (state := read_state(base)) is not None:
        state.check()
        return state
    for pair in filter(None, (_possible_pair(base, name) for name in base.targets)):
        pair.open_target(OLD).open_side().close()  # fails if the target is unreachable: its record could prove a switch
    raise Refused(
        "nothing was cut over with --fall-back, so there is no follower to return to",
        hint="`venus cutover --undo` works as long as the target has not been written to",
    )


def directed_settings(base: Settings) -> Settings:
    """Return the settings of the present direction; `base` without a fall-back."""
    state = read_state(base)
    return base if state is None else state.settings
