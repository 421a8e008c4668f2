"""Every option: a section of venus.toml is a class, an option a field of it, with its unit in its name."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field, SecretStr, model_validator

from venus.config.alarms import AlarmRule, Alarms, Recipient
from venus.config.section import Section as _Section
from venus.config.traffic import Degrade, Health, Limits
from venus.config.values import (
    Address,
    Addresses,
    Count,
    Endpoint,
    Milliseconds,
    Name,
    Pairs,
    Patterns,
    Predicates,
    Remote,
    Seconds,
    SparkValue,
)
from venus.model import NAME_CHARS_MAX, is_name

#: Replicas of one business.
BROKERS_MAX = 64


class Business(_Section):
    """One ordered queue: one source, or a group of its tables."""

    name: Name = "main"


class Columns(_Section):
    """Which columns travel, as patterns of TABLE.COLUMN or SCHEMA.TABLE.COLUMN (Oracle only)."""

    #: Overrides `exclude`; names columns that do not travel by themselves.
    include: Patterns = ()
    exclude: Patterns = ()


class Source(_Section):
    """The database whose changes are captured."""

    url: SecretStr = SecretStr("")
    #: Where the URL's password comes from, if it is not in the URL: a command's output, or a file that is ours alone.
    password_command: str = ""
    password_file: str = ""
    #: "inline" puts the paper's own columns into the application's tables (Oracle only; see docs/DEPARTURES.md 4).
    mode: Literal["log", "inline"] = "log"
    tables: Patterns = ("*",)
    exclude: Patterns = ()
    #: How single columns travel instead of their usual way: {"APP.STUDENT.ACTIVE": "boolean"} (Oracle only).
    type_map: Pairs = {}
    columns: Columns = Columns()


class Target(_Section):
    """A database that is kept equal to the source."""

    url: SecretStr
    password_command: str = ""
    password_file: str = ""
    #: Where the tables go; empty = the source's own namespaces ("main" of SQLite becomes "public").
    schema_: str = Field(default="", alias="schema")
    #: How names are written: auto = upper-case dictionaries (Oracle) in lower case, lower = all of them, keep = none.
    names: Literal["auto", "lower", "keep"] = "auto"
    on_error: Literal["halt", "quarantine"] = "halt"
    on_existing: Literal["refuse", "truncate", "append"] = "refuse"
    #: How a table is emptied: by DELETE, as readers of an older snapshot need it, or by TRUNCATE, which is instant.
    empty_by: Literal["delete", "truncate"] = "delete"
    #: Which rows of a table it gets: {"orders": "region = 'EU' and amount >= 100"}; other tables come whole.
    where: Predicates = {}


class Broker(_Section):
    """The middleware."""

    listen: Address = "127.0.0.1:7400"
    #: Where the other processes find it; empty = `listen`.
    address: Address = ""
    #: Where they find the brokers of a cluster; overrides `address`.
    addresses: Addresses = ()
    #: Metrics, health and the status page over HTTP; empty = off.
    http: Address = "127.0.0.1:7401"
    data_dir: Path = Path("data")
    buffer_bytes_max: Count = 64 << 20
    cache_bytes: Count = 48 << 20
    free_bytes_min: int = Field(default=512 << 20, ge=0)
    review_after_s: Seconds = 6.0
    retain_bytes: int = Field(default=256 << 20, ge=0)
    consumer_ttl_s: Seconds = 7 * 86400.0
    snapshot_lease_s: Seconds = 3600.0
    group_commit_ms: Milliseconds = 0.0
    limits: Limits = Limits()
    degrade: Degrade = Degrade()
    health: Health = Health()

    @property
    def reach(self) -> str:
        """Where others find the broker: HOST:PORT, or several of them with commas between, to be tried in turn."""
        return ",".join(self.addresses) or self.address or self.listen


class Cluster(_Section):
    """The brokers that replicate each other's businesses; without a name this broker is alone and needs no etcd."""

    name: str = ""
    #: Of this broker, unlike any other of the cluster.
    broker_id: str = ""
    #: Where etcd answers, HOST:PORT; tried in turn.
    etcd: Addresses = ()
    #: TLS with etcd: whose certificates are believed; empty = none. `venus certs` makes an authority.
    etcd_ca: str = ""
    #: This process's own certificate and key, if etcd asks for one (--client-cert-auth).
    etcd_certificate: str = ""
    etcd_key: str = ""
    #: A user of etcd, if it has authentication on; it needs to read and write the keys below /venus/.
    etcd_user: str = ""
    etcd_password: SecretStr = SecretStr("")
    etcd_password_file: str = ""
    site: str = ""
    #: Among brokers that could equally well lead, the one with the smallest leads.
    priority: int = Field(default=0, ge=-1000, le=1000)
    #: How many brokers have a new business.
    replicas: int = Field(default=3, ge=1, le=BROKERS_MAX)
    #: What a new business does when too few of its replicas are there: refuse writes, or go on with whoever lives.
    policy: Literal["consistency", "availability"] = "consistency"
    #: How many replicas have a change on disk before it is acknowledged; 0 = the majority of `replicas`.
    min_in_sync: int = Field(default=0, ge=0, le=BROKERS_MAX)
    #: How much of a queue is kept for a replica that is behind; one that is further behind installs the full data.
    follower_backlog_bytes: int = Field(default=1 << 30, ge=0)
    #: For how long a broker counts as alive that says nothing to etcd.
    lease_s: float = Field(default=3.0, ge=2, le=60)

    @property
    def min_in_sync_effective(self) -> int:
        """How many replicas are needed, as a number."""
        return self.min_in_sync or self.replicas // 2 + 1

    @model_validator(mode="after")
    def _complete(self) -> Cluster:
        """Whoever sets anything wants a cluster, which needs a name, a broker's id and etcd."""
        if all(getattr(self, name) == field.default for name, field in type(self).model_fields.items()):
            return self
        for option, text in (("name", self.name), ("broker_id", self.broker_id)):
            if not is_name(text):
                raise ValueError(f"{option} must be set: 1 to {NAME_CHARS_MAX} printable characters, no space outside")
        if not self.etcd:
            raise ValueError('etcd must be set: a list of addresses, like ["10.0.0.1:2379", "10.0.0.2:2379"]')
        if bool(self.etcd_certificate) != bool(self.etcd_key):
            raise ValueError("etcd_certificate and etcd_key belong together: set both or none")
        if self.etcd_user and not self.etcd_password.get_secret_value() and not self.etcd_password_file:
            raise ValueError("etcd_user needs etcd_password or etcd_password_file")
        if (self.etcd_user or self.etcd_certificate) and not self.etcd_ca:
            raise ValueError("etcd_ca must be set: without TLS a password would cross the network readable")
        if self.min_in_sync > self.replicas:
            raise ValueError(f"min_in_sync is {self.min_in_sync}, and there are {self.replicas} replicas")
        return self


