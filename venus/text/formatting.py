"""Text for people: figures (12 MiB, 3 min, 0.4 changes/s), hints as sentences, URLs without passwords. Pure."""

from __future__ import annotations

import re


def mask_url(url: str) -> str:
    """Return the URL with every password replaced, in the authority and in the query."""
    url = re.sub(r"(://[^:/?@]*):.*@", r"\1:***@", url, flags=re.DOTALL)
    return re.sub(r"([?&;][^=&;]*(?:passw|secret|token)[^=&;]*=)[^&;]*", r"\1***", url, flags=re.IGNORECASE)


#: A text that begins like this is a command, to be typed as it is.
_COMMAND = re.compile(r"(venus|pip|chown|chmod|[A-Z]{3,}) [^,;]*")
_WORD = re.compile(r"(?!(?:venus|pip|etcd) )[a-z]+(?=[ ,;:]|$)")
_ENDS = (".", "?", "!", "…", ":", ";")


def to_sentence(hint: str) -> str:
    """Return a hint with a capital letter and a full stop; commands, names and paths stay unchanged."""
    if not hint or _COMMAND.fullmatch(hint):
        return hint
    capitalised = hint[0].upper() + hint[1:] if _WORD.match(hint) else hint
    return capitalised if capitalised.endswith(_ENDS) else f"{capitalised}."


def format_bytes(count: float) -> str:
    """Format a number of bytes: 12.3 MiB for 12900000."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def format_duration(seconds: float) -> str:
    """Format a duration: 0.4 s, 12 s, 3 min, 2.5 h, 4 d."""
    for limit, divisor, unit in ((90, 1, "s"), (5400, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / divisor:.{1 if seconds / divisor < 10 else 0}f} {unit}"
    return f"{seconds / 86400:.0f} d"


def format_figure(value: float, unit: str) -> str:
    """Format a figure of a forecast with its unit."""
    if unit == "s":
        return format_duration(value)
    if unit in ("bytes", "bytes/h"):
        return format_bytes(value) + unit.removeprefix("bytes")
    shown = f"{value:,.{0 if value >= 100 or value == 0 else 1 if value >= 1 else 2}f}"
    return f"{shown}{unit}" if unit.startswith("/") else f"{shown} {unit}"
