"""Names of the source's tables and columns at a relational target: how they are folded and shortened. Pure."""

from __future__ import annotations

import hashlib

from venus.adapters.dialects import has_upper_case_names

_DIGEST_CHARS = 8


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
    """Shorten a name to a number of characters, in the same way."""
    return name if len(name) <= chars_max else f"{name[: chars_max - _DIGEST_CHARS - 1]}_{_digest(name)}"


def _digest(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:_DIGEST_CHARS]
