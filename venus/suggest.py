"""What somebody may have meant who named something that is not there."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from collections.abc import Sequence as Seq

from venus.errors import ConfigError


def nearest(name: str, known: Iterable[str], *, prefix: str = "", in_full: bool = False) -> str:
    """Return ` (did you mean orders?)`, or nothing; upper and lower case are one.

    A table may be named without its schema; `in_full` suggests it with its schema nevertheless.
    """
    meant: dict[str, str] = {}
    for full in known:
        short = full.partition(".")[2] or full
        meant |= {short.upper(): full if in_full else short, full.upper(): full}
    found = difflib.get_close_matches(name.upper(), meant, n=1, cutoff=0.5)
    return f" (did you mean {prefix}{meant[found[0]]}?)" if found else ""


def table_named(name: str, tables: Seq[tuple[str, ...]], target: str) -> str:
    """Return the first name of the one table of which `name` is a name. Raises ConfigError for none and for several."""
    found = [names[0] for names in tables if name in names]
    if len(found) == 1:
        return found[0]
    if found:
        raise ConfigError(f"{name!r} matches more than one table: write {' or '.join(found)}")
    known = [names[0] for names in tables]
    hint = "its tables: " + ", ".join(sorted(known)[:12]) if known else f"run `venus migrate --target {target}`"
    raise ConfigError(f"target {target} has no table {name!r}{nearest(name, known)}", hint=hint)
