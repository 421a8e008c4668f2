"""Roles, and the roles that each call of the broker requires. Pure.

A role is written the same way in a certificate's subject (one OU each), in a token file and in [security.roles]:
`producer(BUSINESS)`, `consumer(GROUP, BUSINESS)`, `reader(BUSINESS)`, `broker`, `operator`, `viewer`. `*` stands for
every name. A group of the role is either the group's own name or the part after `BUSINESS/`, so a target is named as
the configuration names it: `consumer(eu, main)` is the group `main/eu`.

`CALLS` lists what each role may do; a call that is not listed is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from venus.errors import ConfigError
from venus.text.formatting import suggest_nearest

ANY = "*"
PRODUCER, CONSUMER, READER = "producer", "consumer", "reader"
BROKER, OPERATOR, VIEWER = "broker", "operator", "viewer"
#: Parameters between the parentheses, by the kind of role.
PARAMETERS: Mapping[str, tuple[str, ...]] = {
    PRODUCER: ("BUSINESS",),
    CONSUMER: ("GROUP", "BUSINESS"),
    READER: ("BUSINESS",),
    BROKER: (),
    OPERATOR: (),
    VIEWER: (),
}
_ROLE = re.compile(r"\s*(\w+)\s*(?:\(([^()]*)\))?\s*")
FORMS = "producer(BUSINESS), consumer(GROUP, BUSINESS), reader(BUSINESS), broker, operator, viewer"


@dataclass(frozen=True, slots=True)
class Role:
    """Role of a peer. `business` and `group` are empty if this kind of role does not have them."""

    kind: str
    business: str = ""
    group: str = ""

    def __str__(self) -> str:
        names = [name for name in (self.group, self.business) if name]
        return f"{self.kind}({', '.join(names)})" if names else self.kind


@dataclass(frozen=True, slots=True)
class PeerIdentity:
    """Authenticated identity of a peer."""

    name: str = ""
    roles: frozenset[Role] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.name)


ANONYMOUS = PeerIdentity()


@dataclass(frozen=True, slots=True)
class Call:
    """Requirement of one method: a role of one of these kinds, for the business and group of the request."""

    kinds: frozenset[str] = frozenset()
    #: Every identity may call it.
    is_public: bool = False
    #: It changes something in an operator's name: each call is written to the audit log.
    audited: bool = False
    #: The fields of the request, or of a stream's first frame, that name business, group and snapshot.
    business: str = ""
    group: str = ""
    snapshot: str = ""


_READ_ANY = frozenset({VIEWER, OPERATOR})
_LOADER = frozenset({CONSUMER})
#: Subscriptions by content, over gRPC and HTTP. A reader has no group, because a group's position keeps the queue.
LISTEN = Call(frozenset({READER, CONSUMER}), business="open.business", group="open.group")

#: Every method of every service. A new service only needs an entry for each of its methods here.
CALLS: Mapping[str, Call] = {
    "/venus.wire.Ingest/Produce": Call(frozenset({PRODUCER}), business="init.business"),
    "/venus.wire.Delivery/Subscribe": Call(_LOADER, business="open.business", group="open.group"),
    "/venus.wire.Delivery/OpenSnapshot": Call(_LOADER, business="business"),
    "/venus.wire.Delivery/ReadSplit": Call(_LOADER, snapshot="snapshot_id"),
    "/venus.wire.Delivery/SumSnapshot": Call(_LOADER, snapshot="snapshot_id"),
    "/venus.wire.Delivery/RenewSnapshot": Call(_LOADER, snapshot="snapshot_id"),
    "/venus.wire.Delivery/CloseSnapshot": Call(_LOADER, snapshot="snapshot_id"),
    "/venus.wire.Delivery/Listen": LISTEN,
    "/venus.wire.Admin/Status": Call(_READ_ANY | {PRODUCER, CONSUMER, READER}, business="business"),
    "/venus.wire.Admin/Decide": Call(frozenset({OPERATOR}), audited=True),
    "/venus.wire.Admin/Forget": Call(frozenset({OPERATOR}), audited=True),
    "/venus.wire.Admin/ForgetBusiness": Call(frozenset({OPERATOR}), audited=True),
    "/venus.wire.Admin/CloseLosses": Call(frozenset({OPERATOR}), audited=True),
    "/venus.wire.Admin/Promote": Call(frozenset({OPERATOR}), audited=True),
    "/venus.wire.Admin/StepDown": Call(frozenset({BROKER, OPERATOR}), audited=True),
    "/venus.wire.Network/Where": Call(_READ_ANY | {PRODUCER, CONSUMER, READER}, business="business"),
    "/venus.wire.Network/Report": Call(frozenset({CONSUMER}), group="group"),
    "/venus.wire.Network/Share": Call(frozenset({BROKER})),
    "/venus.wire.Replica/Follow": Call(frozenset({BROKER})),
    "/venus.wire.Replica/Ballot": Call(frozenset({BROKER})),
    "/venus.wire.Replica/Copy": Call(frozenset({BROKER})),
    "/venus.wire.Overlay/Exchange": Call(frozenset({BROKER})),
    "/venus.wire.Overlay/Route": Call(frozenset({BROKER})),
    "/venus.wire.Overlay/Install": Call(frozenset({BROKER})),
    "/venus.wire.Overlay/Match": Call(frozenset({BROKER})),
    "/grpc.health.v1.Health/Check": Call(is_public=True),
    "/grpc.health.v1.Health/Watch": Call(is_public=True),
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": Call(_READ_ANY),
}
#: The roles that the status page and its API require.
PAGES = Call(_READ_ANY)


def parse(text: str) -> Role:
    """Parse a role. Raises ConfigError for one that does not exist."""
    found = _ROLE.fullmatch(text)
    kind = found[1] if found else text.strip().partition("(")[0]
    if found is None or kind not in PARAMETERS:
        raise ConfigError(
            f"role {text!r} does not exist{suggest_nearest(kind, PARAMETERS)}",
            hint=f"roles are {FORMS}; * stands for every name",
        )
    wanted = PARAMETERS[kind]
    given = [part.strip() for part in (found[2] or "").split(",")] if found[2] is not None else []
    if len(given) != len(wanted) or not all(given):
        form = f"{kind}({', '.join(wanted)})" if wanted else kind
        raise ConfigError(f"role {text!r} does not exist: it is written {form}", hint="* stands for every name")
    names = dict(zip(wanted, given, strict=True))
    return Role(kind, business=names.get("BUSINESS", ""), group=names.get("GROUP", ""))


def looks_like_role(text: str) -> bool:
    """Return whether a certificate's OU is meant as a role, rather than as a department."""
    found = _ROLE.fullmatch(text)
    return found is not None and found[1] in PARAMETERS


