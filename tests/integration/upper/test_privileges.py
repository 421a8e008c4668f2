"""A privilege on one captured table is revoked: the table halts alone, names the grant, and continues after it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import sqlalchemy

from tests.integration.upper.shop import Shop
from tests.integration.upper.test_real_sources import _until_equal as until_equal
from tests.integration.upper.test_real_sources import running
from tests.support.brokers.ledger import read_ledger
from tests.support.brokers.servers import business_status, settings
from tests.support.databases.mariadb import MariaServer
from tests.support.databases.postgres import Server
from tests.support.waiting import eventually
from venus.adapters.dialects.registry import open_source
from venus.adapters.upper import periodic
from venus.broker.service.process import RunningBroker
from venus.config import CaptureSettings, Settings, SourceSettings
from venus.errors import Unavailable
from venus.rpc.reports import reported_problems

pytestmark = pytest.mark.integration

USER = "capturer"


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitedSource:
    """A source with the connections of its administrator and of VENUS's user."""

    shop: Shop
    url: str
    administer: Callable[[str], None]
    #: Statements to execute once the triggers are installed.
    limit: Callable[[], None] = lambda: None
    is_narrow: bool = False


@pytest.fixture(autouse=True)
def refresh_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(periodic, "REFRESH_S", 0.2)
    monkeypatch.setattr(periodic, "REFRESH_SHARE", 1)  # a slow comparison delays the next by 100 times its duration


@pytest.fixture
def postgres(postgres_server: Server, database: str) -> Iterator[LimitedSource]:
    shop = Shop(database)
    name = sqlalchemy.make_url(database).database
    for statement in (
        f"CREATE ROLE {USER} LOGIN",
        f"GRANT CREATE ON DATABASE {name} TO {USER}",
        "CREATE SCHEMA apart",
        f"GRANT USAGE ON SCHEMA public, apart TO {USER}",
        f"GRANT SELECT, TRIGGER ON customer, line TO {USER}",
    ):
        shop.run(statement)
    yield LimitedSource(shop=shop, url=postgres_server.url(str(name), USER), administer=shop.run)
    shop.run(f"DROP OWNED BY {USER} CASCADE")
    shop.run(f"DROP ROLE {USER}")


@pytest.fixture(params=["wide", "narrow"])
def mariadb(
    request: pytest.FixtureRequest, mariadb_server: MariaServer, mariadb_exact_database: str
) -> Iterator[LimitedSource]:
    """Make a MariaDB source. With `narrow`, information_schema hides a table without SELECT."""
    url = mariadb_exact_database
    name = sqlalchemy.make_url(url).database

    def administer(statement: str) -> None:
        mariadb_server.execute(statement, name)

    administer("CREATE TABLE customer (id int PRIMARY KEY, name text, note text)")
    administer("CREATE TABLE line (order_no int, pos int, item text NOT NULL, amount int, PRIMARY KEY (order_no, pos))")
    shop = Shop(url, create=False)
    user = f"{USER}@'127.0.0.1'"
    administer(f"CREATE USER {user}")
    administer(f"GRANT PROCESS ON *.* TO {user}")
    administer(f"GRANT ALL ON {name}.* TO {user}")

    def limit() -> None:
        """Grant the account the minimum, as an administrator may."""
        administer(f"REVOKE ALL ON {name}.* FROM {user}")
        others = "INSERT, UPDATE, DELETE, TRIGGER, " if request.param == "wide" else ""
        administer(f"GRANT {others}CREATE TEMPORARY TABLES ON {name}.* TO {user}")
        for (table,) in mariadb_server.execute("SHOW TABLES", name):
            own = "SELECT, INSERT, UPDATE, DELETE, TRIGGER" if table.startswith("venus_") else "SELECT, TRIGGER"
            administer(f"GRANT {own} ON {name}.{table} TO {user}")

    yield LimitedSource(
        shop=shop,
        url=mariadb_server.url(str(name), USER),
        administer=administer,
        limit=limit,
        is_narrow=request.param == "narrow",
    )
    mariadb_server.execute(f"DROP USER {USER}@'127.0.0.1'")


def settings_for_source(source: LimitedSource, broker: RunningBroker) -> Settings:
    chosen = settings(Path("unused"), address=broker.address)
    return chosen.model_copy(
        update={"source": SourceSettings.model_validate({"url": source.url}), "capture": CaptureSettings()}
    )


def problems(broker: RunningBroker) -> list[str]:
    return [said for group, said in reported_problems(business_status(broker.address), 0) if not group]


def have_other_tables_arrived(shop: Shop, broker: RunningBroker) -> bool:
    try:
        return read_ledger(broker.address).values("line") == shop.values("line")
    except (Unavailable, KeyError, StopIteration):  # no rows have arrived yet
        return False


