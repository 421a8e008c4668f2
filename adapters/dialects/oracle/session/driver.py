"""The driver that an Oracle URL names, with its error codes: the only module that knows the driver's modules.

python-oracledb (thin unless the URL says `thick_mode`) and cx_Oracle use the same code: both describe columns to an
output type handler, and both have the error's code in their exceptions. SQLAlchemy only parses the URL.

A password may change while VENUS runs. Between the change in the database and the change of the password file, every
login is refused. Ten refusals in a row lock most accounts (FAILED_LOGIN_ATTEMPTS), so VENUS retries a refused password
only after minutes, and a new password at once.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from enum import Enum
from typing import Any, Protocol

import sqlalchemy as sa

from venus.adapters.dialects.oracle.session.lobs import LOCATOR
from venus.adapters.dialects.oracle.session.options import CutLimits, OracleColumnChoice
from venus.adapters.dialects.registry_rules import LogLimits
from venus.errors import ConfigError, LoginRefused

_TRUTHS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
#: Arguments of the driver's connect() that are not text.
_NUMBERS = {"tcp_connect_timeout": float, "retry_count": int, "retry_delay": int, "expire_time": int, "sdu": int}
_SWITCHES = ("ssl_server_dn_match", "externalauth", "events")
#: For the thick mode: the folders of Oracle's client and of its configuration.
_CLIENT = ("lib_dir", "config_dir")


def connect_arguments(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str] | None]:
    """Return the arguments of connect(), and those of init_oracle_client() if the URL asks for the thick mode."""
    given = dict(options)
    is_thick = _parse_bool("thick_mode", given.pop("thick_mode", "false"))
    client = {name: str(given.pop(name)) for name in _CLIENT if name in given and (is_thick or name == "lib_dir")}
    if client and not is_thick:
        raise ConfigError("[source] url: lib_dir is for the thick mode only", hint="add thick_mode=true")
    for name in _SWITCHES:
        if name in given:
            given[name] = _parse_bool(name, given[name])
    for name, number in _NUMBERS.items():
        if name in given:
            given[name] = _parse_number(name, given[name], number)
    protocol = str(given.pop("protocol", "tcp")).upper()
    if protocol not in ("TCP", "TCPS"):
        raise ConfigError(f"[source] url: protocol is tcp or tcps, not {protocol.lower()}")
    if protocol == "TCPS":
        given["dsn"] = str(given["dsn"]).replace("(PROTOCOL=TCP)", "(PROTOCOL=TCPS)")
    return given, client if is_thick else None


def _parse_bool(name: str, value: object) -> bool:
    if isinstance(value, bool):
        return value
    if (found := _TRUTHS.get(str(value).lower())) is None:
        raise ConfigError(f"[source] url: {name} is true or false")
    return found


def _parse_number(name: str, value: object, number: type[int] | type[float]) -> int | float:
    try:
        return number(str(value))
    except ValueError:
        raise ConfigError(f"[source] url: {name} is a number") from None


class ErrorAction(Enum):
    """The reaction of VENUS to an error."""

    AGAIN = "open the snapshot again"
    RECONNECT = "connect again, then continue"
    WAIT = "a lock blocks the statement, or memory is short: try again"
    DICTIONARY = "compare the schemas, then open the snapshot again"
    DENIED = "the user may not do this"
    CLIENT = "Oracle's client library is missing or cannot be used"
    THICK = "the driver's thin mode cannot do this"
    SPACE = "the database has no room left: try again when it has"
    FAIL = "give up and report the error"


#: The server or its listener takes no session now.
_BUSY_OR_LISTENER = (
    "ORA-00018 ORA-00020 ORA-00603 ORA-01000 ORA-01035 ORA-01041 ORA-01109 ORA-01219 ORA-02391 "
    "ORA-03111 ORA-03136 ORA-12152 ORA-12153 ORA-12157 ORA-12500 ORA-12502 ORA-12513 ORA-12518 "
    "ORA-12519 ORA-12523 ORA-12525 ORA-12526 ORA-12527 ORA-12535 ORA-12536 ORA-12540 ORA-12560 "
    "ORA-12569 ORA-12583 ORA-12606 ORA-12608 ORA-12609 ORA-12757"
)
#: The session, the server or the network is gone.
_CONNECTION_GONE = (
    "ORA-00028 ORA-01012 ORA-01033 ORA-01034 ORA-01089 ORA-01090 ORA-01092 ORA-02396 ORA-02399 "
    "ORA-03113 ORA-03114 ORA-03135 ORA-12170 ORA-12505 ORA-12514 ORA-12516 ORA-12520 ORA-12521 "
    "ORA-12528 ORA-12537 ORA-12541 ORA-12543 ORA-12545 ORA-12547 ORA-12570 ORA-12571 ORA-25400 "
    "ORA-25401 ORA-25402 ORA-25403 ORA-25404 ORA-25405 ORA-25406 ORA-25407 ORA-25408 ORA-25409 "
    "DPY-1001 DPY-4011 DPY-4024 DPY-6000 DPY-6001 DPY-6003 DPY-6005 DPI-1010 DPI-1067 DPI-1080"
)
#: A tablespace, a quota or the recovery area is full.
_SPACE = (
    "ORA-00257 ORA-01536 ORA-01631 ORA-01632 ORA-01650 ORA-01651 ORA-01950 ORA-01652 ORA-01653 "
    "ORA-01654 ORA-01655 ORA-01658 ORA-01688 ORA-01691 ORA-30032 ORA-30036"
)
#: The codes and their meaning are those of Oracle's and python-oracledb's documentation. VENUS reports every other
#: error as it is and does not retry.
ACTIONS = {
    ErrorAction.AGAIN: (
        "ORA-01555",  # snapshot too old
        "ORA-08103",  # object no longer exists: truncated while it was read
        "ORA-01410",  # invalid ROWID: rebuilt while it was read
        "ORA-01466",  # altered since the snapshot was opened
        "ORA-12801",  # a parallel query's server failed
        "ORA-22922",  # nonexistent LOB value: its row was deleted in the meantime
        "ORA-22924",  # snapshot too old, of a LOB
        "ORA-08176",  # consistent read failure, rollback data not available
        "ORA-08177",  # cannot serialize access
        "ORA-04061",  # existing state of a package has been invalidated
        "ORA-04065",  # the package was altered or dropped
        "ORA-06508",  # could not find program unit being called: it is being replaced
        "ORA-10387",  # parallel query server interrupt
        "ORA-12805",  # parallel query server died
        "ORA-04068",  # existing state of packages has been discarded
        "ORA-16000",  # database or pluggable database open for read-only access: a switch-over is under way
    ),
    ErrorAction.RECONNECT: (
        "ORA-01013",  # cancelled: a time-out of the call, or a DBA
        *_BUSY_OR_LISTENER.split(),
        "ORA-16456",  # switch-over to standby in progress or completed
        *_CONNECTION_GONE.split(),
    ),
    ErrorAction.WAIT: (
        "ORA-00054",  # resource busy
        "ORA-00055",  # maximum number of DML locks exceeded
        "ORA-00060",  # deadlock
        "ORA-01591",  # lock held by an in-doubt distributed transaction
        "ORA-02049",  # time-out: distributed transaction waiting for lock
        "ORA-04020",  # deadlock detected while trying to lock an object
        "ORA-04031",  # out of shared memory
        "ORA-04036",  # the instance's PGA memory is at its limit
        "ORA-04021",  # time-out while waiting to lock an object
        "ORA-30006",  # resource busy, with a time-out
        "ORA-20101",  # VENUS's fence: a transaction is still open
    ),
    ErrorAction.DICTIONARY: (
        "ORA-00904",  # no such column
        "ORA-00942",  # no such table
        "ORA-04043",  # no such object
        "ORA-00932",  # inconsistent data types: the type of a column has changed
    ),
    ErrorAction.DENIED: (
        *("ORA-01017", "ORA-01031", "ORA-01045", "ORA-28000", "ORA-28001", "ORA-41900", "ORA-47401"),
        "DPY-4001",  # no user or no password is given
    ),
    ErrorAction.CLIENT: (
        "DPI-1047",  # cannot be loaded
        "DPI-1050",  # too old
        "DPI-1072",  # version not supported
        "ORA-01804",  # the library was found, but not its files
    ),
    ErrorAction.THICK: (
        "DPY-3001",  # Native Network Encryption
        "DPY-3010",  # server older than 12.1
        "DPY-3015",  # password verifier of 10g
    ),
    ErrorAction.SPACE: tuple(_SPACE.split()),
}

_BY_CODE = {code: action for action, codes in ACTIONS.items() for code in codes}


def error_action(code: str) -> ErrorAction:
    """Return the reaction to an error code."""
    return _BY_CODE.get(code, ErrorAction.FAIL)


#: The hint for cx_Oracle without Oracle's client.
CLIENT = (
    "install Oracle's Instant Client and libaio and name its folder in LD_LIBRARY_PATH, or write oracle+oracledb://, "
    "which needs no client"
)
_CODE = re.compile(r"\b(?:ORA|DPY|DPI)-\d+")
#: The errors that only say where another one happened: in a recursive statement, in a trigger, in a line of PL/SQL.
_WRAPPERS = ("ORA-00604", "ORA-04088", "ORA-06512")


class NationalText(str):
    """A text to bind as national character set; otherwise a database without Unicode loses characters."""

    __slots__ = ()


class Driver(Protocol):
    """A DB-API driver with the address of one database."""

    @property
    def place(self) -> str:
        """The address of the database, for messages."""

    @property
    def error(self) -> type[Exception]:
        """The base class of the driver's errors."""

    def connect(self) -> Any: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class OracleOptions:
    """VENUS's options in the URL: `venus_schemas=APP,HR`, `venus_watch=database`."""

    schemas: tuple[str, ...] = ()  # none = the user's own
    watch_database: bool = False
    type_map: Mapping[str, str] = field(default_factory=dict)  # of [source.type_map]
    columns: OracleColumnChoice = field(default_factory=OracleColumnChoice)  # of [source.columns]
    limits: CutLimits = field(default_factory=CutLimits)  # of [capture]
    inline: bool = False  # of `install-triggers --mode inline`, not of the URL
    log: LogLimits = field(default_factory=LogLimits)  # of [source]


