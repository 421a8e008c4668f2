"""Client of etcd's gRPC API: read, swap of one key, leases, a watch. The only file with etcd's protocol.

A call goes to the address that answered last, then to the others in turn, until its time limit. So an attempt may have
been carried out although its answer was lost. `repeated` warns of that: the result of a swap is then uncertain.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import grpc
from google.protobuf.message import Message

from venus.coordination.login import NO_LOGIN, Login
from venus.errors import ConfigError, Refused, Unavailable, VenusError
from venus.rpc.errors import reason
from venus.wire import etcd_pb2

logger = logging.getLogger(__name__)

M = TypeVar("M", bound=Message)

CALL_TIMEOUT_S = 2.0
#: Delay between two rounds through the addresses: an election of etcd takes about a second.
ROUND_PAUSE_S = 0.05
WATCH_PAUSE_S = 0.5
PAGE_KEYS = 256
ANSWER_BYTES_MAX = 64 << 20
ATTEMPT_S_MIN = 0.2
AUTHENTICATE = "Auth/Authenticate"

#: With this metadata, an etcd member without a majority fails at once instead of waiting.
_METADATA = (("hasleader", "true"),)
_OPTIONS = [
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", ANSWER_BYTES_MAX),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 2_000),  # also the time limit of a connection
    ("grpc.max_reconnect_backoff_ms", 1_000),
]
_REFUSED = {
    grpc.StatusCode.UNAUTHENTICATED: "etcd requires a user",
    grpc.StatusCode.PERMISSION_DENIED: "etcd refuses access",
    grpc.StatusCode.INVALID_ARGUMENT: "etcd refuses the request",
    grpc.StatusCode.FAILED_PRECONDITION: "etcd refuses the request",
}
#: Errors of etcd for a signed token (JWT) older than the last change of its users or roles.
_OLD_TOKEN = ("revision in header is old", "revision of auth store is old")
#: Status codes that etcd never returns, but other programs do.
_FOREIGN = (grpc.StatusCode.UNIMPLEMENTED,)


class EtcdKey(NamedTuple):
    """A key as etcd stores it."""

    key: str
    value: bytes
    revision: int  # of its last change; compared by `swap`
    lease: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EtcdSwapResult:
    """Result of a compare-and-swap of one key."""

    done: bool
    revision: int  # of the key if `done`
    current: EtcdKey | None  # the stored value if not `done`
    repeated: bool  # an earlier attempt may have been carried out


class LeaseExpired(Refused):
    """The lease has ended or was never granted."""


class EtcdClient:
    """Blocking calls, from any thread; after its time limit each raises Unavailable with the failed attempts."""

    def __init__(self, addresses: Seq[str], *, timeout_s: float = CALL_TIMEOUT_S, login: Login = NO_LOGIN) -> None:
        if not addresses:
            raise ConfigError("no address of etcd", hint='set [cluster] etcd = ["HOST:PORT", ...]')
        self._addresses = tuple(addresses)
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._login, self._token = login, ""
        self._files: tuple[int, ...] | None = None  # modification times when they were loaded
        self._credentials: grpc.ChannelCredentials | None = None
        self._complaint = ""
        self._channels: dict[str, grpc.Channel] = {}
        self._newest = 0  # the address that answered last
        self._cluster_id = 0
        self._closed = threading.Event()
        self._watchers: list[threading.Thread] = []
        self._watching: list[Any] = []

    def read(self, key: str) -> EtcdKey | None:
        """Read one key."""
        answer, _ = self._ask("KV/Range", etcd_pb2.RangeRequest(key=key.encode()), etcd_pb2.RangeResponse)
        return _to_etcd_key(answer.kvs[0]) if answer.kvs else None

    def list(self, prefix: str) -> list[EtcdKey]:
        """Read every key below a prefix that ends with "/", in order; the pages are not one consistent snapshot."""
        start, end = prefix.encode(), prefix[:-1].encode() + b"0"  # "0" follows "/"
        found: list[EtcdKey] = []
        while True:
            request = etcd_pb2.RangeRequest(key=start, range_end=end, limit=PAGE_KEYS)
            answer, _ = self._ask("KV/Range", request, etcd_pb2.RangeResponse)
            found += map(_to_etcd_key, answer.kvs)
            if not answer.more:
                return found
            start = answer.kvs[-1].key + b"\0"

    def swap(
        self,
        key: str,
        revision: int,
        value: bytes | None,
        *,
        lease: int = 0,
        also: tuple[str, int] | None = None,
        held: tuple[str, int] | None = None,
    ) -> EtcdSwapResult:
        """Write `value` (None = remove) if the key is at `revision` (0 = absent). Raises LeaseExpired.

        `also`: another key that must be at a revision; `held`: one that must be under a lease. After Unavailable the
        swap may have been carried out.
        """
        name = key.encode()
        write = (
            etcd_pb2.RequestOp(request_delete_range=etcd_pb2.DeleteRangeRequest(key=name))
            if value is None
            else etcd_pb2.RequestOp(request_put=etcd_pb2.PutRequest(key=name, value=value, lease=lease))
        )
        request = etcd_pb2.TxnRequest(
            compare=[
                etcd_pb2.Compare(target=etcd_pb2.Compare.MOD, key=each.encode(), mod_revision=wanted)
                for each, wanted in ((key, revision), *([] if also is None else [also]))
            ]
            + [
                etcd_pb2.Compare(target=etcd_pb2.Compare.LEASE, key=each.encode(), lease=wanted)
                for each, wanted in ([] if held is None else [held])
            ],
            success=[write],
            failure=[etcd_pb2.RequestOp(request_range=etcd_pb2.RangeRequest(key=name))],
        )
        answer, repeated = self._ask("KV/Txn", request, etcd_pb2.TxnResponse)
        found = answer.responses[0].response_range.kvs if answer.responses and not answer.succeeded else []
        return EtcdSwapResult(
            done=answer.succeeded,
            revision=answer.header.revision,
            current=_to_etcd_key(found[0]) if found else None,
            repeated=repeated,
        )

    def grant(self, ttl_s: int) -> int:
        """Grant a lease and return its id."""
        answer, _ = self._ask("Lease/LeaseGrant", etcd_pb2.LeaseGrantRequest(TTL=ttl_s), etcd_pb2.LeaseGrantResponse)
        granted = int(answer.TTL)
        if granted < ttl_s:
            raise Unavailable(f"etcd granted a lease of {granted} s instead of {ttl_s} s")
        return int(answer.ID)

    def keep_alive(self, lease: int) -> bool:
        """Renew a lease; False = it has ended."""
        request = etcd_pb2.LeaseKeepAliveRequest(ID=lease)
        answer, _ = self._ask("Lease/LeaseKeepAlive", request, etcd_pb2.LeaseKeepAliveResponse, one_of_stream=True)
        return bool(answer.TTL > 0)

    def revoke(self, lease: int) -> None:
        """Revoke a lease and remove its keys; an expired one is no error."""
        with contextlib.suppress(LeaseExpired):
            self._ask("Lease/LeaseRevoke", etcd_pb2.LeaseRevokeRequest(ID=lease), etcd_pb2.LeaseRevokeResponse)

    def watch(self, prefix: str, changed: Callable[[], None]) -> None:
        """Call `changed`, from a thread of its own, when a key below `prefix` has or may have changed."""
        watcher = threading.Thread(target=self._watch, args=(prefix, changed), name="venus-etcd-watch", daemon=True)
        with self._lock:
            self._watchers.append(watcher)
        watcher.start()

    def close(self) -> None:
        """End the watches and every connection."""
        self._closed.set()
        with self._lock:
            channels, self._channels = list(self._channels.values()), {}
            watching = list(self._watching)
        for call in watching:
            call.cancel()
        for channel in channels:
            channel.close()
        for watcher in self._watchers:
            if watcher is not threading.current_thread():
                watcher.join(self._timeout_s)

    # -- one call ------------------------------------------------------------------------------------------------

    def _ask(self, call: str, request: Message, kind: type[M], *, one_of_stream: bool = False) -> tuple[M, bool]:
        """Call etcd until an address answers; return the answer, and whether an earlier attempt may have succeeded."""
        end, repeated = time.monotonic() + self._timeout_s, False
        share_s = max(ATTEMPT_S_MIN, self._timeout_s / len(self._addresses))
        failures: dict[str, str] = {}
        while True:
            first = self._newest
            for step in range(len(self._addresses)):
                place = (first + step) % len(self._addresses)
                address, left = self._addresses[place], end - time.monotonic()
                if left <= 0 or self._closed.is_set():
                    raise self._timeout_error(failures)
                token = ""  # of this call: another thread may replace the shared one
                try:
                    token = self._token_for(address, min(left, share_s))
                    answer = self._attempt(address, call, request, kind, min(left, share_s), token, one_of_stream)
                except grpc.RpcError as error:
                    if self._has_expired(token, error):
                        failures[address] = "its token had ended"
                        continue
                    failures[address] = _explain(error, address)
                    repeated = repeated or not _was_never_sent(error)
                    continue
                self._check_cluster(answer, address)
                self._newest = place
                return answer, repeated
            if self._closed.wait(ROUND_PAUSE_S):
                raise self._timeout_error(failures)

    def _attempt(
        self,
        address: str,
        call: str,
        request: Message,
        kind: type[M],
        timeout_s: float,
        token: str,
        one_of_stream: bool = False,
    ) -> M:
        """Make one attempt of a call at one address."""
        channel, path = self._channel(address), f"/etcdserverpb.{call}"
        if not one_of_stream:
            ask = channel.unary_unary(path, type(request).SerializeToString, kind.FromString)
            return ask(request, timeout=timeout_s, metadata=_metadata(token))
        stream = channel.stream_stream(path, type(request).SerializeToString, kind.FromString)(
            iter([request]), timeout=timeout_s, metadata=_metadata(token)
        )
        try:
            for answer in stream:
                return answer
        finally:
            stream.cancel()
        raise Unavailable(f"etcd at {address} ended a stream without an answer")

    def _channel(self, address: str) -> grpc.Channel:
        with self._lock:
            if self._closed.is_set():
                raise Unavailable("this connection to etcd is closed")
            self._load_files()
            if address not in self._channels:
                made = self._credentials
                self._channels[address] = (
                    grpc.insecure_channel(address, options=_OPTIONS)
                    if made is None
                    else grpc.secure_channel(address, made, options=_OPTIONS)
                )
            return self._channels[address]

    def _load_files(self) -> None:
        """Load renewed certificate files; a half-finished renewal is ignored. Raises ConfigError."""
        files = self._login.modification_times()
        if files == self._files:
            return
        try:
            made = self._login.read_credentials()
        except ConfigError as error:
            if self._files is None:
                raise
            if str(error) != self._complaint:  # perhaps between two files of one renewal: the next call retries
                logger.warning("renewed files for etcd are not used yet: %s", error)
            self._complaint = str(error)
            return
        self._files, self._credentials, self._channels, self._complaint = files, made, {}, ""

    def _token_for(self, address: str, timeout_s: float) -> str:
        """Return the token of a call; "" without a user. Raises Refused, grpc.RpcError."""
        token = self._token
        if self._login.user and not token:
            token = self._token = self._log_in(address, timeout_s)
        return token

    def _log_in(self, address: str, timeout_s: float) -> str:
        """Log in as the configured user, not the certificate's; return the token. Raises Refused, grpc.RpcError."""
        request = etcd_pb2.AuthenticateRequest(name=self._login.user, password=self._login.read_password())
        try:
            answer = self._attempt(address, AUTHENTICATE, request, etcd_pb2.AuthenticateResponse, timeout_s, "")
        except grpc.RpcError as error:
            if error.code() not in _REFUSED:
                raise
            raise Refused(
                f"etcd at {address} does not accept user {self._login.user}: {error.details()}",
                hint="correct [cluster] etcd_user and etcd_password; unset them if etcd has authentication off",
            ) from error
        return answer.token

    def _has_expired(self, token: str, error: grpc.RpcError) -> bool:
        """Whether a call was refused because its token has expired: then it is repeated with a new one.

        A newer token that another thread has fetched stays.
        """
        details = error.details() or ""
        is_old = any(text in details for text in _OLD_TOKEN)
        ended = bool(token) and (is_old or error.code() is grpc.StatusCode.UNAUTHENTICATED)
        if ended and self._token == token:
            self._token = ""
        return ended

    def _check_cluster(self, answer: Any, address: str) -> None:
        """Refuse addresses of a second etcd cluster: with two sources of truth two brokers could lead."""
        found = answer.header.cluster_id
        with self._lock:
            known = self._cluster_id = self._cluster_id or found
        if found != known:
            raise Refused(
                f"etcd at {address} belongs to another etcd cluster ({found:x}) than the other addresses ({known:x})",
                hint="let [cluster] etcd name the members of one etcd cluster; `etcdctl member list` shows them",
            )

    def _timeout_error(self, failures: dict[str, str]) -> VenusError:
        """Return the error for a call that no address has answered, with all attempts."""
        if self._closed.is_set():
            return Unavailable("this connection to etcd is closed")
        hint = "is it running? `etcdctl endpoint health` checks it; its addresses are in [cluster] etcd"
        hint += "; its certificate must name them" if self._login.ca else "; if it speaks TLS, set etcd_ca"
        tried = "; ".join(f"{address}: {what}" for address, what in failures.items()) or ", ".join(self._addresses)
        return Unavailable(
            f"etcd does not answer within {self._timeout_s:g} s ({tried})",
            hint=hint,
        )

    # -- watching ------------------------------------------------------------------------------------------------

    def _watch(self, prefix: str, changed: Callable[[], None]) -> None:
        """Watch a prefix until the client is closed, at one address after the other."""
        place = self._newest
        while not self._closed.is_set():
            with contextlib.suppress(grpc.RpcError, VenusError):
                for answer in self._read_watch(self._addresses[place], prefix):
                    if answer.created or answer.events:  # created: earlier changes may have been missed
                        changed()
                    if answer.canceled:
                        break
            place = (place + 1) % len(self._addresses)
            self._closed.wait(WATCH_PAUSE_S)

    def _read_watch(self, address: str, prefix: str) -> Iterator[etcd_pb2.WatchResponse]:
        """Yield the answers to a watch at one address until it breaks."""
        wanted = etcd_pb2.WatchCreateRequest(key=prefix.encode(), range_end=prefix[:-1].encode() + b"0")
        over = threading.Event()

        def requests() -> Iterator[etcd_pb2.WatchRequest]:
            """Yield the request that begins the watch, and keep the stream open until it is over."""
            yield etcd_pb2.WatchRequest(create_request=wanted)
            over.wait()

        stream = self._channel(address).stream_stream(
            "/etcdserverpb.Watch/Watch",
            etcd_pb2.WatchRequest.SerializeToString,
            etcd_pb2.WatchResponse.FromString,
        )(requests(), metadata=_metadata(self._token_for(address, self._timeout_s)))
        with self._lock:
            self._watching.append(stream)
        try:
            yield from stream
        finally:
            over.set()
            stream.cancel()
            with self._lock:
                self._watching.remove(stream)


