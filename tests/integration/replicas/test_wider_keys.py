"""A key gets a wider type at the source: followers and mirrors take the new version, and serve its values."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from tests.support.brokers import networks
from tests.support.brokers.broker_clusters import BrokerCluster
from tests.support.brokers.etcd import EtcdCluster
from tests.support.brokers.feed import query
from tests.support.databases.postgres import Server
from tests.support.pipelines.end_to_end import EndToEnd, Loop
from venus.adapters.targets.relational.apply_session import run_apply
from venus.adapters.targets.relational.full_sync import full_sync
from venus.adapters.verify.findings import ComparisonVerdict
from venus.config import BrokerSettings, TargetSettings

pytestmark = pytest.mark.integration

SOURCE = (
    "CREATE TABLE item (id int PRIMARY KEY, v text)",
    "INSERT INTO item SELECT n, 'old' FROM generate_series(1, 50) n",
)
WIDER = ("ALTER TABLE item ALTER id TYPE bigint", "INSERT INTO item VALUES (3000000000, 'wide')")
BEHIND = (
    "UPDATE item SET v = 'changed' WHERE id IN (1, 3000000000)",
    "DELETE FROM item WHERE id = 2",
    "UPDATE item SET id = id + 4000000000 WHERE id = 3",
)
ROWS = "SELECT id, v FROM item ORDER BY id"


def test_followers_and_mirrors_take_the_new_version(
    tmp_path: Path, etcd_server: EtcdCluster, postgres_server: Server, database: str, second_database: str
) -> None:
    far = postgres_server.create_database()
    for text in SOURCE:
        query(database, text)
    with BrokerCluster(tmp_path, etcd_server) as cluster, networks.starting(tmp_path) as begin:
        addresses = tuple(broker.address for broker in cluster.brokers.values())
        with closing(EndToEnd(tmp_path, database, second_database, addresses=addresses)) as e2e:
            e2e.install()
            e2e.load()
            e2e.start()
            mirror = begin("mirror", *addresses)
            at_mirror = e2e.settings.model_copy(
                update={
                    "broker": BrokerSettings(addresses=(mirror.address,)),
                    "targets": {"far": TargetSettings.model_validate({"url": far})},
                }
            )
            e2e.wait_until_caught_up()
            networks.has(mirror.address, 1)
            full_sync(at_mirror, "far")
            loop = Loop(lambda stop: run_apply(at_mirror, "far", stop))
            try:
                for text in WIDER:
                    query(database, text)
                e2e.wait_until_caught_up()
                leader = cluster.record().leader
                assert leader is not None
                cluster.brokers[leader.broker].kill()
                for text in BEHIND:
                    query(database, text)
                e2e.wait_until_caught_up()
                e2e.until(lambda: query(far, ROWS) == query(database, ROWS), "the mirror's target to have all rows")
            finally:
                loop.end()
            assert query(second_database, ROWS) == query(database, ROWS)
            assert e2e.verify().verdict is ComparisonVerdict.SAME
    postgres_server.drop_database(far)
