"""The settings of every VENUS process, and the one place where they are read.

`load` takes a TOML file, then lets the environment override it: `VENUS_BROKER__DATA_DIR` sets `broker.data_dir`,
`VENUS_TARGETS__MAIN__URL` a target's address. An option that no field declares is an error, in the file and in the
environment, so that a misspelt one cannot be silently ignored. Every message is one line that names the place.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    model_validator,
)
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from venus.errors import ConfigError
from venus.masking import masked
from venus.model import NAME_CHARS_MAX, is_address, is_name
from venus.toml_lines import line_of

PREFIX = "VENUS_"
#: Names of the environment that are no options: the test suite's own.
RESERVED = ("VENUS_TEST_",)
DEFAULT_FILE = Path("venus.toml")

#: What pydantic complains of, in words that do not need Python.
_WANTED = {
    "tuple_type": 'should be a list of strings, like ["a", "b"]',
    "string_type": "should be a string, in quotes",
    "string_too_short": "should not be empty",
    "path_type": "should be a path, in quotes",
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "should be an integer"),
    **dict.fromkeys(("float_type", "float_parsing"), "should be a number"),
}

#: Names of Spark settings whose values nobody shall see.
_SECRET = re.compile(r"passw|secret|token|credential|access.?key|account.?key", re.IGNORECASE)


def _name(value: str) -> str:
    if not is_name(value):
        raise ValueError(f"must have 1 to {NAME_CHARS_MAX} printable characters, no space outside")
    return value


def _listed(value: object) -> object:
    """Let the environment say `a, b` where the file says ["a", "b"]."""
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


def _address(value: object) -> object:
    if isinstance(value, str) and value and not is_address(value):
        raise ValueError("should be HOST:PORT")
    return value


def _addresses(values: tuple[str, ...]) -> tuple[str, ...]:
    if twice := next((address for address in values if values.count(address) > 1), None):
        raise ValueError(f"names {twice} twice")
    if "" in values:
        raise ValueError("has an empty address")
    return values


def _remote(value: object) -> object:
    if isinstance(value, str) and value and not value.startswith("sc://"):
        raise ValueError("should be sc://HOST:PORT")
    return value


def _spark_value(value: object) -> object:
    """Let the file say true and 4 where Spark takes text."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


def _paired(value: object) -> object:
    """Let the environment say `A.B=text, C.D=date`."""
    if not isinstance(value, str):
        return value
    return dict(part.strip().partition("=")[::2] for part in value.split(",") if part.strip())


Pairs = Annotated[dict[str, str], BeforeValidator(_paired)]
Patterns = Annotated[tuple[str, ...], BeforeValidator(_listed)]
Address = Annotated[str, BeforeValidator(_address)]
Addresses = Annotated[tuple[Address, ...], BeforeValidator(_listed), AfterValidator(_addresses)]
#: Replicas of one business.
BROKERS_MAX = 64
Count = Annotated[int, Field(gt=0)]
Seconds = Annotated[float, Field(gt=0)]
Milliseconds = Annotated[float, Field(ge=0)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class Business(_Section):
    """One ordered queue: one source, or a group of its tables."""

    name: Annotated[str, AfterValidator(_name)] = "main"


class Columns(_Section):
    """Which columns travel, as patterns of TABLE.COLUMN or SCHEMA.TABLE.COLUMN (Oracle only)."""

    #: Goes before `exclude`; names columns that do not travel by themselves.
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


class Broker(_Section):
    """The middleware."""

    listen: Address = "127.0.0.1:7400"
    #: Where the other processes find it; empty = `listen`.
    address: Address = ""
    #: Where they find the brokers of a cluster; goes before `address`.
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
    #: A Spark Connect server, sc://HOST:PORT; goes before `master`.
    remote: Annotated[str, BeforeValidator(_remote)] = Field(default="", repr=False)
    #: The Java to run; empty = the first that is found.
    java_home: str = ""
    #: From how many rows on `--engine auto` takes Spark where neither master nor remote is set.
    auto_rows_min: Count = 30_000_000
    #: `sync --engine spark`: rows of one micro-batch at most, and from how many rows on it is staged by tasks.
    batch_rows_max: Count = 500_000
    stage_rows_min: Count = 20_000
    #: Settings of Spark itself; they go before VENUS's own.
    conf: dict[str, Annotated[str, BeforeValidator(_spark_value)]] = Field(default={}, repr=False)


class Lake(_Section):
    """Targets that are folders of Parquet files (parquet:///folder)."""

    commit_s: Seconds = 10.0
    commit_rows_max: Count = 1_000_000
    refresh_s: Seconds = 60.0


class Settings(BaseSettings):
    """All of it."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_nested_delimiter="__", extra="forbid", frozen=True, enable_decoding=False
    )

    business: Business = Business()
    source: Source = Source()
    targets: dict[str, Target] = {}
    broker: Broker = Broker()
    cluster: Cluster = Cluster()
    security: Security = Security()
    capture: Capture = Capture()
    apply: Apply = Apply()
    lake: Lake = Lake()
    spark: Spark = Spark()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Put the environment above what was read from the file."""
        return env_settings, init_settings

    @model_validator(mode="before")
    @classmethod
    def _fold_target_names(cls, tree: Any) -> Any:
        """Let VENUS_TARGETS__MAIN__URL reach `[targets.Main]`: the environment knows no case and no hyphens."""
        targets = tree.get("targets") if isinstance(tree, dict) else None
        if not isinstance(targets, dict):
            return tree
        spelt = {_env_name(name): name for name in targets if name != _env_name(name)}
        folded = {name: found for name, found in targets.items() if name not in spelt}
        for alias, name in spelt.items():
            if isinstance(overrides := targets.get(alias), dict) and isinstance(folded[name], dict):
                folded[name] |= overrides
        return tree | {"targets": folded}


def load(file: Path | None = None) -> Settings:
    """Read `file` (None = no file, defaults only), let the environment override it, check every name and type."""
    text = _read(file)
    tree = _parse(file, text)
    _check_environment(os.environ)
    try:
        return Settings(**tree)
    except ValidationError as error:
        raise _explained(error, file, text) from None


def require_source(settings: Settings) -> str:
    """Return the source's URL, or say that there is none."""
    if url := settings.source.url.get_secret_value():
        return url
    raise ConfigError("no source: [source] url is not set", hint="set it in venus.toml or VENUS_SOURCE__URL")


def require_target(settings: Settings, name: str) -> Target:
    """Return the target of that name, or name the ones there are."""
    if target := settings.targets.get(name):
        return target
    if not settings.targets:
        raise ConfigError(f"no target named {name!r}: there is no [targets.NAME] section", hint=f"add [targets.{name}]")
    raise ConfigError(f"no target named {name!r}{_nearest(name, settings.targets)}", hint=_known(settings.targets))


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


def options(prefix: str = "") -> dict[str, Any]:
    """Return every option's path with its default; targets appear as `targets.NAME`."""
    sections: dict[str, type[BaseModel]] = {
        "business": Business,
        "source": Source,
        "source.columns": Columns,
        "targets.NAME": Target,
        "broker": Broker,
        "cluster": Cluster,
        "security": Security,
        "capture": Capture,
        "apply": Apply,
        "lake": Lake,
        "spark": Spark,
    }
    return {
        f"{section}.{field.alias or name}": field.get_default()
        for section, model in sections.items()
        for name, field in model.model_fields.items()
        if f"{section}.{name}" not in sections
        if section.startswith(prefix)
    }


def _read(file: Path | None) -> str:
    if file is None:
        return ""
    try:
        return file.read_text(encoding="utf-8")
    except FileNotFoundError:
        hint = "copy venus.example.toml, or name another file with -c FILE"
        raise ConfigError(f"{file}: no such file", hint=hint) from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: byte {error.start} is not UTF-8, which TOML must be") from None
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}") from None


