"""The options of `[cluster]`: which brokers replicate each other, and where their set stands in the network."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, SecretStr, model_validator

from venus.config.values import Addresses, ColumnRules, Name, Names, Predicates, SettingsSection
from venus.model import NAME_CHARS_MAX, is_name

#: Maximum number of replicas of one business.
BROKERS_MAX = 64
#: Maximum number of levels of tandem sets between the core and the access sets.
LEVELS_MAX = 100
#: The options that need neither a name nor etcd.
_NETWORK = frozenset(
    {"tier", "level", "set", "site", "upstream", "labels", "where", "columns", "masking_key_file", "near"}
)


def _check_one_predicate(where: dict[str, str]) -> dict[str, str]:
    """Refuse two predicates for one table: ORDERS is orders, and may also mean APP.ORDERS. Raises ValueError."""
    known: dict[str, str] = {}
    for name in sorted(where, key=lambda name: "." in name):
        lower = name.lower()
        for key in (lower, lower.partition(".")[2]):
            if key and key in known:
                raise ValueError(f"has two predicates for one table: {known[key]} and {name}")
        known[lower] = name
    return where


def _refuse_renaming(columns: dict[str, Any]) -> dict[str, Any]:
    """Refuse new names for columns in a broker set: only targets rename columns. Raises ValueError."""
    for name, value in columns.items():
        if isinstance(value, dict) and "rename" in value:
            raise ValueError(f"has rename for {name}: a border masks and drops, and targets rename")
    return columns


class ClusterSettings(SettingsSection):
    """Cluster of brokers that replicate each other's businesses, and its place in a network of broker sets.

    Without a name this broker is alone and needs no etcd. A network of broker sets needs no etcd either: a set is one
    broker, or the cluster.
    """

    name: str = ""
    #: The id of this broker, unique in the cluster.
    broker_id: str = ""
    #: Addresses of etcd, HOST:PORT; tried in turn.
    etcd: Addresses = ()
    #: TLS with etcd: the trusted authority (PEM); empty = no TLS. `venus certs` makes an authority.
    etcd_ca: str = ""
    #: This process's own certificate and key, if etcd asks for one (--client-cert-auth).
    etcd_certificate: str = ""
    etcd_key: str = ""
    #: A user of etcd, if authentication is on; it needs to read and write the keys below /venus/.
    etcd_user: str = ""
    etcd_password: SecretStr = SecretStr("")
    etcd_password_file: str = ""
    site: str = ""
    #: The tier of its broker set: core sets have every business, tandem sets relay, access sets serve targets.
    tier: Literal["core", "tandem", "access"] = "core"
    #: The number of hops to the core: 0 = core.
    level: int = Field(default=0, ge=0, le=LEVELS_MAX)
    #: The name of the set, unique in the network; empty = the site, or the cluster's name.
    set: str = ""
    #: Brokers of the sets above, HOST:PORT, nearest first, which this set mirrors. Empty = the home.
    upstream: Addresses = ()
    #: Which labels of `[labels]` are mirrored; empty = everything.
    labels: Names = ()
    #: Which rows of a table are mirrored: {"shop": {"orders": "region = 'EU'"}}, by business; other tables are
    #: complete.
    where: dict[Name, Annotated[Predicates, AfterValidator(_check_one_predicate)]] = {}
    #: What happens to a column that sets below get: {"shop": {"orders.email": "hmac"}}, by business
    #: (venus/masking/border.py).
    columns: dict[Name, Annotated[ColumnRules, AfterValidator(_refuse_renaming)]] = {}
    #: The key of the hmac rules in `columns`, in a file that only its owner may read.
    masking_key_file: str = ""
    #: Sets by the site of a client, nearest first: {"lyon": ["paris", "nice"]}; otherwise those of the same site.
    near: dict[Name, Names] = {}
    #: Among equally eligible brokers the one with the smallest value leads.
    priority: int = Field(default=0, ge=-1000, le=1000)
    #: The number of replicas of a new business.
    replicas: int = Field(default=3, ge=1, le=BROKERS_MAX)
    #: What a new business does without enough live replicas: refuse writes, or continue with those that are alive.
    policy: Literal["consistency", "availability"] = "consistency"
    #: How many replicas must have a change on disk before it is acknowledged; 0 = the majority of `replicas`.
    min_in_sync: int = Field(default=0, ge=0, le=BROKERS_MAX)
    #: Whether a broker that leads far too much hands over by itself, and replicas move to one that has hardly any.
    rebalance: bool = True
    #: How much of a queue is kept for a replica that is behind; one that is further behind installs the full data.
    follower_backlog_bytes: int = Field(default=1 << 30, ge=0)
    #: How long a broker counts as alive after its last message to etcd.
    lease_s: float = Field(default=3.0, ge=2, le=60)
    #: How long a live follower may make no progress before it leaves the in-sync set, or a leader before it hands over.
    silence_s: float = Field(default=5.0, ge=2, le=60)

    @property
    def set_name(self) -> str:
        """The name of the set; "core" by default."""
        return self.set or self.site or self.name or "core"

    @property
    def is_mirror(self) -> bool:
        """Whether this set mirrors a set above. A set that mirrors none is the home, and accepts writes."""
        return bool(self.upstream)

    @property
    def min_in_sync_effective(self) -> int:
        """How many replicas must be in sync for a write; by default more than half of all."""
        return self.min_in_sync or self.replicas // 2 + 1

    @model_validator(mode="after")
    def _check_complete(self) -> ClusterSettings:
        """Refuse an incomplete cluster: any option beyond its place in the network needs name, broker_id and etcd."""
        self._check_place()
        fields = type(self).model_fields.items()
        if all(getattr(self, name) == field.default for name, field in fields if name not in _NETWORK):
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
            raise ValueError("etcd_ca must be set: without TLS the password would cross the network in clear text")
        if self.min_in_sync > self.replicas:
            raise ValueError(f"min_in_sync is {self.min_in_sync}, and there are {self.replicas} replicas")
        return self

    def _check_place(self) -> None:
        """Refuse an impossible place in the network. Raises ValueError."""
        if self.site and not is_name(self.site):
            raise ValueError(f"site must have 1 to {NAME_CHARS_MAX} printable characters, no space outside")
        if not is_name(self.set_name):
            raise ValueError(f"set must have 1 to {NAME_CHARS_MAX} printable characters, no space outside")
        if self.tier == "core":
            if self.level:
                raise ValueError(f"level is {self.level}, and core sets are at level 0: set tier too")
            if self.labels or self.where:
                what = "labels are" if self.labels else "where is"
                raise ValueError(f"{what} for tandem and access sets: a core set has every row of every business")
            return
        if not self.level:
            raise ValueError(f"level must be set for tier {self.tier}: 1 is directly below the core")
        if not self.upstream:
            raise ValueError(
                f'upstream must be set for tier {self.tier}: brokers of level {self.level - 1}, ["HOST:PORT"]'
            )
        if not (self.set or self.site or self.name):
            raise ValueError(f"set must be set for tier {self.tier}: a name, unlike any other of the network")