def roles_of(texts: Iterable[str]) -> frozenset[Role]:
    """Parse several roles. Raises ConfigError for one that does not exist."""
    return frozenset(map(parse, texts))


def admits(identity: PeerIdentity, call: Call) -> bool:
    """Return whether an identity has a role of a kind that may make this call at all."""
    return bool(identity) and (call.is_public or any(role.kind in call.kinds for role in identity.roles))


def covers(identity: PeerIdentity, call: Call, business: str, group: str = "") -> bool:
    """Return whether one role of the identity covers the request's business and group. No business means all."""
    return call.is_public or any(
        role.kind in call.kinds and _matches(role, call, business, group) for role in identity.roles
    )


def missing_roles(call: Call, business: str = "", group: str = "") -> str:
    """Return the roles that would suffice, as text; without a business, the roles without parameters."""
    unlimited = {kind for kind in call.kinds if not PARAMETERS[kind]}
    texts = []
    for kind in sorted((not business and unlimited) or call.kinds):
        names = {"BUSINESS": business, "GROUP": group.removeprefix(f"{business}/") or (business and ANY)}
        given = [names[parameter] or parameter for parameter in PARAMETERS[kind]]
        texts.append(f"{kind}({', '.join(given)})" if given else kind)
    return " or ".join(texts) or "none that exists"


def _matches(role: Role, call: Call, business: str, group: str) -> bool:
    """Return whether a role is for the business and the group of a request."""
    if not PARAMETERS[role.kind]:
        return True
    if role.business != ANY and role.business != business:
        return False
    if role.kind == READER:
        return not group
    return not call.group or role.kind != CONSUMER or role.group in (ANY, group, group.removeprefix(f"{business}/"))