@dataclass(frozen=True, slots=True)
class ModuleDriver:
    """A driver that connects by the module python-oracledb or cx_Oracle."""

    place: str
    error: type[Exception]
    module: Any
    call: Callable[[], Any]

    def connect(self) -> Any:
        """Connect, and install the handlers that fetch every value exactly."""
        connection = self.call()
        connection.outputtypehandler = output_handler(self.module)
        connection.inputtypehandler = input_handler(self.module)
        return connection


def parse_driver_url(url: str) -> tuple[Driver, OracleOptions]:
    """Parse a URL `oracle+oracledb://user:password@host:1521/?service_name=NAME`. Messages contain no secrets."""
    parsed = sa.make_url(url)
    if parsed.drivername == "oracle":
        parsed = parsed.set(drivername="oracle+oracledb")
    if parsed.drivername not in ("oracle+oracledb", "oracle+cx_oracle"):
        raise ConfigError("[source] url: unknown driver", hint="write oracle+oracledb:// or oracle+cx_oracle://")
    parsed, options = _split_own_options(parsed)
    dialect = parsed.get_dialect()()
    try:
        module: Any = parsed.get_dialect().import_dbapi()
    except ImportError:
        hint = "pip install 'venus-cdc[oracle]'"
        if parsed.drivername.endswith("cx_oracle"):
            hint = "pip install 'setuptools>=77,<81' wheel, then pip install --no-build-isolation 'venus-cdc[cxoracle]'"
        raise ConfigError(f"[source] url: the driver of {parsed.drivername} is not installed", hint=hint) from None
    dialect.dbapi = module
    arguments, connect_options = dialect.create_connect_args(parsed)
    keywords, client = connect_arguments(connect_options)
    if client is not None:
        _start_client(module, client)
    place = f"{parsed.host or parsed.query.get('service_name', '')}/{parsed.database or ''}".strip("/") or "oracle"
    driver = ModuleDriver(place, module.Error, module, lambda: module.connect(*arguments, **keywords))
    return driver, options


