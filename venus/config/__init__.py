"""The settings of every VENUS process, and the one place where they are read.

`load` takes a TOML file, then lets the environment override it: `VENUS_BROKER__DATA_DIR` sets `broker.data_dir`,
`VENUS_TARGETS__MAIN__URL` a target's address. An option that no field declares is an error, in the file and in the
environment, so that a misspelt one cannot be silently ignored.
"""

from venus.config.alarms import AlarmRule, Alarms, Recipient
from venus.config.cluster import BROKERS_MAX, Cluster
from venus.config.reading import DEFAULT_FILE, load
from venus.config.sections import (
    Apply,
    Broker,
    Business,
    Capture,
    Columns,
    Degrade,
    Health,
    Lake,
    Limits,
    Security,
    Source,
    Spark,
    Target,
    Tracing,
    options,
)
from venus.config.settings import Settings, effective, is_secret, require_source, require_target

__all__ = [
    "BROKERS_MAX",
    "DEFAULT_FILE",
    "AlarmRule",
    "Alarms",
    "Apply",
    "Broker",
    "Business",
    "Capture",
    "Cluster",
    "Columns",
    "Degrade",
    "Health",
    "Lake",
    "Limits",
    "Recipient",
    "Security",
    "Settings",
    "Source",
    "Spark",
    "Target",
    "Tracing",
    "effective",
    "is_secret",
    "load",
    "options",
    "require_source",
    "require_target",
]