class Security(_Section):
    """Who may speak with a broker, and how each side proves who it is (venus/security, docs/SECURITY.md)."""

    #: This process's own certificate and key (PEM). At a broker: TLS is on.
    certificate: str = ""
    key: str = ""
    #: Whose certificates are believed (PEM). At a client: TLS is on.
    ca: str = ""
    #: What a client proves itself with: a certificate, asked for in the handshake, or a token.
    client_auth: Literal["certificate", "token"] = "certificate"
    #: At a broker: the tokens that it takes, with their roles.
    token_file: str = ""
    #: At a client: the token that it shows.
    client_token: SecretStr = SecretStr("")
    client_token_file: str = ""
    #: Roles by the common name of a certificate; they replace those in the certificate itself.
    roles: dict[str, Patterns] = {}
    #: Listen beyond loopback without TLS.
    insecure: bool = False
    #: Where operators' commands are recorded; empty = in data_dir, of other processes in ~/.local/state/venus.
    audit_file: str = ""


class Tracing(_Section):
    """Traces of cuts (the extra `otel`)."""

    #: An OpenTelemetry collector, http://HOST:4318 (OTLP over HTTP); empty = no traces.
    endpoint: Endpoint = ""
    #: Which share of the cuts is traced; each process chooses the same ones.
    sample: float = Field(default=0.01, ge=0, le=1)


class Capture(_Section):
    """The upper adapter."""

    poll_min_ms: Milliseconds = 1.0
    poll_max_ms: Milliseconds = 50.0
    batch_rows_max: Count = 5000
    batch_bytes_max: Count = 1 << 20
    window_bytes_max: Count = 32 << 20
    fill_chunk_rows: Count = 20_000
    heartbeat_s: Seconds = 5.0
    cut_timeout_s: Seconds = 60.0
    #: What one cut of an Oracle source takes at most: a longer one outlives the undo that its snapshot is read from.
    cut_rows_max: Count = 1_000_000
    cut_bytes_max: Count = 1 << 30
    cut_read_s: Seconds = 300.0


class Apply(_Section):
    """The under adapter."""

    #: Fewer changes of one table than this in a cut are applied by keyed statements, more through staging COPY.
    keyed_rows_max: int = Field(default=100, ge=0)
    cut_group_rows_max: Count = 20_000
    credit_bytes: Count = 16 << 20
    load_workers: Count = 2


class Spark(_Section):
    """Where `--engine spark` runs, and the sessions of everything else that uses Spark."""

    #: spark://HOST:PORT, yarn, k8s://..., local[N]; empty = this machine, and `--engine auto` decides by the size.
    master: str = ""
    #: A Spark Connect server, sc://HOST:PORT; overrides `master`.
    remote: Remote = Field(default="", repr=False)
    #: The Java to run; empty = the first that is found.
    java_home: str = ""
    #: From how many rows on `--engine auto` takes Spark where neither master nor remote is set.
    auto_rows_min: Count = 30_000_000
    #: `sync --engine spark`: rows of one micro-batch at most, and from how many rows on it is staged by tasks.
    batch_rows_max: Count = 500_000
    stage_rows_min: Count = 20_000
    #: Settings of Spark itself; they override VENUS's own.
    conf: dict[str, SparkValue] = Field(default={}, repr=False)


class Lake(_Section):
    """Targets that are folders of Parquet files (parquet:///folder)."""

    commit_s: Seconds = 10.0
    commit_rows_max: Count = 1_000_000
    refresh_s: Seconds = 60.0


def options(prefix: str = "") -> dict[str, Any]:
    """Return every option's path with its default; targets appear as `targets.NAME`."""
    sections: dict[str, type[BaseModel]] = {
        "business": Business,
        "source": Source,
        "source.columns": Columns,
        "targets.NAME": Target,
        "broker": Broker,
        "broker.limits": Limits,
        "broker.degrade": Degrade,
        "broker.health": Health,
        "cluster": Cluster,
        "security": Security,
        "alarms": Alarms,
        "alarms.to.NAME": Recipient,
        "alarms.rules.NAME": AlarmRule,
        "tracing": Tracing,
        "capture": Capture,
        "apply": Apply,
        "lake": Lake,
        "spark": Spark,
    }
    return {
        f"{section}.{field.alias or name}": field.get_default()
        for section, model in sections.items()
        for name, field in model.model_fields.items()
        if not any(f"{section}.{name}{rest}" in sections for rest in ("", ".NAME"))
        if section.startswith(prefix)
    }
