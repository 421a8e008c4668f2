"""Parsing of database URLs; an error message never contains a part of the URL."""

from __future__ import annotations

import sqlalchemy as sa

from venus.errors import ConfigError

#: The two most frequent mistakes.
VARIABLE = "variables are not expanded: set VENUS_SOURCE__URL or VENUS_TARGETS__NAME__URL instead"
_PERCENT = "in a password write @ as %40 and % as %25"


def parse_url(url: str, option: str, form: str) -> sa.URL:
    """Return the parts of a URL; `option` names its place, `form` its expected form. Raises ConfigError."""
    advice = VARIABLE if url.startswith("$") else _PERCENT
    refused = ConfigError(f"{option} is not a database URL", hint=f"{form}; {advice}")
    try:
        parsed = sa.make_url(url)
    except (sa.exc.ArgumentError, ValueError):
        # from None: these messages contain the URL, or the part of it that is no port
        raise refused from None
    if "@" in (parsed.host or ""):  # the rest of a password, which every message would contain
        raise refused
    return parsed


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
