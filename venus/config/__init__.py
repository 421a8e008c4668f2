"""The settings of every VENUS process, and the one place where they are read.

`load` takes a TOML file, then lets the environment override it: `VENUS_BROKER__DATA_DIR` sets `broker.data_dir`,
`VENUS_TARGETS__MAIN__URL` a target's address. An option that no field declares is an error, in the file and in the
environment, so that a misspelt one cannot be silently ignored.
"""

from venus.config.cluster import BROKERS_MAX, ClusterSettings
from venus.config.sections import (
    AlarmRuleSettings,
    AlarmsSettings,
    ApplySettings,
    BrokerSettings,
    BusinessSettings,
    CaptureSettings,
    ColumnsSettings,
    DegradeSettings,
    HealthSettings,
    LakeSettings,
    LimitsSettings,
    RecipientSettings,
    SecuritySettings,
    SourceSettings,
    SparkSettings,
    TargetSettings,
    TracingSettings,
    options,
)
from venus.config.settings import (
    DEFAULT_FILE,
    Settings,
    effective_settings,
    is_secret,
    load,
    require_source,
    require_target,
)

__all__ = [
    "BROKERS_MAX",
    "DEFAULT_FILE",
    "AlarmRuleSettings",
    "AlarmsSettings",
    "ApplySettings",
    "BrokerSettings",
    "BusinessSettings",
    "CaptureSettings",
    "ClusterSettings",
    "ColumnsSettings",
    "DegradeSettings",
    "HealthSettings",
    "LakeSettings",
    "LimitsSettings",
    "RecipientSettings",
    "SecuritySettings",
    "Settings",
    "SourceSettings",
    "SparkSettings",
    "TargetSettings",
    "TracingSettings",
    "effective_settings",
    "is_secret",
    "load",
    "options",
    "require_source",
    "require_target",
]