def _parse(file: Path | None, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = re.fullmatch(r"(.*) \(at (?:line (\d+), column (\d+)|end of document)\)", str(error), re.DOTALL)
        what, line = (found[1], found[2]) if found else (str(error), None)
        raise ConfigError(f"{file}:{line or len(text.splitlines())}: not TOML: {what}") from None


def _check_environment(environ: Mapping[str, str]) -> None:
    known = {path.upper().replace(".", "__") for path in options()}
    target_options = [name.rpartition("__")[2] for name in known if name.startswith("TARGETS__")]
    for variable in sorted(environ):
        name = variable.upper().removeprefix(PREFIX)
        if not variable.upper().startswith(PREFIX) or variable.upper().startswith(RESERVED) or name in known:
            continue
        if re.fullmatch(rf"TARGETS__.+__({'|'.join(target_options)})", name):
            continue
        hint = "an option is named VENUS_SECTION__OPTION; `venus config` lists them"
        near = _nearest(name, known, shown=lambda n: PREFIX + n)
        raise ConfigError(f"environment: {variable} matches no option{near}", hint=hint)


def _explained(error: ValidationError, file: Path | None, text: str) -> ConfigError:
    first, *others = error.errors(include_url=False)
    path = [str(part) for part in first["loc"]]
    dotted = ".".join(path)
    variable = PREFIX + "__".join(_env_name(part).upper() for part in path)
    if variable in {name.upper() for name in os.environ}:
        where = f"environment: {variable}"
    else:
        line = line_of(text, path)
        where = f"{file}:{line}: {dotted}" if line else f"{file}: {dotted}"
    more = f" (and {len(others)} more)" if others else ""
    return ConfigError(f"{where}: {_complaint(dict(first), path)}{more}")


def _complaint(found: Mapping[str, Any], path: list[str]) -> str:
    """Say what is wrong with one option. The value is repeated only where it cannot be a secret."""
    kind, value = found["type"], found["input"]
    if kind == "extra_forbidden":
        known = options()
        if len(path) == 1:
            return "no such section" + _nearest(path[0], {name.partition(".")[0] for name in known})
        section = "targets.NAME" if path[0] == "targets" else path[0]
        return "no such option" + _nearest(path[-1], [n.rpartition(".")[2] for n in known if n.startswith(section)])
    if kind == "missing":
        return "must be set"
    if kind in ("model_type", "dict_type", "model_attributes_type"):
        if path[0] == "targets" and len(path) == 2:
            return "a target has a name: its options go into a section [targets.NAME]"
        return f"is a section, not a value: write [{'.'.join(path)}]"
    reason = _WANTED.get(kind) or found["msg"].removeprefix("Value error, ").removeprefix("Input ")
    return reason if path[-1] == "url" else f"{value!r} {reason}" if isinstance(value, str | int | float) else reason


def _env_name(name: str) -> str:
    return name.lower().replace("-", "_")


def _nearest(name: str, known: Iterable[str], shown: Any = str) -> str:
    match = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f" (did you mean {shown(match[0])}?)" if match else ""


def _known(names: Iterable[str]) -> str:
    return "known: " + ", ".join(sorted(names))