def _start_client(module: Any, client: dict[str, str]) -> None:
    """Load Oracle's client for the thick mode. cx_Oracle is always thick, and has loaded it already."""
    if not hasattr(module, "init_oracle_client"):
        return
    try:
        module.init_oracle_client(**client)
    except module.Error as error:
        hint = "install Oracle's Instant Client and name its folder with lib_dir=..., or leave out thick_mode"
        raise ConfigError(f"[source] url: no thick mode: {first_line(error)}", hint=hint) from error


def _split_own_options(url: sa.URL) -> tuple[sa.URL, OracleOptions]:
    """Return a URL without VENUS's own options, and these options."""
    own = {k: str(v) for k, v in url.query.items() if k.startswith("venus_")}
    # venus_rac has no effect any more: the sequence is never ordered
    if unknown := own.keys() - {"venus_schemas", "venus_rac", "venus_watch", "venus_triggers"}:
        hint = "valid: venus_schemas=A,B, venus_watch=schema|database"
        raise ConfigError(f"[source] url: no option {sorted(unknown)[0]}", hint=hint)
    if own.get("venus_triggers", "rows") != "rows":
        hint = (
            "leave it out; if tables have such triggers, run `venus uninstall-triggers`, then `venus install-triggers`"
        )
        raise ConfigError("[source] url: venus_triggers=compound is no longer available", hint=hint)
    options = OracleOptions(
        schemas=tuple(filter(None, own.get("venus_schemas", "").split(","))),
        watch_database=own.get("venus_watch") == "database",
    )
    return url.difference_update_query(list(own)), options


