"""The kinds of targets, by the scheme of their URL, and the base class of every kind.

A new kind of target needs a folder with a module `target` that defines `open_target(settings, name)`, and one line in
this module, and it must pass the conformance suite. The modules of a kind are imported only when a target of that kind
is opened. The base classes hold the configuration, and refuse each capability that a kind of target lacks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from collections.abc import Sequence as Seq
from contextlib import AbstractContextManager
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, NoReturn, Protocol, cast

from pydantic import SecretStr

from venus.adapters.dialects.registry import VARIABLE, describe_database
from venus.adapters.targets.contract import (
    FollowReporter,
    Quarantine,
    ScaledApply,
    Target,
    TargetCapabilities,
    TargetDdl,
    require_capability,
)
from venus.config import Settings, SourceSettings, TargetSettings, require_target
from venus.errors import ConfigError, Diverged, OtherRows, Refused
from venus.model import TableSchema
from venus.rpc.address import broker_address

if TYPE_CHECKING:
    from venus.adapters.dialects.contract import Numbering, OtherObject
    from venus.adapters.targets.columns import TargetColumns
    from venus.adapters.targets.contract import LoadedTable, TargetReader
    from venus.adapters.targets.cutover_contract import CutoverTarget, FallBackSide
    from venus.process.runners import Runner
    from venus.rpc.conditions import LastComparison


#: Folder of the kind of target, by URL scheme; "postgresql+psycopg2" counts as "postgresql".
KINDS = {
    "mariadb": "mysql",
    "mysql": "mysql",
    "oracle": "oracle",
    "parquet": "parquet",
    "postgresql": "postgresql",
    "sqlite": "sqlite",
}


class FormerSource(TargetSettings):
    """Settings of the source when it is a target; `names` and `schema`: how the other database converts its names."""

    captured: SourceSettings = SourceSettings()


class _TargetModule(Protocol):
    """The module `target` in the folder of a kind of target."""

    def open_target(self, settings: Settings, name: str) -> Target: ...


def open_target(settings: Settings, name: str) -> Target:
    """Return target `name` of the configuration; it connects on first use."""
    config = require_target(settings, name)
    url = config.url.get_secret_value()
    kind = target_kind(url, f"targets.{name}.url")
    try:
        module = cast(_TargetModule, import_module(f"venus.adapters.targets.{kind}.target"))
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("venus"):
            raise
        raise ConfigError(f"targets.{name}.url: {error.name} is not installed", hint="pip install venus-cdc") from error
    target = module.open_target(settings, name)
    if config.where:
        require_capability(target, "filters", hint=f"take [targets.{name}.where] out of the configuration")
    if config.columns or config.new_columns != "carry":
        hint = f"take [targets.{name}.columns] and new_columns out of the configuration"
        require_capability(target, "masks", hint=hint)
    if config.new_columns == "halt":
        require_capability(target, "pauses_tables", hint=f"set new_columns of [targets.{name}] to carry or drop")
    return target


def _variable_hint(url: str) -> str:
    """Return a hint about environment variables if the URL begins with `$`, otherwise an empty text."""
    return f"; {VARIABLE}" if url.startswith("$") else ""


def target_kind(url: str, place: str) -> str:
    """Return the kind of target for a URL, as the name of its folder. No error shows the URL or its password."""
    scheme, colon, _ = url.partition(":")
    known = ", ".join(f"{known}:" for known in sorted(KINDS))
    if not colon:
        raise ConfigError(
            f"{place} is not the URL of a target", hint=f"it must start with one of {known}{_variable_hint(url)}"
        )
    if "\0" in url:
        raise ConfigError(f"{place} contains a NUL character", hint=f"write {scheme}: and the place of the target")
    scheme = scheme.partition("+")[0]
    if scheme not in KINDS:
        raise ConfigError(f"{place}: {scheme} is not a target that VENUS knows", hint=f"known are {known}")
    return KINDS[scheme]


class ConfiguredTarget:
    """Target `name` of the configuration, with its URL, its business and its broker."""

    def __init__(self, settings: Settings, name: str) -> None:
        self.settings = settings
        self.name = name
        self.config = require_target(settings, name)
        self.business = settings.business.name
        self.group = f"{self.business}/{name}"

    @cached_property
    def columns(self) -> TargetColumns:
        """The rules for the target's columns. Raises ConfigError for a masking key that cannot be used."""
        from venus.adapters.targets.columns import TargetColumns  # imported here, because it imports Arrow

        return TargetColumns(self.settings, self.name)

    @property
    def url(self) -> str:
        """The URL with the current password; read it again for each new connection."""
        return self.config.url.get_secret_value()

    @property
    def description(self) -> str:
        """Database and host, or the folder, without user and password."""
        return describe_database(self.url)

    @property
    def worker_url(self) -> str | SecretStr:
        """The URL for another process, which reads the password itself if that comes from a file."""
        return self.url if type(self.config.url) is SecretStr else self.config.url

    @property
    def broker(self) -> str:
        """The address of the broker."""
        return broker_address(self.settings)

    @property
    def not_loaded_error(self) -> Refused:
        """The error for a target that was never loaded."""
        return Refused(f"target {self.name} has not been loaded yet", hint=f"venus migrate --target {self.name}")

    def diverged_error(self, error: Diverged) -> Diverged:
        """Return the error for a broker whose history or rows differ from those of the target."""
        again = (
            f"`venus resync --all --target {self.name}`, then `venus sync`, make it equal to that broker's full data"
        )
        hint = f"give that set the same predicates; or {again}" if isinstance(error, OtherRows) else again
        return type(error)(f"target {self.name}: {error}", hint=hint)

    @property
    def locked_error(self) -> Refused:
        """The error for a target that another process has locked."""
        return Refused(
            f"another process is working on target {self.name}", hint="stop it first (venus sync, venus migrate)"
        )


class TargetBase:
    """A target without the optional capabilities; a kind that has one overrides its method."""

    name: str
    capabilities: TargetCapabilities
    #: What to do about an unfinished switch of the application, as text; empty = nothing.
    describe_switch: Callable[[], str] = staticmethod(lambda: "")

    def _raise_unsupported(self, capability: str) -> NoReturn:
        require_capability(self, capability)
        raise AssertionError(capability)

    def build_ddl(self, schemas: Seq[TableSchema], numberings: Seq[Numbering], others: Seq[OtherObject]) -> TargetDdl:
        self._raise_unsupported("prints_ddl")

    def open_scaled_apply(
        self, runner: Runner, stop: threading.Event, report: FollowReporter | None = None
    ) -> AbstractContextManager[ScaledApply]:
        self._raise_unsupported("follows_by_runner")

    def open_quarantine(self) -> Quarantine:
        self._raise_unsupported("quarantines")

    def record_comparison(self, compared: LastComparison) -> None:
        self._raise_unsupported("verifies")

    def read_loaded_tables(self) -> dict[int, LoadedTable] | None:
        self._raise_unsupported("verifies")

    def open_reader(self) -> TargetReader:
        self._raise_unsupported("verifies")

    def open_cutover(self) -> AbstractContextManager[CutoverTarget]:
        self._raise_unsupported("cuts_over")

    def open_side(self) -> FallBackSide:
        self._raise_unsupported("falls_back")