def check_halts_alone(
    source: LimitedSource, broker: RunningBroker, harm: str, cure: str, *, filled: bool, begun: bool = False
) -> None:
    """Check that the table halts alone; `{log}` in a statement stands for the number of its log."""
    shop, chosen = source.shop, settings_for_source(source, broker)
    if not begun:
        shop.fill(20)
        shop.install(chosen)
    with closing(open_source(chosen)) as opened:
        log = next(
            f"l_{t.schema.table_id:05}" for t in opened.registry.read_registered_tables() if t.schema.name == "customer"
        )
    if not begun:
        source.limit()
    harm, cure = harm.format(log=log), cure.format(log=log)
    if not filled:
        source.administer(harm)
    with running(chosen) as adapter:
        if filled:
            until_equal(shop, broker)
            source.administer(harm)
        for _ in range(5):
            shop.write_alike()
        eventually(lambda: problems(broker))
        (said,) = problems(broker)
        assert f"customer is HALTED (may not be read: it is captured again by itself after `{cure}`)" in said
        shop.write_alike()
        eventually(lambda: have_other_tables_arrived(shop, broker))
        with closing(open_source(chosen)) as opened:
            assert opened.capture.read_backlog(), "status shows the others"
        ledger = read_ledger(broker.address)
        assert "customer" not in ledger.schemas or ledger.values("customer") != shop.values("customer")
        source.administer(cure)
        until_equal(shop, broker)
        eventually(lambda: not problems(broker))
    # a missing DELETE on the log is only noticed at COMMIT, after which nothing can be done
    assert adapter.reports[-1].connections == (2 if "DELETE ON" in harm and "mysql" in source.url else 1)


@pytest.mark.parametrize("filled", [True, False])
@pytest.mark.parametrize(
    ("harm", "cure"),
    [
        (f"REVOKE SELECT ON customer FROM {USER}", f"GRANT SELECT ON public.customer TO {USER}"),
        (f"REVOKE SELECT ON venus.{{log}} FROM {USER}", f"GRANT SELECT, DELETE ON venus.{{log}} TO {USER}"),
        (f"REVOKE DELETE ON venus.{{log}} FROM {USER}", f"GRANT SELECT, DELETE ON venus.{{log}} TO {USER}"),
        ("ALTER TABLE customer ENABLE ROW LEVEL SECURITY", f"ALTER ROLE {USER} BYPASSRLS"),
    ],
    ids=["table", "log", "emptying the log", "rows"],
)
def test_a_table_of_postgresql_that_may_not_be_read_halts_alone(
    postgres: LimitedSource, broker: RunningBroker, harm: str, cure: str, filled: bool
) -> None:
    if "{log}" in harm and not filled:
        pytest.skip("a fill reads no log")
    check_halts_alone(postgres, broker, harm, cure, filled=filled)


@pytest.mark.slow
def test_an_unreadable_log_of_mariadb_halts_its_table_alone(mariadb: LimitedSource, broker: RunningBroker) -> None:
    name = sqlalchemy.make_url(mariadb.url).database
    user, log = f"'{USER}'@'127.0.0.1'", f"{name}.venus_{{log}}"
    cure = f"GRANT SELECT, DELETE ON {log} TO {user}"
    check_halts_alone(mariadb, broker, f"REVOKE SELECT ON {log} FROM {user}", cure, filled=True)
    if mariadb.is_narrow:  # otherwise it would have DELETE for the whole database
        check_halts_alone(mariadb, broker, f"REVOKE DELETE ON {log} FROM {user}", cure, filled=True, begun=True)


def grant_columns(source: LimitedSource) -> LimitedSource:
    """Grant the columns of `customer` one by one."""
    name = sqlalchemy.make_url(source.url).database
    user = f"'{USER}'@'127.0.0.1'"

    def limit() -> None:
        source.limit()
        source.administer(f"REVOKE SELECT ON {name}.customer FROM {user}")
        source.administer(f"GRANT SELECT (id, name, note) ON {name}.customer TO {user}")

    return replace(source, limit=limit)


@pytest.mark.slow
@pytest.mark.parametrize("filled", [True, False])
def test_an_unreadable_column_of_mariadb_is_not_taken_as_dropped(
    mariadb: LimitedSource, broker: RunningBroker, filled: bool
) -> None:
    """With `wide`, information_schema shows the column, because INSERT is granted; with `narrow` it does not."""
    name = sqlalchemy.make_url(mariadb.url).database
    user = f"'{USER}'@'127.0.0.1'"
    note = f"SELECT (note) ON {name}.customer"
    check_halts_alone(
        grant_columns(mariadb), broker, f"REVOKE {note} FROM {user}", f"GRANT {note} TO {user}", filled=filled
    )
    ledger = read_ledger(broker.address)
    assert {s.version for s in ledger.versions.values() if s.name == "customer"} == {1}


