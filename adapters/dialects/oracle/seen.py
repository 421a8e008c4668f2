"""What capture has seen of a table's definition: tells what ALTER TABLE did to values while the columns look as before.

No trigger fires for a column that is dropped and added again, or for two that trade names, and the table's segment
stays. What is left is the order of the columns, and when the table was specified last (capture.md 3).
"""

from __future__ import annotations

import hashlib

from venus.adapters.dialects.oracle.tables import Table


def look(table: Table, specified: str) -> str:
    """Return what to keep of a definition: when it was specified, and a digest of the columns in their order.

    A column that was added stands behind all others, whatever its name is.
    """
    lines = []
    for name, reading in table.readings.items():
        d = reading.declared
        lines.append(f"{name} {d.data_type} {d.length} {d.precision} {d.scale} {d.in_bytes}")
    return f"{specified} {hashlib.blake2b(chr(10).join(lines).encode(), digest_size=8).hexdigest()}"


def altered(before: str, now: str, *, explained: bool) -> bool:
    """Say whether values may be others: columns are declared in another way, or nothing else explains the new time."""
    if not before or before == now:
        return False
    return _columns(before) != _columns(now) or not explained


def _columns(look: str) -> str:
    return look.rpartition(" ")[2]
