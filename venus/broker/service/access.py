"""Access control: checks the identity of a peer against venus.security.roles, counts refusals, writes the audit log.

Without TLS every client that can connect may do everything. Operators' commands are still recorded.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from google.protobuf.message import Message

from venus.errors import Denied, Unproven, VenusError
from venus.security.audit import AuditLog, Refusals
from venus.security.identity import bearer, token_in
from venus.security.roles import ANONYMOUS, PAGES, Call, PeerIdentity, admits, covers, missing_roles

if TYPE_CHECKING:
    from venus.security.certificate_files import CertificateFiles

_PEM_KEY = "x509_pem_cert"


@dataclass(frozen=True, slots=True)
class Peer:
    """The caller: its identity and its address."""

    identity: PeerIdentity
    where: str

    @property
    def name(self) -> str:
        """The name in the audit log."""
        return self.identity.name or "nobody"


class AccessControl:
    """Access checks of one broker.

    Without TLS `files` is None. `business_of` returns the business of a snapshot, "" if it knows no such snapshot.
    """

    def __init__(
        self, files: CertificateFiles | None, audit: AuditLog, refusals: Refusals, business_of: Callable[[str], str]
    ) -> None:
        self.files, self.audit, self.refusals = files, audit, refusals
        self._business_of = business_of

    def peer_of(self, context: Any) -> Peer:
        """Return the caller of a gRPC call."""
        where = str(context.peer())
        if self.files is None:
            return Peer(ANONYMOUS, where)
        self.refusals.on_call(where)
        certificate = next(iter(context.auth_context().get(_PEM_KEY, ())), None)
        token = token_in(context.invocation_metadata())
        return Peer(self.files.current().directory.identity(certificate, token), where)

    def check_call(self, peer: Peer, method: str, call: Call) -> None:
        """Raise Unproven or Denied if the peer may not make this call at all."""
        if self.files is None:
            return
        if not peer.identity:
            self._refuse(peer, method, Unproven("this broker asks for a certificate or a token that it knows"))
        if not admits(peer.identity, call):
            self._refuse(peer, method, _denied_error(peer, method, missing_roles(call)))

    def check_names(self, peer: Peer, method: str, call: Call, request: Message) -> None:
        """Raise Denied if the request names a business or group for which the caller has no role."""
        if self.files is None or not (call.business or call.snapshot):
            return
        if call.snapshot:
            business, group = self._business_of(_field_text(request, call.snapshot)), ""
            if not business:
                return  # there is no such snapshot, and the answer says so
        else:
            business, group = _field_text(request, call.business), _field_text(request, call.group)
        if not covers(peer.identity, call, business, group):
            self._refuse(peer, method, _denied_error(peer, method, missing_roles(call, business, group)))

    def page_refusal(self, where: str, path: str, certificate: bytes | None, authorization: str) -> VenusError | None:
        """Return why a client with this certificate (PEM) and Authorization header may not see a page, else None."""
        if self.files is None:
            return None
        token = bearer(authorization)
        try:
            self.check_call(Peer(self.files.current().directory.identity(certificate, token), where), path, PAGES)
        except Denied as error:
            return error
        return None

    async def run_audited(self, peer: Peer, method: str, request: Message, served: Awaitable[Any], context: Any) -> Any:
        """Await an operator's command and write its result to the audit log."""
        result, error = "failed", {}
        try:
            answer = await served
            result = "done"
        except BaseException:
            error = {"error": str(context.details() or "")}
            raise
        finally:
            said = {
                field.name: _readable_value(field, value)
                for field, value in request.ListFields()
                if field.name != "seal"
            }
            self.audit.write(who=peer.name, where=peer.where, what=method, request=said, result=result, **error)
        return answer

    def counters(self) -> dict[str, int]:
        """Return the number of refused calls, refused connections and certificate renewals since the start."""
        calls, connections = self.refusals.counts()
        renewals = self.files.renewals if self.files is not None else 0
        return {"refused_calls": calls, "refused_connections": connections, "certificate_renewals": renewals}

    def problems(self) -> list[str]:
        """Return the problems that an operator has to solve."""
        found = self.files.problems() if self.files is not None else []
        return [*found, *([f"the audit log cannot be written: {self.audit.problem}"] if self.audit.problem else [])]

    def _refuse(self, peer: Peer, method: str, error: Denied) -> None:
        if self.refusals.record_refusal(peer.identity.name, method):
            self.audit.write(who=peer.name, where=peer.where, what=method, result="refused", error=str(error))
        raise error


def _denied_error(peer: Peer, method: str, wanted: str) -> Denied:
    name = method.rpartition("/")[2] or "the status page"
    held = ", ".join(sorted(map(str, peer.identity.roles))) or "none"
    return Denied(
        f"{peer.identity.name} may not use {name}: role {wanted} is missing",
        hint=f"its roles are: {held}; roles stand in a certificate's OU, in token_file or in [security.roles]",
    )


def _field_text(message: Message, path: str) -> str:
    """Return the text at a path such as `init.business`; "" if the path is empty."""
    value: Any = message
    for name in filter(None, path.split(".")):
        value = getattr(value, name)
    return value if isinstance(value, str) else ""


def _readable_value(field: Any, value: Any) -> Any:
    """Return the value of a field in readable form."""
    if field.is_repeated:
        return list(value)
    if field.message_type is not None:
        return {inner.name: _readable_value(inner, found) for inner, found in value.ListFields()}
    names = field.enum_type.values_by_number if field.enum_type is not None else {}
    return names[value].name if value in names else value
