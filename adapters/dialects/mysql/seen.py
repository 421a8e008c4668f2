"""What capture has seen of a table's definition: tells what ALTER TABLE did to values while the columns look as before.

No trigger fires for another expression of a generated column, for a column that is dropped and added again, or for two
that trade names, and InnoDB keeps the table's number. What is left is the text of the definition, and when the server
wrote it (capture.md 6).
"""

from __future__ import annotations

import hashlib


def slot(table_id: int) -> int:
    """Return where it is kept, beside the number of InnoDB's: older versions look up no such table."""
    return -table_id


def look(definition: str, written: str) -> str:
    """Return what to keep of a definition: when it was written, and digests of its columns and of what else it says."""
    lines = [line.rstrip(",") for line in definition.split("\n")]
    columns = [line for line in lines if line.startswith("  `")]
    return f"{written} {_digest(columns)} {_digest([line for line in lines if line not in columns])}"


def _digest(lines: list[str]) -> str:
    return hashlib.blake2b("\n".join(lines).encode(), digest_size=8).hexdigest()


def other_columns(before: str, now: str) -> bool:
    """Say whether the columns are declared in another way."""
    return bool(before) and _parts(before)[1] != _parts(now)[1]


def written_again(before: str, now: str) -> bool:
    """Say whether the server has written the definition since."""
    return bool(before) and _parts(before)[0] != _parts(now)[0]


def altered(before: str, now: str, *, moved: bool) -> bool:
    """Say whether values may be others: columns are declared in another way, or the text shows no ALTER TABLE.

    A new index or comment shows in the text. `moved`: files were copied or touched, so that their times say nothing.
    """
    unexplained = written_again(before, now) and _parts(before)[2] == _parts(now)[2]
    return other_columns(before, now) or (unexplained and not moved)


def _parts(look: str) -> list[str]:
    return look.rsplit(" ", 2)
