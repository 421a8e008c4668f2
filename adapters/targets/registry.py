"""The kinds of targets, by the scheme of their URL.

A new kind needs a folder with a module `target` that defines `open_target(settings, name)`, one line here, and a pass
through the conformance suite. Its modules are imported only when such a target is opened.
"""

from __future__ import annotations

from importlib import import_module
from typing import Protocol, cast

from venus.adapters.dialects.registry import VARIABLE
from venus.adapters.targets.contract import Target, require_capability
from venus.config import Settings, require_target
from venus.errors import ConfigError

#: Folder of the kind of target, by URL scheme; "postgresql+psycopg2" counts as "postgresql".
KINDS = {
    "parquet": "parquet",
    "postgresql": "postgresql",
}


class _TargetModule(Protocol):
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
    return target


def _variable_hint(url: str) -> str:
    return f"; {VARIABLE}" if url.startswith("$") else ""


def target_kind(url: str, place: str) -> str:
    """Return the folder for a URL. The URL itself never appears in a message, because it may contain a password."""
    scheme, colon, _ = url.partition(":")
    known = ", ".join(f"{known}:" for known in sorted(KINDS))
    if not colon:
        raise ConfigError(
            f"{place} is not the URL of a target", hint=f"it must start with one of {known}{_variable_hint(url)}"
        )
    scheme = scheme.partition("+")[0]
    if scheme not in KINDS:
        raise ConfigError(f"{place}: {scheme} is not a target that VENUS knows", hint=f"known are {known}")
    return KINDS[scheme]
