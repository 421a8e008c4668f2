"""Text for people: figures (12 MiB, 3 min, 0.4 changes/s), hints as sentences, URLs without passwords. Pure.

For a mistake, a hint suggests the known name nearest to an unknown name, and gives the line of an option in a TOML
file.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from collections.abc import Sequence as Seq

from venus.errors import ConfigError


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


def find_option_line(text: str, path: list[str]) -> int:
    """Return the line of a TOML key or of the section nearest to it, 0 if there is none."""
    section: list[str] = []
    best, best_depth = 0, 0
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.match(r"\s*\[+\s*([^\]]+?)\s*\]", line):
            section = here = _key_parts(header[1])
        elif key := re.match(r"""\s*((?:[\w-]+|"[^"]*"|'[^']*'|\s*\.\s*)+?)\s*=""", line):
            here = section + _key_parts(key[1])
        else:
            continue
        depth = len(here) if here == path[: len(here)] else 0
        if depth > best_depth:
            best, best_depth = number, depth
    return best


def _key_parts(dotted: str) -> list[str]:
    """Return the parts of a dotted TOML key."""
    return [a or b or c for a, b, c in re.findall(r"""([\w-]+)|"([^"]*)"|'([^']*)'""", dotted)]


def suggest_nearest(name: str, known: Iterable[str], *, prefix: str = "", in_full: bool = False) -> str:
    """Return ` (did you mean orders?)`, or nothing; case is ignored.

    A user may name a table without its schema; with `in_full`, the suggestion includes the schema nevertheless.
    """
    candidates: dict[str, str] = {}
    for full in known:
        short = full.partition(".")[2] or full
        candidates |= {short.upper(): full if in_full else short, full.upper(): full}
    found = difflib.get_close_matches(name.upper(), candidates, n=1, cutoff=0.5)
    return f" (did you mean {prefix}{candidates[found[0]]}?)" if found else ""


def find_named_table(name: str, tables: Seq[tuple[str, ...]], target: str) -> str:
    """Return the first name of the one table that `name` names; a table may have several names. Raises ConfigError.

    Case is ignored if no name matches exactly, because the two databases of a pair may write it differently.
    """
    for fold in (str, str.casefold):
        found = [names[0] for names in tables if fold(name) in map(fold, names)]
        if len(found) == 1:
            return found[0]
        if found:
            raise ConfigError(f"{name!r} matches more than one table: write {' or '.join(found)}")
    known = [names[0] for names in tables]
    hint = "its tables: " + ", ".join(sorted(known)[:12]) if known else f"run `venus migrate --target {target}`"
    raise ConfigError(f"target {target} has no table {name!r}{suggest_nearest(name, known)}", hint=hint)
