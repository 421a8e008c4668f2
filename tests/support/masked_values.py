"""What a rule makes of one value, by plain Python: the yardstick of the functions over whole columns."""

from __future__ import annotations

import hashlib
import uuid
from typing import Any

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
        key = hashlib.blake2b(secret, digest_size=64).digest()
        digest = hashlib.blake2b(plain, key=key, digest_size=16, person=b"venus column")
        return {"bytes": digest.digest(), "uuid": str(uuid.UUID(digest.hexdigest()))}.get(kind, digest.hexdigest())
    if rule.mask == "year":
        if "infinity" in value:
            return value
        year, zone = value.split("-")[0], "+00" if "+00" in value else ""
        return f"{year}-01-01" + (" 00:00:00" if ":" in value else "") + zone + (" BC" if value.endswith(" BC") else "")
    if rule.mask == "text":
        return rule.argument
    return value[: int(rule.argument)] if rule.mask == "truncate" else value
