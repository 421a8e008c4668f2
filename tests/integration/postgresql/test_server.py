"""The embedded server of the other tests."""

import psycopg2

from tests.support.databases.postgres import libpq


def test_every_test_gets_an_empty_durable_database(database: str, second_database: str) -> None:
    for url in (database, second_database):
        connection = psycopg2.connect(libpq(url))
        cursor = connection.cursor()
        cursor.execute("SELECT current_setting('fsync'), (SELECT count(*) FROM pg_tables WHERE schemaname = 'public')")
        assert cursor.fetchone() == ("on", 0)
        connection.close()
