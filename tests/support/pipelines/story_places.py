"""Pipelines with sources and targets that several stories share."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.databases.mariadb import MariaServer
from tests.support.databases.postgres import Server
from tests.support.oracle.driver import driver_folder, python_path
from tests.support.pipelines.pipeline import Pipeline, with_password


@contextmanager
def sqlite_pipeline(folder: Path, server: Server) -> Iterator[Pipeline]:
    """Configure a pipeline from a SQLite file, app.db, to a new database; stop it and drop the database at the end."""
    target = server.create_database()
    made = Pipeline(folder=folder, source=f"sqlite:///{folder}/app.db", targets={"main": with_password(target)})
    made.configure()
    try:
        yield made
    finally:
        made.close()
        server.drop_database(target)


@contextmanager
def standin_pipeline(
    folder: Path, standin: MariaServer, server: Server, patch: pytest.MonkeyPatch, *, password: bool = True
) -> Iterator[Pipeline]:
    """Configure a pipeline from the Oracle stand-in, whose driver this process and the commands can import."""
    target = server.create_database()
    source = f"oracle+cx_oracle://root@127.0.0.1:{standin.port}/?service_name=SCHOOL"
    url = with_password(target) if password else target
    made = Pipeline(folder=folder, source=source, targets={"main": url})
    made.environ["PYTHONPATH"] = python_path(folder / "driver")
    patch.syspath_prepend(driver_folder(folder / "driver"))
    patch.delitem(sys.modules, "cx_Oracle", raising=False)
    made.configure()
    try:
        yield made
    finally:
        made.close()
        sys.modules.pop("cx_Oracle", None)
        server.drop_database(target)
