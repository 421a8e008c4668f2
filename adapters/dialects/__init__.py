"""The database dialects, one folder for each database; all of them implement `contract`.

This package imports little: every process that loads rows imports it to learn whether a database stores names in upper
case.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module

#: Folder of the dialect, by URL scheme; "postgresql+psycopg2" counts as "postgresql".
DIALECTS = {
    "oracle": "oracle",
    "mariadb": "mysql",
    "mysql": "mysql",
    "postgresql": "postgresql",
    "sqlite": "sqlite",
}


@cache
def has_upper_case_names(dialect: str) -> bool:
    """Whether a dialect's dictionary stores unquoted names in upper case; False for an unknown dialect."""
    if dialect not in DIALECTS.values():
        return False
    return bool(getattr(import_module(f"venus.adapters.dialects.{dialect}"), "UPPER_CASE_NAMES", False))


@cache
def fixed_namespace(scheme: str) -> str:
    """Return the one namespace of all tables in databases of this URL scheme ("main" in SQLite); empty if it varies."""
    dialect = DIALECTS.get(scheme.partition("+")[0])
    return str(getattr(import_module(f"venus.adapters.dialects.{dialect}"), "NAMESPACE", "")) if dialect else ""
