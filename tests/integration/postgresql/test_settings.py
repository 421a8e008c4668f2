"""What settings of the source's database, or of the application's sessions there, must not change."""

from __future__ import annotations

from contextlib import closing

import pytest
import sqlalchemy

from tests.integration.postgresql.conftest import Sql, Start, state
from tests.support.follower import Follower
from venus.adapters.dialects.postgresql.source import PostgresSource

pytestmark = pytest.mark.integration


def test_a_fill_gets_past_null_in_a_key(sql: Sql, database: str) -> None:
    sql("CREATE TABLE t (k text[] PRIMARY KEY)")
    sql("""INSERT INTO t VALUES ('{a,NULL}'), ('{a,"NULL"}'), ('{a,NULL,b}'), ('{z,NULL}')""")
    sql(f"ALTER DATABASE {sqlalchemy.make_url(database).database} SET array_nulls = off")
    with closing(PostgresSource(database)) as source:
        source.install(["*"], [])
        follower = Follower(source)
        for _ in range(10):
            follower.cut(fill_rows=1)
        assert not follower.due()
        assert len(follower.rows("t")) == 4


@pytest.mark.parametrize("strings", ["on", "off"])
def test_backslashes_in_names_are_read_as_such_where_they_would_escape(strings: str, sql: Sql, capture: Start) -> None:
    sql(r"""CREATE TABLE "C:\new" ("k\n'x" int PRIMARY KEY, v text)""")
    sql(r"""CREATE TABLE parted ("k\n'x" int PRIMARY KEY, v text) PARTITION BY RANGE ("k\n'x")""")
    sql("CREATE TABLE low PARTITION OF parted FOR VALUES FROM (0) TO (10)")
    sql("CREATE TABLE high PARTITION OF parted FOR VALUES FROM (10) TO (20)")
    follower = capture()
    # the second makes the triggers look closer
    sql(f"SET escape_string_warning = off; SET standard_conforming_strings = {strings}; SET quote_all_identifiers = on")
    sql(r"""INSERT INTO "C:\new" VALUES (1, 'a')""")
    sql(r"""UPDATE "C:\new" SET v = 'b'""")
    sql("INSERT INTO parted VALUES (1, 'a'), (11, 'b')")
    sql("TRUNCATE low")
    follower.drain()
    assert [state(follower, name) for name in (r"C:\new", "parted")] == [("ACTIVE", "")] * 2
    assert follower.rows(r"C:\new") == {("1",): {r"k\n'x": "1", "v": "b"}}
    assert follower.rows("parted") == {("11",): {r"k\n'x": "11", "v": "b"}}
