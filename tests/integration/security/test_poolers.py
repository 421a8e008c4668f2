"""A connection pooler that changes the session with each transaction is refused; one that keeps sessions is used."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import sqlalchemy

from tests.support.databases.pooler import pooler
from venus.adapters.dialects.postgresql.connection import PostgresConnection
from venus.adapters.targets.postgresql.session import TargetSession
from venus.errors import ConfigError

pytestmark = pytest.mark.integration


def source(url: str) -> None:
    connection = PostgresConnection(url)
    assert connection.row("SELECT current_setting('search_path')") == ("pg_catalog",)
    connection.close()


def target(url: str) -> None:
    session = TargetSession(url, application="test")
    assert session.row("SELECT current_setting('lock_timeout')") == ("0",)
    session.close()


@pytest.mark.parametrize("by_transaction", [True, False])
@pytest.mark.parametrize("use", [source, target])
def test_only_a_pooler_that_keeps_sessions_is_used(
    database: str, use: Callable[[str], None], by_transaction: bool
) -> None:
    at = sqlalchemy.make_url(database)
    with pooler(Path(str(at.query["host"])) / ".s.PGSQL.5432", by_transaction=by_transaction) as port:
        url = f"postgresql://postgres@127.0.0.1:{port}/{at.database}?sslmode=disable&gssencmode=disable"
        if not by_transaction:
            use(url)
            return
        with pytest.raises(ConfigError, match="through a connection pooler in transaction mode") as refused:
            use(url)
        assert "pool_mode = session" in refused.value.hint
