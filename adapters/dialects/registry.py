"""Choice of a source's dialect by the scheme of its URL, and parsing of database URLs.

A new dialect needs a folder with a module `source` that defines `open_source(settings)` and `survey(settings, asked)`
(survey_contract.py), a line in `DIALECTS` (__init__.py), and a pass through the conformance suite. A driver is imported
only when its database is used. An error message never contains a part of a URL.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from importlib import import_module
from typing import Protocol, cast

import sqlalchemy as sa

from venus.adapters.dialects import DIALECTS
from venus.adapters.dialects.contract import InstallStep, Option, Source
from venus.adapters.dialects.survey_contract import Survey, Surveyor, SurveyRequest
from venus.config import Settings
from venus.errors import ConfigError

#: Hints for the two most frequent mistakes in a URL.
VARIABLE = "variables are not expanded: set VENUS_SOURCE__URL or VENUS_TARGETS__NAME__URL instead"
_PERCENT = "in a password write @ as %40 and % as %25"
_PORT_MAX = 65_535


def parse_url(url: str, option: str, form: str) -> sa.URL:
    """Parse a database URL. Raises ConfigError, which names the option `option` and the expected form `form`."""
    advice = VARIABLE if url.startswith("$") else _PERCENT
    refused = ConfigError(f"{option} is not a database URL", hint=f"{form}; {advice}")
    try:
        parsed = sa.make_url(url)
    except (sa.exc.ArgumentError, ValueError):
        # from None: these messages contain the URL, or the part of it that is not a valid port
        raise refused from None
    if "@" in (parsed.host or ""):  # part of a password, which every message would contain
        raise refused
    if fault := _find_fault(parsed):
        raise ConfigError(f"{option}: {fault}", hint="write DIALECT://USER@HOST:PORT/DATABASE")
    return parsed


def _find_fault(url: sa.URL) -> str:
    """Return what makes a URL unusable for every driver, or an empty text; the drivers' errors do not name it."""
    values = [value for given in url.query.values() for value in ([given] if isinstance(given, str) else given)]
    if any("\0" in (part or "") for part in (url.username, url.password, url.host, url.database, *values)):
        return "it contains a NUL character"
    if url.port is not None and not 0 < url.port <= _PORT_MAX:
        return f"its port is not between 1 and {_PORT_MAX}"
    hosts = [host for host in (url.host or "").split(",") if not {*host} & {*"/%:"}]  # no socket, no IPv6 address
    try:
        for host in hosts:
            host.encode("idna")
    except UnicodeError:
        return "its host is not a host name"
    return ""


_OWN_OPTION = "venus_"


def read_own_options(url: sa.URL) -> dict[str, str | tuple[str, ...]]:
    """Return the query options of a source URL that VENUS reads itself (`venus_...`); they concern capture."""
    return {name: value for name, value in url.query.items() if name.startswith(_OWN_OPTION)}


def replace_own_options(url: str, source: str, option: str) -> str:
    """Return a URL with VENUS's own options replaced by those of the URL `source`; errors name the option `option`.

    Options of another kind of database are dropped, because they mean nothing here.
    """
    parsed = parse_url(url, option, "DIALECT://USER@HOST/DATABASE")
    own = read_own_options(parsed)
    other = parse_url(source, option, "DIALECT://USER@HOST/DATABASE") if source else None
    is_same_kind = other is not None and other.get_backend_name() == parsed.get_backend_name()
    wanted = read_own_options(other) if other is not None and is_same_kind else {}
    if own == wanted:
        return url
    kept = {name: value for name, value in parsed.query.items() if name not in own}
    return parsed.set(query=kept | wanted).render_as_string(hide_password=False)


def describe_database(url: str) -> str:
    """Describe database and host of a URL for people, without user and password; a file by its path."""
    if not url:
        return ""
    parsed = parse_url(url, "url", "DIALECT://USER@HOST/DATABASE")
    query = {name: value if isinstance(value, str) else value[0] for name, value in parsed.query.items()}
    database = parsed.database or query.get("service_name") or query.get("sid") or query.get("dbname") or ""
    host = parsed.host or query.get("host") or query.get("unix_socket") or ""
    if not host:
        return database
    port = parsed.port or query.get("port")
    at = f"[{host}]" if ":" in host else host
    return f"{database or 'database'} at {at}{f':{port}' if port else ''}"


class _SourceModule(Protocol):
    """The module `source` of a dialect, as far as this module calls it."""

    def open_source(self, settings: Settings) -> Source: ...


