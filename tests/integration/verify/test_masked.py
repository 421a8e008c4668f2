"""A target with masked columns and keys is compared with the broker's rows, which the comparison masks too."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.brokers import networks
from tests.support.brokers.servers import business_status
from tests.support.brokers.servers import settings as broker_settings
from tests.support.masked_values import SECRET, mask_by_hand
from tests.support.pipelines.end_to_end import EndToEnd, end_to_end, run_at
from venus.adapters.targets.relational.full_sync import full_sync
from venus.adapters.upper.capture import run_capture_fill
from venus.adapters.verify.findings import HIDDEN, VerifyResult, write_html
from venus.adapters.verify.repair import run_repair
from venus.broker.service.process import start_in_thread
from venus.config import BrokerSettings, TargetSettings
from venus.errors import ConfigError
from venus.masking.syntax import ColumnRule

pytestmark = pytest.mark.integration

TABLES = (
    "CREATE TABLE people (id varchar(60) PRIMARY KEY, email text UNIQUE, note text, born date)",
    "CREATE TABLE parcel (id int PRIMARY KEY, person varchar(60) REFERENCES people (id), place text)",
    "CREATE TABLE plain (id int PRIMARY KEY, v text)",
    "INSERT INTO people SELECT 'plain' || n, 'plain' || n || '@x', 'plain', date '2001-05-06' + n"
    " FROM generate_series(1, 200) n",
    "INSERT INTO parcel SELECT n, 'plain' || n, 'plain place' FROM generate_series(1, 200) n",
    "INSERT INTO plain VALUES (1, 'a')",
)
RULES: dict[str, Any] = {
    "people.id": "hmac",
    "people.email": {"mask": "hmac", "rename": "mail"},
    "people.note": "drop",
    "people.born": "year",
    "parcel.person": "hmac",
    "parcel.place": {"truncate": 1},
}


@pytest.fixture
def e2e(tmp_path: Path, database: str, second_database: str) -> Iterator[EndToEnd]:
    run_at(database, *TABLES)
    key_file = tmp_path / "masking.key"
    key_file.write_bytes(SECRET)
    key_file.chmod(0o600)
    with end_to_end(tmp_path, database, second_database) as made:
        given = {**made.settings.targets["main"].model_dump(by_alias=True), "columns": RULES}
        target = TargetSettings.model_validate(given | {"masking_key_file": str(key_file)})
        made.settings = made.settings.model_copy(update={"targets": {"main": target}})
        made.install()
        made.load()
        made.start()
        made.wait_until_caught_up()
        yield made


def html_report(result: VerifyResult, folder: Path) -> str:
    write_html(result, folder / "report.html")
    return (folder / "report.html").read_text(encoding="utf-8")


def mask(value: str) -> str:
    return str(mask_by_hand(ColumnRule(mask="hmac"), "text", value))


def test_equal_rows_are_the_same_while_the_source_changes(e2e: EndToEnd, tmp_path: Path) -> None:
    for n in range(5):
        run_at(
            e2e.source,
            f"UPDATE people SET email = 'plain new {n}' WHERE id = 'plain{n + 1}'",
            f"DELETE FROM parcel WHERE id = {n + 50}",
            f"DELETE FROM people WHERE id = 'plain{n + 50}'",
            f"INSERT INTO people VALUES ('plain later {n}', NULL, NULL, NULL)",
        )
    found = e2e.verify()
    e2e.wait_until_caught_up()
    again = e2e.verify()
    assert [(r.verdict.name, r.differences, r.undecided_rows) for r in (found, again)] == [("SAME", [], [])] * 2
    legs = {(t.table, t.leg) for t in again.tables}
    assert legs == {
        ("public.plain", "source - target"),
        *(
            (f"public.{name}", leg)
            for name in ("people", "parcel")
            for leg in ("full data - target", "source - full data")
        ),
    }
    notes = "\n".join(note for t in again.tables for note in t.notes)
    assert "email (hmac, renamed to mail), note (drop), born (year); masking key" in notes
    report = html_report(again, tmp_path)
    assert "masking key" in report
    assert SECRET.decode() not in report


def test_differences_are_found_and_shown_masked(e2e: EndToEnd, tmp_path: Path) -> None:
    key, other = mask("plain7"), mask("plain9")
    e2e.at_target(
        "SET session_replication_role = replica",
        f"UPDATE people SET mail = 'other' WHERE id = '{key}'",
        f"DELETE FROM people WHERE id = '{other}'",
        "INSERT INTO people VALUES ('an extra row', NULL, NULL)",
        "UPDATE parcel SET place = 'y' WHERE id = 3",
    )
    run_at(
        e2e.source,
        "ALTER TABLE people DISABLE TRIGGER ALL",
        "UPDATE people SET note = 'plain secret' WHERE id = 'plain11'",
    )
    found = e2e.verify(wait_s=5.0)
    by_key = {next(iter(d.key.values())): (d.kind.value, d.fault.value) for d in found.differences}
    assert by_key == {
        key: ("different", "apply"),
        other: ("missing", "apply"),
        "an extra row": ("extra", "apply"),
        "3": ("different", "apply"),
        HIDDEN: ("different", "capture"),
    }
    assert "plain" not in html_report(found, tmp_path).replace("public.plain", "").replace("in plain", "")
    done = run_repair(e2e.settings, "main", found, wait_s=1.0)
    assert len(done.left) == 5
    assert all("`venus resync public." in row.reason for row in done.left)


def test_a_different_masking_key_is_reported_in_place_of_differences(e2e: EndToEnd, tmp_path: Path) -> None:
    other = tmp_path / "other.key"
    other.write_bytes(b"z" * 40)
    other.chmod(0o600)
    target = e2e.settings.targets["main"].model_copy(update={"masking_key_file": str(other)})
    e2e.settings = e2e.settings.model_copy(update={"targets": {"main": target}})
    found = e2e.verify(tables=("people",))
    assert (found.verdict.name, found.differences) == ("UNDECIDED", [])
    assert "its rows are masked by the key" in found.undecided_rows[0].reason


def test_a_condition_in_sql_is_refused_for_a_masked_table(e2e: EndToEnd) -> None:
    with pytest.raises(ConfigError, match=r"columns of public\.people are masked, dropped or renamed at the target"):
        e2e.verify(where="id = 'plain7'", tables=("people",))


def test_a_target_below_a_border_is_compared_with_its_sets_full_data(
    tmp_path: Path, database: str, second_database: str
) -> None:
    run_at(database, *TABLES)
    key_file = tmp_path / "border.key"
    key_file.write_bytes(SECRET)
    key_file.chmod(0o600)
    columns = {"main": {"people.email": "hmac", "people.note": "drop"}}
    cluster = {"set": "home", "columns": columns, "masking_key_file": str(key_file)}
    with ExitStack() as stack:
        home = start_in_thread(broker_settings(tmp_path / "home", cluster=cluster, free_bytes_min=0))
        stack.callback(home.stop)
        e2e = EndToEnd(tmp_path, database, second_database, addresses=(home.address,))
        stack.callback(e2e.close)
        at_home = e2e.settings
        e2e.install()
        run_capture_fill(e2e.settings, threading.Event())
        below = networks.start(tmp_path / "below", home.address)
        stack.callback(below.stop)
        networks.has(below.address, business_status(home.address).next_offset)
        e2e.settings = at_home.model_copy(update={"broker": BrokerSettings(addresses=(below.address,))})
        full_sync(e2e.settings, "main")
        found = e2e.verify()
        assert {(t.table, t.leg) for t in found.tables} == {
            ("public.people", "full data - target"),
            ("public.parcel", "source - target"),
            ("public.plain", "source - target"),
        }
        assert found.verdict.name == "SAME"
        assert any(
            "public.people is not compared with the source, whose values a set above masks" in n for n in found.notes
        )
        run_at(second_database, "UPDATE people SET email = 'other' WHERE id = 'plain7'")
        assert [next(iter(d.key.values())) for d in e2e.verify().differences] == ["plain7"]
        (refused,) = e2e.verify(leg="source", tables=("people",)).undecided_rows
        assert "a set above masks its columns (email (hmac; a broker set above changes it" in refused.reason
        e2e.settings = at_home
        (other,) = e2e.verify(leg="target", tables=("people",)).undecided_rows
        assert "this broker set masks its columns otherwise" in other.reason
