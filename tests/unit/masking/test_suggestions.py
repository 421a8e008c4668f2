"""Columns that look personal, for each of which the suggested rule would be accepted."""

from __future__ import annotations

import tomllib
from dataclasses import replace

from venus.masking.rules import RuleSet
from venus.masking.suggestions import suggest_masks
from venus.masking.syntax import parse_rule
from venus.model import Column, ForeignKey, Index, Kind, LogicalType, TableSchema

KINDS = {
    "text": LogicalType(kind=Kind.TEXT),
    "short": LogicalType(kind=Kind.TEXT, length=10),
    "int": LogicalType(kind=Kind.INT, length=8),
    "date": LogicalType(kind=Kind.DATE),
    "bool": LogicalType(kind=Kind.BOOL),
}


def table(name: str, key: str, **columns: str) -> TableSchema:
    made = tuple(Column(name=n, number=i, type=KINDS[kind]) for i, (n, kind) in enumerate(columns.items(), 1))
    return TableSchema(table_id=0, version=1, namespace="app", name=name, columns=made, key=(key,))


PEOPLE = replace(
    table(
        "people",
        "login",
        login="text",
        FirstName="text",
        street="short",
        e_mail="text",
        birth_date="date",
        dob="text",
        mail_sent="bool",
        phone="int",
        password_hash="text",
        amount="int",
        iban="short",
    ),
    indexes=(Index(name="u", columns=("e_mail",), unique=True),),
)
VISITS = replace(
    table("visits", "id", id="int", visitor="text", ip="text"),
    foreign_keys=(
        ForeignKey(
            name="fk",
            columns=("visitor",),
            referred_namespace="app",
            referred_table="people",
            referred_columns=("login",),
        ),
    ),
)
SHORT = replace(
    VISITS,
    name="short",
    columns=tuple(replace(c, type=KINDS["short"]) if c.name == "visitor" else c for c in VISITS.columns),
)


def suggestions(*tables: TableSchema) -> dict[str, object]:
    return dict(tomllib.loads("\n".join(suggest_masks(tables))))


def test_names_that_look_personal_get_a_rule_for_their_type() -> None:
    assert suggestions(PEOPLE, VISITS) == {
        "app.people.login": "hmac",
        "app.people.FirstName": {"text": "***"},
        "app.people.street": {"text": "***"},
        "app.people.e_mail": "hmac",
        "app.people.birth_date": "year",
        "app.people.dob": "null",
        "app.people.phone": "null",
        "app.people.password_hash": "drop",
        "app.people.iban": {"text": "***"},
        "app.visits.visitor": "hmac",  # the other end of a foreign key
        "app.visits.ip": "hmac",
    }


def test_a_rule_that_would_be_refused_is_not_suggested() -> None:
    found = suggestions(PEOPLE, SHORT)  # one end of the foreign key is too short for an hmac
    assert "app.people.login" not in found
    assert "app.short.visitor" not in found
    assert "app.people.e_mail" in found


def test_every_suggestion_is_accepted() -> None:
    tables = [replace(t, table_id=n) for n, t in enumerate((PEOPLE, VISITS), 1)]
    rules = {name: parse_rule(value) for name, value in suggestions(PEOPLE, VISITS).items()}
    assert RuleSet(place="p", rules=rules, key_id="k").resolve(tables)


def test_a_table_without_personal_columns_gets_no_suggestion() -> None:
    assert suggest_masks([table("sums", "id", id="int", amount="int")]) == []