class _AdoptingInstaller(Protocol):
    """An installer that can complete an installation that a DBA has run as a script (Option.ADOPT)."""

    def adopt(self, include: Seq[str], exclude: Seq[str]) -> list[InstallStep]: ...


class _TypeMapInstaller(Protocol):
    """An installer that can carry columns as another type than the default one (Option.TYPE_MAP)."""

    def request_types(self, type_map: Mapping[str, str], include: Seq[str], exclude: Seq[str]) -> None: ...


def open_source(settings: Settings, type_map: Mapping[str, str] | None = None) -> Source:
    """Connect to the source that `[source] url` names; `type_map` is the value of `--type-map`."""
    dialect = dialect_of(settings.source.url.get_secret_value())
    if settings.source.mode == "inline" and Option.INLINE not in options_of(dialect):
        hint = f"it is available for {_dialects_with(Option.INLINE)}; elsewhere omit --mode and [source] mode"
        raise ConfigError(f"[source] mode: inline is not available for {dialect}", hint=hint)
    for option, given in (("[source.type_map]", settings.source.type_map), ("--type-map", type_map)):
        if given and Option.TYPE_MAP not in options_of(dialect):
            raise ConfigError(
                f"{option} is not available for {dialect}", hint=f"it is for {_dialects_with(Option.TYPE_MAP)}"
            )
    if settings.source.columns != type(settings.source.columns)() and Option.COLUMNS not in options_of(dialect):
        raise ConfigError(
            f"[source.columns] is not available for {dialect}", hint=f"it is for {_dialects_with(Option.COLUMNS)}"
        )
    for needed in (Option.LOG_ROWS_MAX, Option.LOG_BYTES_MAX, Option.LOG_TABLESPACE):
        if getattr(settings.source, needed.name.lower()) and needed not in options_of(dialect):
            raise ConfigError(
                f"[source] {needed.name.lower()} is not available for {dialect}",
                hint=f"it is for {_dialects_with(needed)}",
            )
    source = cast(_SourceModule, _import_module(dialect, "source")).open_source(settings)
    if type_map:
        try:
            cast(_TypeMapInstaller, source.installer).request_types(
                type_map, settings.source.tables, settings.source.exclude
            )
        except BaseException:
            source.close()
            raise
    return source


def survey(settings: Settings, asked: SurveyRequest) -> Survey:
    """Survey the source that `[source] url` names, before or after an installation. Reads only."""
    dialect = dialect_of(settings.source.url.get_secret_value())
    return cast(Surveyor, _import_module(dialect, "source")).survey(settings, asked)


def _import_module(dialect: str, name: str) -> object:
    """Import a module of a dialect. Raises ConfigError if the database's driver is not installed."""
    try:
        return import_module(f"venus.adapters.dialects.{dialect}.{name}")
    except ModuleNotFoundError as e:
        if e.name is None or e.name.startswith("venus"):
            raise
        raise ConfigError(
            f"[source] url: the driver {e.name} is not installed", hint=f"pip install 'venus-cdc[{dialect}]'"
        ) from e


def adopt(source: Source, include: Seq[str], exclude: Seq[str]) -> list[InstallStep]:
    """Complete an installation that a DBA has run as a script. Raises ConfigError if the dialect lacks --adopt."""
    if Option.ADOPT not in options_of(source.name):
        raise ConfigError(
            f"--adopt is not available for {source.name}", hint=f"it is for {_dialects_with(Option.ADOPT)}"
        )
    return cast(_AdoptingInstaller, source.installer).adopt(include, exclude)


def options_of(dialect: str) -> frozenset[Option]:
    """Return the optional features of a dialect, without importing its driver."""
    package = import_module(f"venus.adapters.dialects.{dialect}")
    return cast(frozenset[Option], getattr(package, "OPTIONS", frozenset()))


def _dialects_with(option: Option) -> str:
    return ", ".join(sorted({dialect for dialect in DIALECTS.values() if option in options_of(dialect)}))


def dialect_of(url: str) -> str:
    """Return the dialect's folder for a URL. The URL never appears in a message, because it contains a password."""
    known = ", ".join(f"{scheme}://" for scheme in DIALECTS)
    if not url:
        raise ConfigError("no source is configured", hint=f"set [source] url to a URL of {known}")
    scheme = parse_url(url, "[source] url", f"it must start with one of {known}").get_backend_name()
    if scheme not in DIALECTS:
        raise ConfigError(f"[source] url: {scheme} is not a source that VENUS knows", hint=f"valid options are {known}")
    return DIALECTS[scheme]