def _metadata(token: str) -> tuple[tuple[str, str], ...]:
    """Return the metadata of a call, with the token if there is one."""
    return (*_METADATA, ("token", token)) if token else _METADATA


def _to_etcd_key(found: etcd_pb2.KeyValue) -> EtcdKey:
    return EtcdKey(found.key.decode(errors="replace"), found.value, found.mod_revision, found.lease)


def _was_never_sent(error: grpc.RpcError) -> bool:
    """Whether the request was certainly not sent."""
    details = error.details() or ""
    return "failed to connect" in details or "no leader" in details


def _explain(error: grpc.RpcError, address: str) -> str:
    """Return why an attempt failed. Raises errors that a retry would not avoid."""
    code, details = error.code(), " ".join((error.details() or "").split())
    if code is grpc.StatusCode.NOT_FOUND and "lease" in details:
        raise LeaseExpired(f"etcd at {address}: {details}") from error
    if code in _FOREIGN:
        raise Refused(f"{address} is not an etcd ({details})", hint="correct [cluster] etcd") from error
    if code in _REFUSED:
        hint = "[cluster] etcd_user needs a role for the keys below /venus/; etcd_certificate identifies this broker"
        raise Refused(f"{_REFUSED[code]} at {address}: {details}", hint=hint) from error
    return reason(error)
