"""The settings in force, for people: every secret is masked."""

from __future__ import annotations

import re
from typing import Any

from venus.config.settings import Settings
from venus.masking import masked

#: Names of Spark settings whose values nobody shall see.
_SECRET = re.compile(r"passw|secret|token|credential|access.?key|account.?key", re.IGNORECASE)


def effective(settings: Settings) -> dict[str, Any]:
    """Return the settings as plain values, every secret masked."""
    tree = settings.model_dump(mode="json", by_alias=True)
    tree["source"]["url"] = masked(settings.source.url.get_secret_value())
    for name, target in settings.targets.items():
        tree["targets"][name]["url"] = masked(target.url.get_secret_value())
    tree["spark"]["remote"] = masked(settings.spark.remote)
    for name in filter(is_secret, settings.spark.conf):
        tree["spark"]["conf"][name] = "***"
    return tree


def is_secret(name: str) -> bool:
    """Whether nobody shall see the value of a setting of Spark with this name."""
    return _SECRET.search(name) is not None
