"""The stand-in as a driver module, which commands find by a URL, as they would find cx_Oracle.

`driver_folder` writes a module `cx_Oracle` for the path of a test's processes. It has what SQLAlchemy's dialect and
VENUS use of cx_Oracle: makedsn(), connect(), Error and the types (cx_Oracle's documentation, "Module Interface").
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tests.support.oracle import double
from tests.support.oracle.standin import SCHEMA, Connection, StandInError, session

Error = StandInError
DB_TYPE_NUMBER, DB_TYPE_CLOB, DB_TYPE_NCLOB, DB_TYPE_BLOB = double.NUMBER, double.CLOB, double.NCLOB, double.BLOB
DB_TYPE_BINARY_DOUBLE = "binary double"
DB_TYPE_LONG, DB_TYPE_LONG_NVARCHAR, DB_TYPE_LONG_RAW = double.LONG, double.LONG_NVARCHAR, double.LONG_RAW
version = "8.3.0"

_ROOT = Path(__file__).parents[3]


def makedsn(host: str, port: int, sid: str | None = None, service_name: str | None = None) -> str:
    """Return the argument of connect()."""
    return f"{host}:{port}/{service_name or sid}"


def connect(*, user: str, dsn: str, password: str | None = None, **_: Any) -> Connection:
    """Open a session at the stand-in."""
    found = re.fullmatch(r"(.+):(\d+)/.*", dsn)
    assert found is not None
    return session(host=found[1], port=int(found[2]), user=user, password=password or "", database=SCHEMA)


def driver_folder(folder: Path) -> Path:
    """Write the module into a folder, which must come first in PYTHONPATH, before the repository."""
    folder.mkdir(exist_ok=True)
    (folder / "cx_Oracle.py").write_text("from tests.support.oracle.driver import *\n")
    return folder


def python_path(folder: Path) -> str:
    """Return the PYTHONPATH with which processes import the stand-in's driver."""
    return f"{driver_folder(folder)}:{_ROOT}"
