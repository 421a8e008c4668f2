"""The masked form of a single value in plain Python; tests compare the functions on whole columns with it."""

from __future__ import annotations

import hashlib
import uuid
from typing import Any

from cryptography.hazmat.primitives.ciphers import algorithms
from cryptography.hazmat.primitives.cmac import CMAC

from venus.masking.syntax import ColumnRule

SECRET = b"a key of more than sixteen bytes"


def mask_by_hand(rule: ColumnRule, kind: str, value: Any, secret: bytes = SECRET) -> Any:
    """Return the masked value; `kind` is the type's name in the tests."""
    if rule.mask == "constant":
        return rule.argument
    if value is None or rule.mask == "null":
        return None
    if rule.mask == "hmac":
        plain = value if isinstance(value, bytes) else (value.lower() if kind == "citext" else value).encode()
        digest = CMAC(algorithms.AES(hashlib.blake2b(secret, digest_size=32, person=b"venus column").digest()))
        digest.update(plain)
        found = digest.finalize()
        return {"bytes": found, "uuid": str(uuid.UUID(bytes=found))}.get(kind, found.hex())
    if rule.mask == "year":
        if "infinity" in value:
            return value
        year, zone = value.split("-")[0], "+00" if "+00" in value else ""
        return f"{year}-01-01" + (" 00:00:00" if ":" in value else "") + zone + (" BC" if value.endswith(" BC") else "")
    if rule.mask == "text":
        return rule.argument
    return value[: int(rule.argument)] if rule.mask == "truncate" else value