@pytest.mark.slow
@pytest.mark.parametrize("filled", [True, False])
@pytest.mark.parametrize("lost", ["SELECT", "SELECT (id)", "INSERT"])
def test_an_inaccessible_table_of_mariadb_fails_no_statement_for_long(
    mariadb: LimitedSource, broker: RunningBroker, lost: str, filled: bool
) -> None:
    """Triggers run as their definer, which needs SELECT on the tables that they read, and INSERT on the log."""
    if lost == "INSERT" and not mariadb.is_narrow:
        pytest.skip("it has INSERT for the whole database")
    source = grant_columns(mariadb) if lost == "SELECT (id)" else mariadb
    shop, chosen = source.shop, settings_for_source(source, broker)
    shop.fill(20)
    shop.install(chosen)
    source.limit()
    name = sqlalchemy.make_url(mariadb.url).database
    user = f"'{USER}'@'127.0.0.1'"
    with closing(open_source(chosen)) as opened:
        log = next(
            f"venus_l_{t.schema.table_id:05}"
            for t in opened.registry.read_registered_tables()
            if t.schema.name == "customer"
        )
    place, needed = (f"{name}.{log}", "SELECT, INSERT, DELETE") if lost == "INSERT" else (f"{name}.customer", lost)

    def can_write() -> bool:
        try:
            shop.write_alike()
        except sqlalchemy.exc.OperationalError:  # Error 1142: command denied
            return False
        return True

    if not filled:
        mariadb.administer(f"REVOKE {lost} ON {place} FROM {user}")
    with running(chosen) as adapter:
        if filled:
            until_equal(shop, broker)
            mariadb.administer(f"REVOKE {lost} ON {place} FROM {user}")
        eventually(can_write)
        eventually(lambda: problems(broker))
        (said,) = problems(broker)
        grant = f"GRANT {needed} ON {place} TO {user}"
        assert f"customer is HALTED (may not be read: it is captured again by itself after `{grant}`" in said
        assert "its triggers were taken away" in said
        shop.run("UPDATE line SET amount = amount + 1")
        eventually(lambda: have_other_tables_arrived(shop, broker))
        mariadb.administer(grant)
        mariadb.administer(f"GRANT ALL ON {name}.* TO {user}")
        eventually(lambda: "customer is RESYNC (its triggers were taken away" in "".join(problems(broker)))
        shop.install(chosen)
        with closing(open_source(chosen)) as opened:
            opened.capture.restart_fill(
                next(t.schema.table_id for t in opened.registry.read_registered_tables() if t.schema.name == "customer")
            )
        until_equal(shop, broker)
        eventually(lambda: not problems(broker))
    assert adapter.reports[-1].connections == 1


@pytest.mark.slow
def test_a_trigger_of_mariadb_with_a_weak_definer_is_named(mariadb: LimitedSource, broker: RunningBroker) -> None:
    """Without the TRIGGER privilege of their definer they fail the application's statements, and cannot be dropped."""
    if not mariadb.is_narrow:
        pytest.skip("it has TRIGGER for the whole database")
    shop, chosen = mariadb.shop, settings_for_source(mariadb, broker)
    shop.fill(20)
    shop.install(chosen)
    mariadb.limit()
    name = sqlalchemy.make_url(mariadb.url).database
    user = f"'{USER}'@'127.0.0.1'"
    with running(chosen) as adapter:
        until_equal(shop, broker)
        mariadb.administer(f"REVOKE TRIGGER ON {name}.customer FROM {user}")
        eventually(lambda: problems(broker))
        (said,) = problems(broker)
        grant = f"GRANT TRIGGER ON {name}.customer TO {user}"
        assert f"after `{grant}`; until then its triggers fail the application's statements)" in said
        with pytest.raises(sqlalchemy.exc.OperationalError, match="TRIGGER command denied"):
            shop.write_alike()
        mariadb.administer(grant)
        shop.write_alike()
        until_equal(shop, broker)
        eventually(lambda: not problems(broker))
    assert adapter.reports[-1].connections == 1


def test_checks_that_a_user_of_mariadb_may_not_see_are_not_taken_as_dropped(mariadb: LimitedSource) -> None:
    mariadb.administer("ALTER TABLE line ADD CONSTRAINT fine CHECK (amount >= 0), ADD CHECK (item <> 'x')")
    mariadb.administer("ALTER TABLE customer COMMENT = 'no CHECK (it)'")
    chosen = settings(Path("unused")).model_copy(update={"source": SourceSettings.model_validate({"url": mariadb.url})})
    with closing(open_source(chosen)) as source:
        source.installer.install(["*"], [])
        before = {t.schema.name: t.schema for t in source.registry.read_registered_tables()}
    mariadb.limit()
    with closing(open_source(chosen)) as source:
        assert source.capture.refresh_schemas() == []
        assert {t.schema.name: t.schema for t in source.registry.read_registered_tables()} == before
        assert [c.name for c in before["line"].checks] == ["CONSTRAINT_1", "fine"]
        mariadb.administer("ALTER TABLE line DROP CONSTRAINT fine, DROP CONSTRAINT CONSTRAINT_1")
        (now,) = source.capture.refresh_schemas()
        assert (now.name, now.version, now.checks) == ("line", 2, ())
