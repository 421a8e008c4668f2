"""With VENUS's triggers PostgreSQL refuses the application's statements exactly as it does without them."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import psycopg2
import psycopg2.extensions
import pytest

from tests.support.databases.postgres import Server, libpq
from tests.support.databases.shops import ADD_ENTRY, DELETE_ACCOUNT, PostgresShop
from tests.support.waiting import eventually
from venus.adapters.dialects.registry import open_source
from venus.config import Settings

pytestmark = pytest.mark.integration
Session = psycopg2.extensions.connection
VALUES = {"a": 7, "b": 7, "n": 1}


@pytest.fixture(params=[False, True], ids=["without-triggers", "with-triggers"])
def shop(request: pytest.FixtureRequest, postgres_server: Server, database: str) -> PostgresShop:
    made = PostgresShop(postgres_server, database, database)
    if request.param:
        with closing(open_source(Settings.model_validate({"source": {"url": database}}))) as source:
            source.installer.install(["shop.*"], [])
    return made


@pytest.fixture
def sessions(shop: PostgresShop) -> Iterator[tuple[Session, Session]]:
    with closing(psycopg2.connect(libpq(shop.url))) as one, closing(psycopg2.connect(libpq(shop.url))) as two:
        yield one, two


def is_waiting(session: Session, pid: int) -> bool:
    with session.cursor() as cursor:
        cursor.execute("SELECT cardinality(pg_blocking_pids(%s)) > 0", (pid,))
        ((found,),) = cursor.fetchall()
    return bool(found)


@pytest.mark.parametrize("ending", ["COMMIT", "ROLLBACK"])
def test_an_entry_for_an_account_that_is_being_deleted(sessions: tuple[Session, Session], ending: str) -> None:
    deleter, writer = sessions
    deleter.cursor().execute(DELETE_ACCOUNT, VALUES)
    with ThreadPoolExecutor(1) as pool:
        added = pool.submit(writer.cursor().execute, ADD_ENTRY, VALUES)
        eventually(lambda: is_waiting(deleter, writer.info.backend_pid))
        deleter.cursor().execute(ending)
        refused = added.exception(60.0)

    if ending == "COMMIT":
        assert isinstance(refused, psycopg2.errors.ForeignKeyViolation)
        assert refused.diag.constraint_name == "entry_account_fkey"
    else:
        assert refused is None
