"""The driver that an Oracle URL names, and what VENUS asks of it: the only place that knows its modules.

python-oracledb (thin unless the URL says `thick_mode`) and cx_Oracle go through the same code: both describe columns
to an output type handler, both carry the error's code in their exceptions. SQLAlchemy reads the URL, nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Protocol

import sqlalchemy as sa

from venus.adapters.dialects.oracle.address import connect_arguments
from venus.adapters.dialects.oracle.bounds import Limits
from venus.adapters.dialects.oracle.columns import Columns
from venus.adapters.dialects.oracle.lobs import LOCATOR
from venus.errors import ConfigError

#: How to get what cx_Oracle cannot do without.
CLIENT = (
    "install Oracle's Instant Client and libaio and name its folder in LD_LIBRARY_PATH, or write oracle+oracledb://, "
    "which needs no client"
)
_CODE = re.compile(r"\b(?:ORA|DPY|DPI)-\d+")


class National(str):
    """A text of the national character set: bound as such, or a database without Unicode would lose characters."""

    __slots__ = ()


class Driver(Protocol):
    """A DB-API module with an address."""

    @property
    def place(self) -> str: ...

    @property
    def error(self) -> type[Exception]: ...

    def connect(self) -> Any: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the URL says for VENUS: `venus_schemas=APP,HR`, `venus_rac=yes`, `venus_watch=database`."""

    schemas: tuple[str, ...] = ()  # none = the user's own
    cluster: bool = False
    watch_database: bool = False
    compound: bool = False
    type_map: Mapping[str, str] = field(default_factory=dict)  # of [source.type_map]
    columns: Columns = field(default_factory=Columns)  # of [source.columns]
    limits: Limits = field(default_factory=Limits)  # of [capture]
    inline: bool = False  # of `install-triggers --mode inline`, not of the URL


@dataclass(frozen=True, slots=True)
class ModuleDriver:
    """python-oracledb or cx_Oracle."""

    place: str
    error: type[Exception]
    module: Any
    call: Callable[[], Any]

    def connect(self) -> Any:
        """Connect, and have every value fetched exactly."""
        connection = self.call()
        connection.outputtypehandler = output_handler(self.module)
        connection.inputtypehandler = input_handler(self.module)
        return connection


def driver_of(url: str) -> tuple[Driver, Options]:
    """Read a URL `oracle+oracledb://user:password@host:1521/?service_name=NAME`. Its secrets are never shown."""
    parsed = sa.make_url(url)
    if parsed.drivername == "oracle":
        parsed = parsed.set(drivername="oracle+oracledb")
    if parsed.drivername not in ("oracle+oracledb", "oracle+cx_oracle"):
        raise ConfigError("[source] url: unknown driver", hint="write oracle+oracledb:// or oracle+cx_oracle://")
    parsed, options = _own_options(parsed)
    dialect = parsed.get_dialect()()
    try:
        module: Any = parsed.get_dialect().import_dbapi()
    except ImportError:
        hint = "pip install 'venus-cdc[oracle]'"
        if parsed.drivername.endswith("cx_oracle"):
            hint = "pip install 'setuptools>=77,<81' wheel, then pip install --no-build-isolation 'venus-cdc[cxoracle]'"
        raise ConfigError(f"[source] url: the driver of {parsed.drivername} is not installed", hint=hint) from None
    dialect.dbapi = module
    arguments, said = dialect.create_connect_args(parsed)
    keywords, client = connect_arguments(said)
    if client is not None:
        _start_client(module, client)
    place = f"{parsed.host or parsed.query.get('service_name', '')}/{parsed.database or ''}".strip("/") or "oracle"
    driver = ModuleDriver(place, module.Error, module, lambda: module.connect(*arguments, **keywords))
    return driver, options


def _start_client(module: Any, client: dict[str, str]) -> None:
    """Load Oracle's client for the thick mode. cx_Oracle knows no other and has it loaded already."""
    if not hasattr(module, "init_oracle_client"):
        return
    try:
        module.init_oracle_client(**client)
    except module.Error as error:
        hint = "install Oracle's Instant Client and name its folder with lib_dir=..., or leave out thick_mode"
        raise ConfigError(f"[source] url: no thick mode: {said_by(error)}", hint=hint) from error


def _own_options(url: sa.URL) -> tuple[sa.URL, Options]:
    own = {k: str(v) for k, v in url.query.items() if k.startswith("venus_")}
    if unknown := own.keys() - {"venus_schemas", "venus_rac", "venus_watch", "venus_triggers"}:
        hint = "valid are venus_schemas=A,B, venus_rac=yes, venus_watch=schema|database, venus_triggers=rows|compound"
        raise ConfigError(f"[source] url: no option {sorted(unknown)[0]}", hint=hint)
    options = Options(
        schemas=tuple(filter(None, own.get("venus_schemas", "").split(","))),
        cluster=own.get("venus_rac") == "yes",
        watch_database=own.get("venus_watch") == "database",
        compound=own.get("venus_triggers") == "compound",
    )
    return url.difference_update_query(list(own)), options


def output_handler(module: Any) -> Callable[..., Any]:
    """Return the function that says how a column is fetched: decimals exactly, LOBs with their row or as locators."""
    wanted = {
        module.DB_TYPE_NUMBER: Decimal,
        module.DB_TYPE_CLOB: module.DB_TYPE_LONG,
        module.DB_TYPE_NCLOB: getattr(module, "DB_TYPE_LONG_NVARCHAR", module.DB_TYPE_LONG),
        module.DB_TYPE_BLOB: module.DB_TYPE_LONG_RAW,
    }

    def handler(cursor: Any, *described: Any) -> Any:
        # python-oracledb describes a column by one object, cx_Oracle by name, type, size, precision and scale
        name, kind = (described[0].name, described[0].type_code) if len(described) == 1 else described[:2]
        if name.startswith(LOCATOR):
            return cursor.var(kind, arraysize=cursor.arraysize)  # whatever the driver's defaults.fetch_lobs says
        return cursor.var(wanted[kind], arraysize=cursor.arraysize) if kind in wanted else None

    return handler


def input_handler(module: Any) -> Callable[..., Any]:
    """Return the function that says how a value is bound: texts of the national character set as such."""

    def handler(cursor: Any, value: Any, arraysize: int) -> Any:
        return cursor.var(module.DB_TYPE_NVARCHAR, arraysize=arraysize) if isinstance(value, National) else None

    return handler


def code_of(error: Exception) -> str:
    """Return the error's code, ORA-01555 or DPY-4011, empty if it has none."""
    detail = error.args[0] if error.args else ""
    if full := getattr(detail, "full_code", ""):
        return str(full)
    found = _CODE.search(str(detail))  # cx_Oracle has no full_code, only the text
    return found[0] if found else ""


def said_by(error: Exception) -> str:
    """Return the first line of what the server said: the rest is a help page's address."""
    return str(error).strip().partition("\n")[0]
