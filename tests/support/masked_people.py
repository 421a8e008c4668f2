"""People and orders at a target whose columns are masked, dropped and renamed, and the expected rows."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from tests.support.brokers.feed import (
    INT,
    Feed,
    column,
    deletion,
    make_referring_schema,
    put,
    query,
    rows_at,
    settings_for,
    table,
    unique_label,
)
from tests.support.masked_values import SECRET, mask_by_hand
from venus.adapters.targets.columns import TargetColumns
from venus.adapters.targets.relational.control import read_progress
from venus.adapters.targets.relational.full_sync import full_sync
from venus.config import Settings, TargetSettings
from venus.masking.syntax import ColumnRule, parse_rule
from venus.model import Kind, LogicalType, TableSchema

DATE = LogicalType(kind=Kind.DATE)
PEOPLE = unique_label(
    table(
        1, "people", column(1, "id"), column(2, "label"), column(3, "note"), column(4, "born", DATE), column(5, "tag")
    )
)
ORDERS = make_referring_schema(
    table(2, "orders", column(1, "id", INT), column(2, "person"), column(3, "tag")), "person", PEOPLE
)
RULES: dict[str, Any] = {
    "people.id": "hmac",
    "people.label": "hmac",
    "people.note": "drop",
    "people.born": "year",
    "orders.person": {"mask": "hmac", "rename": "who"},
    "*.tag": {"text": "***"},
}


def write_key(path: Path, secret: bytes) -> Path:
    """Write a file with the masking key; return its path."""
    path.write_bytes(secret + b"\n")
    path.chmod(0o600)
    return path


def person(rng: random.Random, n: int) -> tuple[Any, ...]:
    """Return random columns of a person, in plain text."""
    label = None if rng.random() < 0.1 else f"plain{n}@{rng.randint(1, 10**9)}"
    return label, rng.choice((None, "a plain note")), rng.choice((None, "1984-05-06", "2001-12-31")), f"plain{n % 3}"


def begin(feed: Feed, database: str, key_file: Path, **options: Any) -> Settings:
    """Load a target with 60 people and an order each."""
    settings = write_people(feed, database, key_file, **options)
    full_sync(settings, "a")
    return settings


def write_people(feed: Feed, database: str, key_file: Path, **options: Any) -> Settings:
    """Write 60 people with an order each to the broker."""
    rng = random.Random(1)
    feed.describe(PEOPLE, ORDERS)
    feed.cut(*(put(f"plain{n}", *person(rng, n)) for n in range(60)))
    feed.cut(*(put(n, f"plain{n}", f"plain{n % 3}", table=2) for n in range(60)))
    given = {"columns": RULES, "masking_key_file": str(key_file)} | options
    return settings_for(feed.broker.address, {"a": database}, **given)


def write(feed: Feed, cuts: int, seed: int) -> None:
    """Write cuts with updates, deletions, changed keys and one emptied table."""
    rng = random.Random(seed)
    for n in range(cuts):
        keys = [f"plain{rng.randint(0, 90)}" for _ in range(6)]
        feed.cut(*(put(1000 * seed + 10 * n + i, key, "plain0", table=2) for i, key in enumerate(keys)))
        feed.cut(*(deletion(key) if rng.random() < 0.3 else put(key, *person(rng, 1000 * seed + n)) for key in keys))
        old, new = f"plain{rng.randint(0, 90)}", f"plain{100 * seed + n}"
        feed.cut(deletion(old), put(new, *person(rng, 7000 * seed + n)))  # the update changes the key
        if n == cuts // 2:
            feed.truncate(2, *(put(k, f"plain{k}", None, table=2) for k in range(10)))


def expected_rows(feed: Feed, schema: TableSchema, rules: dict[str, Any], secret: bytes = SECRET) -> dict[Any, Any]:
    """Return the rows that the target must have, computed in plain Python."""
    width = len(schema.key)
    found = [(c, rule_of(schema.name, c.name, rules)) for c in schema.wire_columns]
    rows = {}
    for key, row in feed.model[schema.table_id].items():
        masked = [
            mask_by_hand(rule, "text", value, secret)
            for (_, rule), value in zip(found, (*key, *row), strict=True)
            if rule.mask != "drop"
        ]
        rows[tuple(masked[:width])] = tuple(masked[width:])
    return rows


def rule_of(table_name: str, name: str, rules: dict[str, Any]) -> ColumnRule:
    """Return the rule for a column, which may be given for all tables by `*.NAME`."""
    value = rules.get(f"{table_name}.{name}", rules.get(f"*.{name}"))
    return parse_rule(value) if value is not None else ColumnRule()


def at_target(database: str, settings: Settings, schema: TableSchema) -> dict[Any, Any]:
    """Return the rows of a table at the target under its own column names."""
    columns = TargetColumns(settings, "a")
    described = [PEOPLE if schema.table_id != 1 else schema, ORDERS if schema.table_id != 2 else schema]
    projected = next(s for s in columns.project_all(described) if s.table_id == schema.table_id)
    return rows_at(database, projected)


def is_equal(database: str, settings: Settings, feed: Feed, rules: dict[str, Any], secret: bytes = SECRET) -> bool:
    """Return whether every table at the target has the expected masked rows."""
    return all(
        at_target(database, settings, feed.schemas[t]) == expected_rows(feed, feed.schemas[t], rules, secret)
        for t in feed.schemas
    )


def with_options(settings: Settings, **options: Any) -> Settings:
    """Return the settings with other options of the target."""
    target = settings.targets["a"]
    changed = TargetSettings.model_validate({**target.model_dump(by_alias=True), **options})
    return settings.model_copy(update={"targets": {"a": changed}})


def is_settled(settings: Settings) -> bool:
    """Return whether no table of the target resyncs or is halted."""
    found = read_progress(settings, "a")
    return not found.resyncing and all(t.state == "ACTIVE" for t in found.tables)


def text_at(database: str) -> str:
    """Return everything that a target's database contains, as text."""
    names = query(
        database,
        "SELECT format('%I.%I', schemaname, tablename) FROM pg_tables"
        " WHERE schemaname NOT IN ('pg_catalog', 'information_schema')",
    )
    return "\n".join(str(query(database, f"SELECT t::text FROM {name} t")) for (name,) in names)
