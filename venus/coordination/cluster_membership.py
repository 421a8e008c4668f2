"""Cluster id of a data directory: written once, so that a broker never joins another cluster with its data."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol

from venus.coordination.stored_records import VALUE_BYTES_MAX, decode_identity, encode_identity
from venus.errors import ConfigError, Refused

FILE = "cluster.json"
_OTHER = "correct broker.data_dir, [cluster] name or etcd; `venus cluster dissolve` takes data out"
_EMPTIED = (
    "correct broker.data_dir, [cluster] name or etcd. If etcd was emptied or replaced, restore its backup; without "
    "one: stop all brokers, `venus cluster dissolve --accept-loss` at the one that led last, and start it first"
)


class IdentityStore(Protocol):
    """The part of a coordinator that stores the id of its cluster."""

    def identity(self, *, create: bool) -> str | None:
        """Return the id of the cluster, drawn once; None = there is none and `create` is False."""


def join_cluster(coordinator: IdentityStore, data_dir: Path, name: str) -> str:
    """Join cluster `name`: write its id into the data directory, which must exist, and return it.

    Raises Refused if the directory belongs to another cluster; directory and coordinator are unchanged then.
    """
    file = data_dir / FILE
    known = _read(file)
    found = coordinator.identity(create=known is None)
    if known is not None and found != known:
        what = "was never created there" if found is None else f"has the id {found}"
        raise Refused(
            f"{data_dir} belongs to another cluster (id {known}): the cluster {name!r} {what}",
            hint=_EMPTIED if found is None else _OTHER,
        )
    if found is None:
        raise Refused(f"the cluster {name!r} was removed while this broker joined it", hint="start it again")
    if known is None:
        _write(file, encode_identity(found))
    return found


def _read(file: Path) -> str | None:
    try:
        with file.open("rb") as stream:
            return decode_identity(str(file), stream.read(VALUE_BYTES_MAX + 1))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from error


def _write(file: Path, content: bytes) -> None:
    new = file.with_name(f"{file.name}.new")
    with new.open("wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    new.replace(file)
    folder = os.open(file.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
