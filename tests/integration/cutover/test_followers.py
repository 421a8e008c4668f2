"""Tables of the application at a MariaDB or SQLite follower: equal keys, altered values, and other pipelines."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.conformance.targets.places import MariaTargetPlace, SqlitePlace
from tests.conformance.targets.playing import Stage
from tests.support.brokers.deliveries import broker, feed
from tests.support.brokers.delivery import FakeDelivery
from tests.support.brokers.feed import TEXT, Change, Feed, column, deletion, items, put, table
from tests.support.databases.mariadb import MariaServer
from tests.support.waiting import eventually
from venus.adapters.dialects.mysql.connection import MysqlConnection, parse_address
from venus.adapters.dialects.mysql.installation.handover import plan_quiet_triggers, run_statements
from venus.adapters.dialects.mysql.source import MysqlSource
from venus.adapters.targets.cutover_contract import FollowStart
from venus.adapters.targets.relational.sides import RelationalSide
from venus.adapters.targets.switching import OLD, SideRecord, SideState

__all__ = ["broker", "feed"]

pytestmark = pytest.mark.integration

LABEL = table(1, "label", column(1, "id", TEXT), column(2, "code", TEXT))
#: Definition of the application's table, whose collation treats the keys 'a' and 'A' as equal.
_DECLARED = {
    "mariadb": "CREATE TABLE label (id varchar(20) COLLATE utf8mb4_general_ci PRIMARY KEY, code char(4))",
    "sqlite": "CREATE TABLE label (id TEXT COLLATE NOCASE PRIMARY KEY, code TEXT)",
}
_FINE = "x1y2"
#: A code that MariaDB stores without its trailing blank.
_CHANGED = "12 "
#: Most rows of a cut in memory: a larger cut goes through temporary tables.
_ROWS_MAX = [pytest.param(20_000, id="in memory"), pytest.param(1, id="staged")]


@dataclass(frozen=True)
class Follower:
    """A follower: a database with a table of the application."""

    place: MariaTargetPlace | SqlitePlace
    stage: Stage

    def limit_memory(self, rows_max: int) -> Follower:
        """Return the same follower with another limit on the rows of a cut in memory."""
        return replace(self, stage=self.stage.configure(apply={"cut_group_rows_max": rows_max}))

    def run(self, text: str) -> None:
        """Execute a statement as the application does."""
        if isinstance(self.place, MariaTargetPlace):
            self.place.server.execute(text, self.place.database)
        else:
            self.place.query(text)

    def begin(self) -> None:
        """Start to follow at the end of the queue."""
        end = self.stage.feed.broker.next_offset
        side = self.stage.target.open_side()
        assert isinstance(side, RelationalSide)
        with closing(side):
            side.install()
            RelationalSide.follow(
                side,
                SideRecord(business="main", name=OLD, peer="main", state=SideState.FOLLOWING, switch=1),
                FollowStart(offset=end, epoch=1, last_sequence=0, rows=None, schemas=(LABEL,)),
            )

    def apply(self, *changes: Change) -> None:
        """Apply one cut."""
        with self.stage.follow_in_thread():
            self.stage.feed.cut(*changes)
            self.stage.wait_until_applied(self.stage.feed.broker.next_offset)

    def resync(self) -> None:
        """Make the table equal to the full data."""
        self.stage.target.resync("label")
        with self.stage.follow_in_thread():
            eventually(lambda: self.stage.table("shop.label").state == "ACTIVE", "the resync")
        assert self.stage.table("shop.label").reason == ""

    @property
    def keys(self) -> set[str]:
        """Return the keys in the table."""
        return {str(key) for (key,) in self.place.rows(self.stage.settings, LABEL)}


@pytest.fixture(params=_DECLARED)
def follower(request: pytest.FixtureRequest, tmp_path: Path, broker: FakeDelivery, feed: Feed) -> Follower:
    """Make a follower whose table has one row, 'A', like the table of the leading database."""
    place: MariaTargetPlace | SqlitePlace = SqlitePlace(tmp_path / "old.db", OLD)
    if request.param == "mariadb":
        server, url = (request.getfixturevalue(f"mariadb_{name}") for name in ("server", "database"))
        place = MariaTargetPlace(server, url, OLD)
    found = Follower(place, Stage.at(place, broker.address, feed).configure(on_error="quarantine"))
    found.run(_DECLARED[request.param])
    found.run(f"INSERT INTO label VALUES ('A', '{_FINE}')")
    feed.describe(LABEL)
    feed.cut(put("A", _FINE))
    found.begin()
    return found


@pytest.mark.parametrize("rows_max", _ROWS_MAX)
def test_a_deletion_spares_a_row_whose_key_is_equal_in_the_collation(follower: Follower, rows_max: int) -> None:
    follower = follower.limit_memory(rows_max)
    follower.apply(deletion("a"), put("b", _FINE))
    assert follower.keys == {"A", "b"}
    follower.stage.compare_tables()


@pytest.mark.parametrize("follower", ["mariadb"], indirect=True)
def test_a_value_that_the_table_would_alter_waits_in_quarantine(follower: Follower) -> None:
    follower.apply(put("b", _CHANGED), put("c", _FINE))
    assert follower.keys == {"A", "c"}
    assert [row.key for row in follower.stage.target.open_quarantine().list()] == ['{"id": "b"}']


def test_a_resync_replaces_a_row_whose_key_is_equal_in_the_collation(follower: Follower) -> None:
    follower.run("UPDATE label SET id = 'a'")
    follower.resync()
    assert follower.keys == {"A"}


@pytest.mark.parametrize("rows_max", _ROWS_MAX)
def test_a_resync_keeps_each_of_two_changes_whose_keys_are_equal_in_the_collation(
    follower: Follower, broker: FakeDelivery, rows_max: int
) -> None:
    """The snapshot of the resync still contains the key that one of the changes deletes."""
    follower = follower.limit_memory(rows_max)

    def change_after_snapshot() -> None:
        broker.after_snapshot = lambda: None
        follower.stage.feed.cut(deletion("A"), put("a", _FINE))
        follower.stage.wait_until_applied(broker.next_offset)

    broker.after_snapshot = change_after_snapshot
    follower.resync()
    assert follower.keys == {"a"}
    follower.stage.compare_tables()


def test_a_database_that_has_followed_captures_what_another_pipeline_writes(
    mariadb_server: MariaServer, mariadb_database: str, broker: FakeDelivery, feed: Feed
) -> None:
    place = MariaTargetPlace(mariadb_server, mariadb_database)
    other = Stage.at(place, broker.address, feed)
    feed.describe(items())
    feed.cut(put(1, "loaded", 1))
    other.target.load()
    with (
        closing(MysqlSource(mariadb_database)) as source,
        closing(MysqlConnection(parse_address(mariadb_database), "READ COMMITTED")) as connection,
        closing(Stage.at(MariaTargetPlace(mariadb_server, mariadb_database, OLD), "", feed).target.open_side()) as side,
    ):
        source.installer.install(["items"], [])
        side.install()
        run_statements(connection, plan_quiet_triggers(connection))
        (number,) = [t.schema.table_id for t in source.registry.read_registered_tables() if t.schema.name == "items"]
    with other.follow_in_thread():
        feed.cut(put(2, "streamed", 1))
        other.wait_until_applied(broker.next_offset)
    assert mariadb_server.execute(f"SELECT op, k1 FROM venus_l_{number:05}", place.database) == [("I", 2)]
