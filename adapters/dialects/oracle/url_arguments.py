"""The options of a URL beyond user, host and service as the driver's arguments: thick mode, wallet, TLS, times. Pure.

SQLAlchemy passes the query part of the URL on as text. python-oracledb expects booleans and numbers, and the protocol
inside the connect descriptor (its documentation: "Connecting to Oracle Database", "Enabling Thick mode").
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from venus.errors import ConfigError

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