def output_handler(module: Any) -> Callable[..., Any]:
    """Return the handler that fetches decimals exactly, and LOBs with their row or as locators."""
    wanted = {
        module.DB_TYPE_NUMBER: Decimal,
        module.DB_TYPE_CLOB: module.DB_TYPE_LONG,
        module.DB_TYPE_NCLOB: getattr(module, "DB_TYPE_LONG_NVARCHAR", module.DB_TYPE_LONG),
        module.DB_TYPE_BLOB: module.DB_TYPE_LONG_RAW,
    }

    def choose_fetch_variable(cursor: Any, *described: Any) -> Any:
        # python-oracledb describes a column by one object, cx_Oracle by name, type, size, precision and scale
        name, kind = (described[0].name, described[0].type_code) if len(described) == 1 else described[:2]
        if name.startswith(LOCATOR):
            return cursor.var(kind, arraysize=cursor.arraysize)  # independent of the driver's defaults.fetch_lobs
        return cursor.var(wanted[kind], arraysize=cursor.arraysize) if kind in wanted else None

    return choose_fetch_variable


def input_handler(module: Any) -> Callable[..., Any]:
    """Return the handler that binds `NationalText` in the national character set."""

    def choose_bind_variable(cursor: Any, value: Any, arraysize: int) -> Any:
        return cursor.var(module.DB_TYPE_NVARCHAR, arraysize=arraysize) if isinstance(value, NationalText) else None

    return choose_bind_variable


def error_code(error: Exception) -> str:
    """Return the error's code, such as ORA-01555 or DPY-4011; empty if it has none."""
    detail = error.args[0] if error.args else ""
    full = str(getattr(detail, "full_code", ""))
    if full and full not in _WRAPPERS:
        return full
    codes = _CODE.findall(str(detail))  # cx_Oracle has no full_code, only the text
    return next((c for c in codes if c not in _WRAPPERS), full or (codes[0] if codes else ""))


def first_line(error: Exception) -> str:
    """Return the line of the message that names the error: others wrap it, or have the address of a help page."""
    lines = str(error).strip().splitlines()
    named = (line for line in lines if (found := _CODE.search(line)) and found[0] not in _WRAPPERS)
    return next(named, lines[0] if lines else "")


#: How long until a refused password is retried: by then the database may accept it.
AGAIN_S = 300.0
HINT = "correct the password in the file, or the output of the command: each new password is tried at once"

#: The last refused login of this process, by the URL without its password: the URL, time and message.
_refused: dict[str, tuple[str, float, str]] = {}


@dataclass(frozen=True, slots=True)
class RotatingDriver:
    """A driver whose URL has a password that may change."""

    driver: Driver
    url: str
    monotonic: Callable[[], float] = time.monotonic
    side: str = "source"

    @property
    def place(self) -> str:
        return self.driver.place

    @property
    def error(self) -> type[Exception]:
        return self.driver.error

    def connect(self) -> Any:
        """Connect. Raises LoginRefused, which may be retried, if another password may help."""
        login = sa.make_url(self.url).render_as_string()
        url, at, message = _refused.get(login, ("", 0.0, ""))
        if url == self.url and self.monotonic() < at + AGAIN_S:
            raise LoginRefused(message, hint=HINT)
        try:
            connection = self.driver.connect()
        except self.driver.error as error:
            if error_action(error_code(error)) is not ErrorAction.DENIED:
                raise
            message = f"{self.side} {self.place} cannot be reached: {first_line(error)}"
            _refused[login] = self.url, self.monotonic(), message
            raise LoginRefused(message, hint=HINT) from error
        _refused.pop(login, None)
        return connection
