"""The differences between versions of Oracle, by name: code asks these, never for a version number. Data.

Tests generate and parse the statements for these versions, and docs/oracle contains them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """A range of versions that behave alike for VENUS."""

    name: str
    since: tuple[int, int]
    #: The greatest length of the names of the application's tables and columns.
    identifier_bytes: int
    #: Invisible columns and identities exist: a table without a key can get a RECORDID.
    invisible_identity: bool
    #: Columns have their own collation (ALL_TAB_COLS.COLLATION).
    column_collation: bool
    #: Blockchain tables exist, since an update of 19c.
    ledgers: bool = False


VERSIONS = (
    Version(name="11.2", since=(11, 2), identifier_bytes=30, invisible_identity=False, column_collation=False),
    Version(name="12.1", since=(12, 1), identifier_bytes=30, invisible_identity=True, column_collation=False),
    Version(name="12.2", since=(12, 2), identifier_bytes=128, invisible_identity=True, column_collation=True),
    Version(
        name="19c", since=(18, 0), identifier_bytes=128, invisible_identity=True, column_collation=True, ledgers=True
    ),
    Version(
        name="23ai", since=(23, 0), identifier_bytes=128, invisible_identity=True, column_collation=True, ledgers=True
    ),
)


def version_of(text: str) -> Version | None:
    """Return the range that a server's version ("19.3.0.0.0") belongs to; None if it is older than all."""
    number = tuple(int(part) for part in text.split(".")[:2])
    fitting = [v for v in VERSIONS if v.since <= number]
    return fitting[-1] if fitting else None


def find_version(name: str) -> Version:
    """Return the version of that name."""
    return next(v for v in VERSIONS if v.name == name)
