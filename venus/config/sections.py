"""The sections of venus.toml: each section is a class, each option a field with its unit in its name."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, Field, SecretStr, field_validator, model_validator

from venus.config.cluster import ClusterSettings
from venus.config.values import (
    Address,
    Addresses,
    ColumnRules,
    Count,
    Endpoint,
    Limit,
    Milliseconds,
    Name,
    Pairs,
    Patterns,
    Predicates,
    Remote,
    Seconds,
    Sets,
    SettingsSection,
    SparkValue,
)
from venus.text.alarm_rules import NAMES
from venus.text.formatting import suggest_nearest


def _check_rule_name(name: str) -> str:
    """Refuse a name that is no kind of alarm. Raises ValueError."""
    if name not in NAMES:
        raise ValueError(f"is not a kind of alarm{suggest_nearest(name, NAMES)}; `venus alarms rules` lists them")
    return name


class AlarmRuleSettings(SettingsSection):
    """Options of one kind of alarm."""

    #: How long it must last before it is sent; 0 = the default of this kind, often at once.
    after_s: float = Field(default=0.0, ge=0)
    #: How long until it is sent again; 0 = alarms.repeat_s.
    repeat_s: float = Field(default=0.0, ge=0)
    #: Whether it is sent at all; page, status and metrics show it anyway.
    send: bool = True


class RecipientSettings(SettingsSection):
    """A recipient of alarms, by one of three channels."""

    #: A URL that takes a POST with JSON. Knowing it is often enough to write there, so it counts as a secret.
    webhook: SecretStr = SecretStr("")
    webhook_file: str = ""
    #: Addresses of e-mail.
    mail: Patterns = ()
    mail_from: str = ""
    smtp: Address = ""
    smtp_security: Literal["starttls", "tls", "none"] = "starttls"
    smtp_user: str = ""
    smtp_password: SecretStr = SecretStr("")
    smtp_password_file: str = ""
    #: A program with its arguments; it gets the JSON of the webhook on stdin. No shell.
    command: str = ""
    #: Which kinds of alarms, as shell patterns.
    rules: Patterns = ("*",)
    timeout_s: float = Field(default=10.0, gt=0, le=300)

    @field_validator("rules")
    @classmethod
    def _check_patterns(cls, patterns: tuple[str, ...]) -> tuple[str, ...]:
        """Refuse a pattern that matches no kind of alarm."""
        for pattern in patterns:
            if not any(fnmatchcase(name, pattern) for name in NAMES):
                raise ValueError(f"has {pattern!r}, which is not a kind of alarm{suggest_nearest(pattern, NAMES)}")
        return patterns

    @model_validator(mode="after")
    def _check_channel(self) -> RecipientSettings:
        """Refuse a recipient without exactly one complete channel."""
        webhook = bool(self.webhook.get_secret_value() or self.webhook_file)
        if [webhook, bool(self.mail), bool(self.command)].count(True) != 1:
            raise ValueError("one of webhook (or webhook_file), mail and command must be set")
        if self.mail and not (self.smtp and self.mail_from):
            raise ValueError("mail needs smtp, the server as HOST:PORT, and mail_from, the sender's address")
        for option in ("webhook", "smtp_password"):
            if getattr(self, option).get_secret_value() and getattr(self, f"{option}_file"):
                raise ValueError(f"{option} and {option}_file are both set: keep one of them")
        return self

    @property
    def channel(self) -> str:
        """The name of the channel: webhook, mail or command."""
        return "mail" if self.mail else "command" if self.command else "webhook"


class AlarmsSettings(SettingsSection):
    """When an alarm is raised, repeated and cleared, and which recipients get it."""

    #: How often a broker checks for alarms.
    check_s: Seconds = 5.0
    #: After how long an active alarm is sent again.
    repeat_s: Seconds = 4 * 3600.0
    #: How long an alarm must be gone before it is over, which is sent too.
    clear_s: float = Field(default=30.0, ge=0)
    #: A target this far behind is an alarm, and so is a source without captured changes for this long.
    late_s: Seconds = 60.0
    to: dict[str, RecipientSettings] = {}
    rules: dict[Annotated[str, AfterValidator(_check_rule_name)], AlarmRuleSettings] = {}

    def rule_settings(self, name: str) -> AlarmRuleSettings:
        """Return the configured options of a kind of alarm."""
        return self.rules.get(name, AlarmRuleSettings())


class LimitsSettings(SettingsSection):
    """Limits of traffic. A client above a limit receives the time after which it may continue."""

    #: For the half messages of one business; 0 = no limit. The amount of `burst_s` seconds may come at once.
    rows_per_s: Limit = 0.0
    bytes_per_s: Limit = 0.0
    burst_s: Seconds = 1.0
    #: For all full data that leaves the broker, shared evenly; 0 = no limit.
    full_data_bytes_per_s: Limit = 0.0
    snapshots: Count = 4
    #: For all snapshots together: one for each load, and for each other reader of full data.
    leases: Count = 1000
    loads: Count = 64
    streams: Count = 20_000
    #: Half messages that have waited longer than this for the disk are refused; 0 = never.
    slow_request_ms: Limit = 200.0
    #: Large work pauses while commits of businesses that send little take longer than this next to it; 0 = never.
    small_commit_ms: Limit = 50.0
    #: Each time a consumer has made no progress for this long, its window is halved.
    slow_consumer_s: Seconds = 5.0
    #: Subscriptions by content of all clients together, and on one stream.
    subscriptions: Count = 20_000
    subscriptions_of_client: Count = 10_000
    #: Values in the predicates of all clients together, and on one stream.
    predicate_values: Count = 500_000
    predicate_values_of_client: Count = 100_000
    #: A client that reads nothing of its subscriptions for this long is disconnected.
    listener_s: Seconds = 60.0


class DegradeSettings(SettingsSection):
    """Thresholds from which the broker gives up the least important lane; 0 = not checked."""

    #: CPU of the broker's process, in percent of one core; degrades lane 4 only.
    cpu_percent: Limit = 90.0
    cpu_sustain_s: Seconds = 60.0
    #: Memory of the machine. Disk space counts too, once less than twice broker.free_bytes_min is free.
    memory_percent: Limit = 92.0
    #: How long work waits in the broker before it starts.
    lag_ms: Limit = 500.0
    sustain_s: Seconds = 5.0
    restore_s: Seconds = 30.0


class HealthSettings(SettingsSection):
    """Thresholds that make a broker sub-healthy (Tensor, table III); 0 = not checked."""

    silent_s: Limit = 120.0
    heartbeat_missed_s: Limit = 5.0
    latency_s: Limit = 30.0
    memory_percent: Limit = 95.0
    cpu_percent: Limit = 98.0
    cpu_sustain_s: Seconds = 60.0
    disk_percent: Limit = 95.0
    clients_max: int = Field(default=1000, ge=0)
    keep_s: Seconds = 1800.0


class BusinessSettings(SettingsSection):
    """An ordered queue: one source, or a group of its tables."""

    name: Name = "main"


class ColumnsSettings(SettingsSection):
    """Which columns are carried, as patterns of TABLE.COLUMN or SCHEMA.TABLE.COLUMN."""

    #: Overrides `exclude`; names columns that are not carried by default.
    include: Patterns = ()
    exclude: Patterns = ()


class SourceSettings(SettingsSection):
    """The database whose changes are captured."""

    url: SecretStr = SecretStr("")
    #: The password, if it is not in the URL: the output of a command, or a file that only its owner can read.
    password_command: str = ""
    password_file: str = ""
    #: "inline" puts the paper's own columns into the application's tables (Oracle only; costs:
    #: docs/explanation/departures.md, "Three columns").
    mode: Literal["log", "inline"] = "log"
    tables: Patterns = ("*",)
    exclude: Patterns = ()
    #: Columns carried as another type than their default: {"APP.STUDENT.ACTIVE": "boolean"} (Oracle only).
    type_map: Pairs = {}
    columns: ColumnsSettings = ColumnsSettings()
    #: At this size a log takes no more changes, and its table must be read again: no log may fill the source's disk.
    log_rows_max: int = Field(default=0, ge=0)  # 0 = no limit
    log_bytes_max: int = Field(default=0, ge=0)  # of the log and its index; 0 = no limit
    #: Where new logs lie (Oracle only); empty = the default tablespace of VENUS's user.
    log_tablespace: str = Field(default="", max_length=128, pattern=r'^[^"\x00-\x1f]*$')


class TargetSettings(SettingsSection):
    """A database that VENUS keeps equal to the source."""

    url: SecretStr
    password_command: str = ""
    password_file: str = ""
    #: The schema of the tables; empty = the namespaces of the source ("main" of SQLite becomes "public").
    schema_: str = Field(default="", alias="schema")
    #: How names are written: auto = names of upper-case dictionaries (Oracle) in lower case, lower = all names in lower
    #: case, keep = unchanged.
    names: Literal["auto", "lower", "keep"] = "auto"
    on_error: Literal["halt", "quarantine"] = "halt"
    #: How long a refused row is kept after it was applied, skipped or superseded.
    quarantine_keep_s: Seconds = 30 * 86400.0
    on_existing: Literal["refuse", "truncate", "append"] = "refuse"
    #: How a table is emptied: by DELETE, as readers of an older snapshot need it, or by TRUNCATE, which is instant.
    empty_by: Literal["delete", "truncate"] = "delete"
    #: Which rows of a table it gets: {"orders": "region = 'EU' and amount >= 100"}; other tables are complete.
    where: Predicates = {}
    #: What happens to columns: {"customers.email": "hmac"}; other columns stay (venus/masking/rules.py).
    columns: ColumnRules = {}
    #: What happens to a column that the source adds later and no rule names.
    new_columns: Literal["carry", "drop", "halt"] = "carry"
    #: The key of the hmac columns, in a file that only its owner may read.
    masking_key_file: str = ""


class BrokerSettings(SettingsSection):
    """The broker, and how other processes reach it."""

    listen: Address = "127.0.0.1:7400"
    #: The address for the other processes; empty = `listen`.
    address: Address = ""
    #: The addresses of the brokers of a cluster; overrides `address`.
    addresses: Addresses = ()
    #: Other sets of brokers, nearest first, to use while none of the brokers at these addresses answers.
    further: Sets = ()
    #: Brokers of any set, which answer where the nearest set is; address, addresses and further override the answer.
    directory: Addresses = ()
    #: Where targets read increments: at the leader, or at the nearest replica in sync, by [cluster] site.
    read_from: Literal["leader", "nearest"] = "leader"
    #: Clients on the broker's machine, as its user and without TLS, use a Unix socket in place of gRPC.
    local_streams: bool = True
    #: Metrics, health and the status page over HTTP; empty = off.
    http: Address = "127.0.0.1:7401"
    data_dir: Path = Path("data")
    buffer_bytes_max: Count = 64 << 20
    cache_bytes: Count = 48 << 20
    free_bytes_min: int = Field(default=512 << 20, ge=0)
    review_after_s: Seconds = 6.0
    #: What is kept for readers that are not known: `retain_bytes`, or write rate times mean absence.
    retain: Literal["bytes", "measured"] = "bytes"
    retain_bytes: int = Field(default=256 << 20, ge=0)
    retain_bytes_min: int = Field(default=64 << 20, ge=0)
    retain_bytes_max: int = Field(default=4 << 30, ge=0)
    consumer_ttl_s: Seconds = 7 * 86400.0
    snapshot_lease_s: Seconds = 3600.0
    group_commit_ms: Milliseconds = 0.0
    limits: LimitsSettings = LimitsSettings()
    degrade: DegradeSettings = DegradeSettings()
    health: HealthSettings = HealthSettings()

    @property
    def seeds(self) -> Addresses:
        """The brokers of the directory, to ask for the nearest set; () = the addresses are configured."""
        return () if self.address or self.addresses or self.further else self.directory

    @property
    def reach(self) -> str:
        """The addresses of the broker: HOST:PORT, or several of them, separated by commas and tried in turn.

        Semicolons separate further sets.
        """
        nearest = ",".join(self.addresses) or self.address or self.listen
        return ";".join((nearest, *map(",".join, self.further)))

    @model_validator(mode="after")
    def _check_retention(self) -> BrokerSettings:
        """Refuse a minimum of measured retention above its maximum."""
        if self.retain == "measured" and self.retain_bytes_min > self.retain_bytes_max:
            raise ValueError(f"retain_bytes_min is {self.retain_bytes_min}, above retain_bytes_max")
        return self

    @model_validator(mode="after")
    def _check_sets(self) -> BrokerSettings:
        """Refuse a broker that is listed in two sets."""
        nearest = self.addresses or (self.address or self.listen,) if self.further else ()
        every = [*nearest, *(address for one in self.further for address in one)]
        if twice := next((address for address in every if every.count(address) > 1), None):
            raise ValueError(f"further names {twice}, which is in another set: a broker belongs to one")
        return self


class MatchingSettings(SettingsSection):
    """Sharing of the matching of subscriptions among many brokers."""

    #: Join the overlay of the brokers of this set that share their matching.
    overlay: bool = False
    #: Some other brokers of the overlay; one that answers suffices. The brokers of the cluster are known anyway.
    join: Addresses = ()
    #: For how many brokers the overlay is planned, the same number at all of them: it has one cluster for every four
    #: brokers.
    brokers: int = Field(default=16, ge=1, le=4096)
    #: How often neighbours are exchanged.
    exchange_s: Seconds = 1.0
    #: How long another broker keeps subscriptions that are not renewed.
    lease_s: Seconds = 10.0
    #: How long to wait for an answer of another broker.
    deadline_ms: Milliseconds = 200.0
    #: A table with at most this many different subscriptions is matched at the broker that has them.
    local_interests_max: int = Field(default=1000, ge=0)


class SecuritySettings(SettingsSection):
    """TLS, authentication and roles of the connections to brokers (venus/security, docs/how-to/tls.md)."""

    #: This process's own certificate and key (PEM). At a broker: TLS is on.
    certificate: str = ""
    key: str = ""
    #: The trusted authority (PEM). At a client: TLS is on.
    ca: str = ""
    #: How a client authenticates: by a certificate, requested in the handshake, or by a token.
    client_auth: Literal["certificate", "token"] = "certificate"
    #: At a broker: the accepted tokens, with their roles.
    token_file: str = ""
    #: At a client: its token.
    client_token: SecretStr = SecretStr("")
    client_token_file: str = ""
    #: Roles by the common name of a certificate; they replace those in the certificate itself.
    roles: dict[str, Patterns] = {}
    #: Listen beyond loopback without TLS.
    insecure: bool = False
    #: Where operators' commands are recorded; empty = a broker's in data_dir, others' in ~/.local/state/venus.
    audit_file: str = ""


class TracingSettings(SettingsSection):
    """Traces of cuts (the extra `otel`)."""

    #: An OpenTelemetry collector, http://HOST:4318 (OTLP over HTTP); empty = no traces.
    endpoint: Endpoint = ""
    #: The share of cuts that are traced; each process chooses the same ones.
    sample: float = Field(default=0.01, ge=0, le=1)


class CaptureSettings(SettingsSection):
    """Capture at the source (the upper adapter)."""

    poll_min_ms: Milliseconds = 1.0
    poll_max_ms: Milliseconds = 50.0
    batch_rows_max: Count = 5000
    batch_bytes_max: Count = 1 << 20
    window_bytes_max: Count = 32 << 20
    fill_chunk_rows: Count = 20_000
    heartbeat_s: Seconds = 5.0
    cut_timeout_s: Seconds = 60.0
    #: Limits of one cut of an Oracle source: a longer one would outlive the undo that its snapshot needs.
    cut_rows_max: Count = 1_000_000
    cut_bytes_max: Count = 1 << 30
    cut_read_s: Seconds = 300.0


class ApplySettings(SettingsSection):
    """Apply at the targets (the under adapter)."""

    #: Fewer changes of one table than this in a cut are applied by keyed statements, more through staging COPY.
    keyed_rows_max: int = Field(default=100, ge=0)
    cut_group_rows_max: Count = 20_000
    credit_bytes: Count = 16 << 20
    load_workers: Count = 2
    #: First loads of fewer rows begin after the source was read: another process would cost more than it saves.
    overlap_rows_min: Count = 200_000


class SparkSettings(SettingsSection):
    """Where `--engine spark` runs, and options of every other Spark session of VENUS."""

    #: spark://HOST:PORT, yarn, k8s://..., local[N]; empty = this machine, and `--engine auto` decides by the size.
    master: str = ""
    #: A Spark Connect server, sc://HOST:PORT; overrides `master`.
    remote: Remote = Field(default="", repr=False)
    #: The Java to run; empty = the first one found.
    java_home: str = ""
    #: The number of rows from which `--engine auto` uses Spark without master and remote.
    auto_rows_min: Count = 30_000_000
    #: `sync --engine spark`: maximum number of rows of a micro-batch, and the number from which tasks stage it.
    batch_rows_max: Count = 500_000
    stage_rows_min: Count = 20_000
    #: Settings of Spark itself; they override VENUS's own.
    conf: dict[str, SparkValue] = Field(default={}, repr=False)


class LakeSettings(SettingsSection):
    """Targets that are folders of Parquet files (parquet:///folder)."""

    commit_s: Seconds = 10.0
    commit_rows_max: Count = 1_000_000
    refresh_s: Seconds = 60.0


def options(prefix: str = "") -> dict[str, Any]:
    """Return the path of every option with its default; targets appear as `targets.NAME`."""
    sections: dict[str, type[BaseModel]] = {
        "business": BusinessSettings,
        "source": SourceSettings,
        "source.columns": ColumnsSettings,
        "targets.NAME": TargetSettings,
        "broker": BrokerSettings,
        "broker.limits": LimitsSettings,
        "broker.degrade": DegradeSettings,
        "broker.health": HealthSettings,
        "cluster": ClusterSettings,
        "matching": MatchingSettings,
        "security": SecuritySettings,
        "alarms": AlarmsSettings,
        "alarms.to.NAME": RecipientSettings,
        "alarms.rules.NAME": AlarmRuleSettings,
        "tracing": TracingSettings,
        "capture": CaptureSettings,
        "apply": ApplySettings,
        "lake": LakeSettings,
        "spark": SparkSettings,
    }
    found = {
        f"{section}.{field.alias or name}": field.get_default()
        for section, model in sections.items()
        for name, field in model.model_fields.items()
        if not any(f"{section}.{name}{rest}" in sections for rest in ("", ".NAME"))
        if section.startswith(prefix)
    }
    return found | ({"labels.NAME": ()} if "labels.NAME".startswith(prefix) else {})
