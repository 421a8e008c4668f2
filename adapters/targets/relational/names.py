"""Names of the source's tables and columns at a relational target: how they are folded and shortened. Pure."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from venus.adapters.dialects import has_upper_case_names

_DIGEST_CHARS = 8
POSTGRES_NAME_BYTES = 63
#: The schema at the target in place of SQLite's only schema.
_DEFAULT_NAMESPACES = {"main": "public"}


def fold_name(name: str, dialect: str, names: str = "auto") -> str:
    """Return the name at the target of a source name, before it is shortened."""
    if names == "lower":
        return name.lower()
    return name.lower() if names == "auto" and name == name.upper() and has_upper_case_names(dialect) else name


def shorten_bytes(name: str, bytes_max: int) -> str:
    """Shorten a name to a number of bytes, with a hash in place of the end; the result is always the same."""
    if len(name.encode()) <= bytes_max:
        return name
    return name.encode()[: bytes_max - _DIGEST_CHARS - 1].decode(errors="ignore") + "_" + _digest(name)


def shorten_chars(name: str, chars_max: int) -> str:
    """Shorten a name to a number of characters, as `shorten_bytes` does to a number of bytes."""
    return name if len(name) <= chars_max else f"{name[: chars_max - _DIGEST_CHARS - 1]}_{_digest(name)}"


def _digest(name: str) -> str:
    """Return a short hash of a name, which replaces the end of a shortened name."""
    return hashlib.sha256(name.encode()).hexdigest()[:_DIGEST_CHARS]


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresNames:
    """Rule by which a PostgreSQL database converts names of another one: `names` and `schema` in `[targets.X]`."""

    names: str = "auto"
    #: The configured schema of all tables; empty = the schema of each table at the source.
    schema_of_all: str = ""

    def fold(self, name: str, dialect: str) -> str:
        """Return the target's name for a table, a column or a sequence of the source."""
        return shorten_bytes(fold_name(name, dialect, self.names), POSTGRES_NAME_BYTES)

    def namespace(self, namespace: str, dialect: str) -> str:
        """Return the target's schema for the tables of a namespace of the source."""
        own = self.fold(namespace, dialect)
        return self.schema_of_all or _DEFAULT_NAMESPACES.get(own, own) or "public"
