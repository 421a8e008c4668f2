"""A captured PostgreSQL database to which other pipelines write: only its follower's changes are not captured."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

import pytest
import sqlalchemy

from tests.conformance.targets.places import PostgresPlace
from tests.conformance.targets.playing import Stage
from tests.support.brokers.deliveries import broker, feed
from tests.support.brokers.delivery import FakeDelivery
from tests.support.brokers.feed import Feed, items, put, query
from tests.support.waiting import eventually
from venus.adapters.dialects.contract import RegisteredTable
from venus.adapters.dialects.postgresql.source import PostgresSource
from venus.adapters.targets.cutover_contract import FollowStart
from venus.adapters.targets.postgresql.cutover.side import PostgresSide
from venus.adapters.targets.postgresql.database import PostgresDatabase
from venus.adapters.targets.postgresql.split_writer import open_split_writer
from venus.adapters.targets.switching import SideRecord, SideState
from venus.cli.prove.follower import Follower

__all__ = ["broker", "feed"]

pytestmark = pytest.mark.integration

#: Key of the database that was the target of the first direction.
NEW = "new"
RECORD = SideRecord(business="main", name=NEW, peer="@source", state=SideState.FOLLOWING, switch=0)


@dataclass(frozen=True)
class Chain:
    """A database that is target `other` of one pipeline, and the source of another one."""

    url: str
    broker: FakeDelivery
    feed: Feed
    other: Stage

    @property
    def follower(self) -> Stage:
        """Return the same database as the follower of a pair."""
        return Stage.at(PostgresPlace(self.url, NEW), self.broker.address, self.feed)

    def open_side(self) -> PostgresSide:
        """Open the database as one of a pair."""
        side = self.follower.target.open_side()
        assert isinstance(side, PostgresSide)
        side.install()
        return side

    def follow(self, *, rejects: bool = False) -> None:
        """Let the database follow as one of a pair, from the end of the queue on."""
        with closing(self.open_side()) as side:
            start = FollowStart(offset=self.broker.next_offset, epoch=1, last_sequence=0, rows=None, schemas=(items(),))
            side.follow(RECORD, start)
            if rejects:
                side.reject_writes(RECORD, [items()])

    def apply(self, stage: Stage, key: int) -> None:
        """Apply one new row by this pipeline."""
        with stage.follow_in_thread():
            self.feed.cut(put(key, "streamed", 1))
            stage.wait_until_applied(self.broker.next_offset)

    @property
    def keys(self) -> set[str]:
        """Return the keys in the table."""
        return {key for (key,) in query(self.url, "SELECT id::text FROM shop.items")}


@pytest.fixture(params=["replica", "deferred"])
def writer(request: pytest.FixtureRequest, database: str) -> Iterator[str]:
    """Return the URL by which targets connect: their role may or may not disable triggers."""
    if request.param == "replica":
        yield database
        return
    url = sqlalchemy.make_url(database)
    role = f"writer_of_{url.database}"
    query(database, f"CREATE ROLE {role} LOGIN; GRANT CREATE ON DATABASE {url.database} TO {role}")
    yield url.set(username=role).render_as_string(hide_password=False)
    query(database, f"DROP OWNED BY {role} CASCADE; DROP ROLE {role}")


@pytest.fixture
def chain(writer: str, broker: FakeDelivery, feed: Feed) -> Chain:
    """Load one row by the other pipeline."""
    other = Stage.at(PostgresPlace(writer), broker.address, feed)
    feed.describe(items())
    feed.cut(put(1, "loaded", 1))
    other.target.load()
    return Chain(writer, broker, feed, other)


@pytest.fixture
def source(database: str) -> Iterator[PostgresSource]:
    with closing(PostgresSource(database)) as opened:
        yield opened


def install(source: PostgresSource) -> Follower:
    """Capture the table, and read its rows."""
    source.installer.install(["shop.items"], [])
    follower = Follower(source)
    follower.drain()
    return follower


def captured_keys(follower: Follower) -> set[str]:
    """Read the changes, and return the keys that they leave at the next target."""
    follower.drain()
    return {str(key[0]) for key in follower.rows("items")}


def registered_table(source: PostgresSource) -> RegisteredTable:
    return next(t for t in source.registry.read_registered_tables() if t.schema.name == "items")


def test_what_another_pipeline_applies_is_captured(chain: Chain, source: PostgresSource) -> None:
    follower = install(source)
    chain.apply(chain.other, 2)
    assert captured_keys(follower) == {"1", "2"}


@pytest.fixture
def capturer(database: str) -> Iterator[str]:
    """Return the URL of a role that owns no table and may create triggers."""
    url = sqlalchemy.make_url(database)
    role = f"capturer_of_{url.database}"
    query(database, f"CREATE ROLE {role} LOGIN; GRANT CREATE ON DATABASE {url.database} TO {role}")
    yield url.set(username=role).render_as_string(hide_password=False)
    query(database, f"DROP OWNED BY {role} CASCADE; DROP ROLE {role}")


def test_a_role_that_cannot_make_triggers_always_fire_learns_it_before(
    chain: Chain, database: str, capturer: str
) -> None:
    role = sqlalchemy.make_url(capturer).username
    query(database, f"GRANT USAGE ON SCHEMA shop TO {role}; GRANT SELECT, TRIGGER ON shop.items TO {role}")
    query(database, f"GRANT USAGE, CREATE ON SCHEMA venus TO {role}")
    with closing(PostgresSource(capturer)) as source:
        found = [f for f in source.installer.check(["shop.items"], []) if f.blocks]
        assert [(f.where, f.message.split(":")[0]) for f in found] == [("shop.items", "belongs to another role")]
        query(database, found[0].remedy)
        assert not [f for f in source.installer.check(["shop.items"], []) if f.blocks]
        follower = install(source)
        chain.apply(chain.other, 2)
        assert captured_keys(follower) == {"1", "2"}
        query(database, f"REVOKE {sqlalchemy.make_url(chain.url).username} FROM {role}")
        assert not [f for f in source.installer.check(["shop.items"], []) if f.blocks], "the triggers fire already"


def test_triggers_that_always_fire_by_option_need_the_owner_too(database: str, capturer: str) -> None:
    query(database, "CREATE SCHEMA shop; CREATE TABLE shop.items (id int PRIMARY KEY)")
    role = sqlalchemy.make_url(capturer).username
    query(database, f"GRANT USAGE ON SCHEMA shop TO {role}; GRANT SELECT, TRIGGER ON shop.items TO {role}")
    for option, expected in (("false", []), ("true", ["shop.items"])):
        with closing(PostgresSource(f"{capturer}&venus_always={option}")) as source:
            assert [f.where for f in source.installer.check(["shop.items"], []) if f.blocks] == expected


def test_changes_that_the_follower_of_a_pair_applies_are_not_captured(chain: Chain, source: PostgresSource) -> None:
    follower = install(source)
    chain.follow()
    chain.apply(chain.follower, 2)
    assert chain.keys == {"1", "2"}
    assert captured_keys(follower) == {"1"}
    chain.apply(chain.other, 3)
    assert captured_keys(follower) == {"1", "2", "3"}  # the other pipeline has applied 2 as well


def test_tables_that_another_pipeline_has_begun_to_write_are_read_again(
    database: str, broker: FakeDelivery, feed: Feed, source: PostgresSource
) -> None:
    """Its changes may have passed triggers that are not ENABLE ALWAYS."""
    query(database, "CREATE SCHEMA shop; CREATE TABLE shop.items (id bigint PRIMARY KEY, label text, amount bigint)")
    follower = install(source)
    other = Stage.at(PostgresPlace(database), broker.address, feed)
    feed.describe(items())
    feed.cut(put(1, "loaded", 1))
    other.target.load()
    source.capture.refresh_schemas()
    assert registered_table(source).state == "RESYNC"
    assert "install-triggers" in registered_table(source).reason
    source.installer.install(["shop.items"], [])
    assert all(step.exists for step in source.installer.install(["shop.items"], []))
    Chain(database, broker, feed, other).apply(other, 2)
    assert "2" in captured_keys(follower)


@pytest.mark.parametrize("how", ["follower", "cut over"])
def test_a_target_that_no_other_pipeline_writes_needs_no_triggers_that_fire_always(
    chain: Chain, database: str, source: PostgresSource, how: str
) -> None:
    if how == "follower":
        chain.follow()
        query(database, "DELETE FROM venus.applied WHERE group_name = 'main/a'")
    else:
        query(database, "INSERT INTO venus.cutover VALUES ('main/a', 'DONE', 1, 1, '{}')")
    install(source)
    states = "SELECT DISTINCT tgenabled FROM pg_trigger WHERE tgrelid = 'shop.items'::regclass AND NOT tgisinternal"
    assert query(database, states) == [("O",)]


def test_triggers_stay_as_they_are_when_the_other_pipeline_ends(chain: Chain, source: PostgresSource) -> None:
    install(source)
    query(chain.url, "DELETE FROM venus.applied")
    source.capture.refresh_schemas()
    assert registered_table(source).state == "ACTIVE"
    assert all(step.exists for step in source.installer.install(["shop.items"], []))


@pytest.mark.parametrize("is_alone", [True, False])
def test_triggers_of_release_0_1_0_have_missed_the_changes_of_other_pipelines(
    chain: Chain, database: str, source: PostgresSource, is_alone: bool
) -> None:
    install(source)
    number = registered_table(source).schema.table_id
    if is_alone:
        query(chain.url, "DELETE FROM venus.applied")
    ((text,),) = query(database, f"SELECT pg_get_functiondef('venus.f_{number:05}'::regproc)")
    query(database, text.replace("venus.follows", "venus.apply"))
    source.capture.refresh_schemas()
    assert registered_table(source).state == ("ACTIVE" if is_alone else "RESYNC")
    ((now,),) = query(database, f"SELECT prosrc FROM pg_proc WHERE proname = 'f_{number:05}'")
    assert ("venus.follows" in now) == is_alone


def test_a_database_that_follows_rejects_what_another_pipeline_applies(chain: Chain) -> None:
    chain.follow(rejects=True)
    chain.apply(chain.follower, 2)
    with chain.other.follow_in_thread() as reports:
        eventually(lambda: any("rejects writes" in report.error for report in reports), "the rejection")
    assert chain.keys == {"1", "2"}
    assert query(chain.url, "SELECT label FROM shop.items WHERE id = 1") == [("loaded",)]


def test_a_running_pipeline_continues_when_its_target_begins_to_reject_writes(chain: Chain) -> None:
    chain.follow()
    query(chain.url, "DELETE FROM venus.side")
    stage = chain.follower
    with stage.follow_in_thread():
        chain.feed.cut(put(2, "before", 1))
        stage.wait_until_applied(chain.broker.next_offset)
        with closing(chain.open_side()) as side:
            side.reject_writes(RECORD, [items()])
        chain.feed.cut(put(3, "after", 1))
        stage.wait_until_applied(chain.broker.next_offset)
    assert chain.keys == {"1", "2", "3"}


def test_all_sessions_of_the_follower_and_no_other_ones_are_marked(chain: Chain) -> None:
    chain.follow()
    found = {}
    for name in (NEW, "a"):
        target = PostgresDatabase((chain.follower if name == NEW else chain.other).settings, name)
        opened = [target.connect(purpose) for purpose in ("apply", "control", "resync", "load")]
        opened.append(open_split_writer(target.url, application="venus load", business="main", target=name).session)
        opened.append(open_split_writer(target.url, application="venus load", business="other", target=NEW).session)
        found[name] = [session.row("SELECT current_setting('venus.follows', true)") for session in opened]
        for session in opened:
            session.close()
    assert found == {NEW: [("on",)] * 5 + [(None,)], "a": [(None,)] * 6}
