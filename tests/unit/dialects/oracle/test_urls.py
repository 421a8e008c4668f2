"""The arguments that a URL of an Oracle passes to its driver."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest

from venus.adapters.dialects.oracle.session.driver import OracleOptions, parse_driver_url
from venus.adapters.dialects.registry import dialect_of
from venus.errors import ConfigError


def test_urls_of_both_drivers_have_the_same_result(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("oracledb")
    url = "oracle+oracledb://venus:secret@db:1521/?service_name=shop&venus_schemas=APP,HR&venus_rac=yes"
    driver, options = parse_driver_url(url)
    assert options == OracleOptions(schemas=("APP", "HR"))  # venus_rac, of 0.1.0, is accepted
    assert "secret" not in driver.place
    monkeypatch.setitem(sys.modules, "cx_Oracle", None)
    with pytest.raises(ConfigError, match="not installed") as raised:
        parse_driver_url("oracle+cx_oracle://venus:secret@db/?service_name=shop")
    assert "venus-cdc[cxoracle]" in raised.value.hint
    assert dialect_of("oracle+cx_oracle://venus@db") == "oracle"


@pytest.mark.parametrize("url", ["oracle+oracledb://db/?venus_nonsense=1", "oracle+other://db"])
def test_an_invalid_url_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_driver_url(url.replace("//db", "//u:secret@db"))
    assert "secret" not in str(raised.value)


class ConnectCalled(Exception):
    """The arguments of the driver's connect()."""


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], dict[str, Any]]:
    """Return the arguments that a URL passes to python-oracledb."""
    oracledb = pytest.importorskip("oracledb")
    said: dict[str, Any] = {}

    def record_connect(**given: Any) -> None:
        said.update(given)
        raise ConnectCalled

    def get(url: str) -> dict[str, Any]:
        said.clear()
        with pytest.raises(ConnectCalled):
            parse_driver_url(url)[0].connect()
        return said

    monkeypatch.setattr(oracledb, "connect", record_connect)
    monkeypatch.setattr(oracledb, "init_oracle_client", lambda **given: said.update(client=given))
    return get


_RAC = "(DESCRIPTION=(ADDRESS_LIST=(LOAD_BALANCE=ON)(ADDRESS=(PROTOCOL=TCP)(HOST=a)(PORT=1521))))"


@pytest.mark.parametrize(
    ("rest", "expected"),
    [
        ("db:1522/?service_name=shop", {"dsn": "(HOST=db)(PORT=1522))(CONNECT_DATA=(SERVICE_NAME=shop))"}),
        ("db/SHOP", {"dsn": "(CONNECT_DATA=(SID=SHOP))"}),
        ("shop_alias?config_dir=/etc/oracle", {"dsn": "shop_alias", "config_dir": "/etc/oracle"}),
        ("/?dsn=" + quote(_RAC), {"dsn": _RAC}),
        (
            "db:2484/?service_name=shop&protocol=tcps&wallet_location=/w&wallet_password=p&ssl_server_dn_match=true",
            {"dsn": "(PROTOCOL=TCPS)", "wallet_location": "/w", "wallet_password": "p", "ssl_server_dn_match": True},
        ),
        ("db/?service_name=shop&tcp_connect_timeout=5&retry_count=3", {"tcp_connect_timeout": 5.0, "retry_count": 3}),
        ("db/?service_name=shop&thick_mode=true&lib_dir=/opt/oracle", {"client": {"lib_dir": "/opt/oracle"}}),
        ("db/?service_name=shop&thick_mode=yes", {"client": {}}),
    ],
)
def test_a_url_becomes_the_drivers_arguments(
    rest: str, expected: dict[str, Any], connect: Callable[[str], dict[str, Any]]
) -> None:
    said = connect(f"oracle+oracledb://venus:secret@{rest}")
    assert (said["user"], said["password"]) == ("venus", "secret")
    assert expected.pop("dsn", "") in said["dsn"]
    assert {name: said[name] for name in expected} == expected
    assert not said.keys() & {"thick_mode", "protocol", "lib_dir"}
    assert ("client" in said) == ("client" in expected)


def test_a_proxy_user_connects_as_the_application(connect: Callable[[str], dict[str, Any]]) -> None:
    assert connect("oracle+oracledb://venus%5Bapp%5D:s@db/?service_name=shop")["user"] == "venus[app]"


@pytest.mark.parametrize(
    ("option", "complaint"),
    [
        ("thick_mode=perhaps", "thick_mode is true or false"),
        ("retry_count=often", "retry_count is a number"),
        ("protocol=udp", "protocol is tcp or tcps"),
        ("lib_dir=/opt", "lib_dir is for the thick mode"),
    ],
)
def test_an_unknown_option_of_the_url_is_refused(option: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        parse_driver_url(f"oracle+oracledb://venus:secret@db/?service_name=shop&{option}")


def test_without_oracles_client_the_thick_mode_reports_it() -> None:
    with pytest.raises(ConfigError, match="no thick mode") as raised:
        parse_driver_url("oracle+oracledb://venus:secret@db/?service_name=shop&thick_mode=true&lib_dir=/nowhere")
    assert "Instant Client" in raised.value.hint


def test_the_former_compound_trigger_is_refused_with_the_remedy() -> None:
    url = "oracle+oracledb://venus:secret@db:1521/?service_name=shop&venus_triggers="
    assert parse_driver_url(f"{url}rows")[1] == OracleOptions()
    with pytest.raises(ConfigError, match="venus_triggers=compound is no longer available") as refused:
        parse_driver_url(f"{url}compound")
    assert "venus uninstall-triggers" in refused.value.hint
