"""All sections together, with the environment above the file; and the settings in force, with secrets masked."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any

from pydantic import ValidationInfo, field_validator, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from venus.config.cluster import ClusterSettings
from venus.config.sections import (
    AlarmsSettings,
    ApplySettings,
    BrokerSettings,
    BusinessSettings,
    CaptureSettings,
    LakeSettings,
    MatchingSettings,
    SecuritySettings,
    SourceSettings,
    SparkSettings,
    TargetSettings,
    TracingSettings,
)
from venus.config.values import LabelMembers, Name
from venus.errors import ConfigError
from venus.text.formatting import mask_url, suggest_nearest

#: Names of Spark settings with secret values.
_SECRET = re.compile(r"passw|secret|token|credential|access.?key|account.?key", re.IGNORECASE)


def effective_settings(settings: Settings) -> dict[str, Any]:
    """Return the settings in force as plain values, every secret masked."""
    tree = settings.model_dump(mode="json", by_alias=True)
    tree["source"]["url"] = mask_url(settings.source.url.get_secret_value())
    for name, target in settings.targets.items():
        tree["targets"][name]["url"] = mask_url(target.url.get_secret_value())
    tree["spark"]["remote"] = mask_url(settings.spark.remote)
    for name in filter(is_secret, settings.spark.conf):
        tree["spark"]["conf"][name] = "***"
    return tree


def is_secret(name: str) -> bool:
    """Return whether a setting of Spark with this name has a secret value."""
    return _SECRET.search(name) is not None


PREFIX = "VENUS_"


class Settings(BaseSettings):
    """Configuration of a VENUS process."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_nested_delimiter="__", extra="forbid", frozen=True, enable_decoding=False
    )

    business: BusinessSettings = BusinessSettings()
    source: SourceSettings = SourceSettings()
    targets: dict[str, TargetSettings] = {}
    broker: BrokerSettings = BrokerSettings()
    #: The meaning of each label: tables ("orders", "app.orders") of every business, or "business:NAME".
    labels: dict[Name, LabelMembers] = {}
    cluster: ClusterSettings = ClusterSettings()
    matching: MatchingSettings = MatchingSettings()
    security: SecuritySettings = SecuritySettings()
    alarms: AlarmsSettings = AlarmsSettings()
    tracing: TracingSettings = TracingSettings()
    capture: CaptureSettings = CaptureSettings()
    apply: ApplySettings = ApplySettings()
    lake: LakeSettings = LakeSettings()
    spark: SparkSettings = SparkSettings()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Give the environment precedence over the file."""
        return env_settings, init_settings

    @model_validator(mode="before")
    @classmethod
    def _fold_names(cls, tree: Any) -> Any:
        """Let VENUS_TARGETS__MAIN__URL set `[targets.Main]`: the environment knows neither case nor hyphens."""
        if not isinstance(tree, dict):
            return tree
        tree = _fold_section(_fold_section(tree, "targets"), "labels")
        if isinstance(alarms := tree.get("alarms"), dict):
            tree = tree | {"alarms": _fold_section(_fold_section(alarms, "to"), "rules")}
        return tree

    @field_validator("cluster")
    @classmethod
    def _check_labels(cls, cluster: ClusterSettings, info: ValidationInfo) -> ClusterSettings:
        known = info.data.get("labels")
        if known is None:  # the labels themselves are wrong, and have their own message
            return cluster
        for label in cluster.labels:
            if label not in known:
                way_out = f'define it there: {label} = ["TABLE", ...]'
                raise ValueError(f"label {label!r} is not in [labels]{suggest_nearest(label, known)}: {way_out}")
        return cluster

    @field_validator("cluster")
    @classmethod
    def _check_upstream(cls, cluster: ClusterSettings, info: ValidationInfo) -> ClusterSettings:
        broker = info.data.get("broker")
        own = (broker.address or broker.listen) if broker is not None else ""
        if own in cluster.upstream:
            raise ValueError(f"upstream names this broker itself, {own}: it lists brokers of the set above")
        return cluster


def _fold_section(tree: dict[str, Any], section: str) -> dict[str, Any]:
    """Merge the environment's options of a section into the names as the file spells them; return the tree."""
    found = tree.get(section)
    if not isinstance(found, dict):
        return tree
    spelt = {env_name(name): name for name in found if name != env_name(name)}
    folded = {name: options for name, options in found.items() if name not in spelt}
    for alias, name in spelt.items():
        overrides = found.get(alias)
        if isinstance(overrides, dict) and isinstance(folded[name], dict):
            folded[name] |= overrides
        elif overrides is not None:
            folded[name] = overrides
    return tree | {section: folded}


def env_name(name: str) -> str:
    """Return a name in the spelling of the environment: lower case, without hyphens."""
    return name.lower().replace("-", "_")


def find_variable(path: Sequence[str]) -> str:
    """Return the environment variable that sets an option; empty = there is none."""
    wanted = PREFIX + "__".join(env_name(part).upper() for part in path)
    return next((name for name in os.environ if name.upper() == wanted), "")


def require_source(settings: Settings) -> str:
    """Return the source's URL. Raises ConfigError if there is none."""
    if url := settings.source.url.get_secret_value():
        return url
    _refuse_empty("source.url")
    raise ConfigError("no source: [source] url is not set", hint="set it in venus.toml or VENUS_SOURCE__URL")


def _refuse_empty(option: str) -> None:
    """Raise ConfigError if an empty variable overrides an option: the file is not to blame."""
    if variable := find_variable(option.split(".")):
        raise ConfigError(
            f"environment: {variable} is empty, and overrides {option} of the file",
            hint=f"unset {variable}, or set it to the URL",
        )


def require_target(settings: Settings, name: str) -> TargetSettings:
    """Return the target of that name. Raises ConfigError, which names the existing ones."""
    if target := settings.targets.get(name):
        if not target.url.get_secret_value():
            _refuse_empty(f"targets.{name}.url")
        return target
    if not settings.targets:
        raise ConfigError(f"no target named {name!r}: there is no [targets.NAME] section", hint=f"add [targets.{name}]")
    raise ConfigError(
        f"no target named {name!r}{suggest_nearest(name, settings.targets)}",
        hint="known: " + ", ".join(sorted(settings.targets)),
    )
