"""The rules for columns: the refusal of each bad one, and a table as the target gets it."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from venus.errors import ConfigError
from venus.masking.projection import ProjectedSchema, describe_columns, project_schema
from venus.masking.rules import RuleSet, TableColumns
from venus.masking.syntax import parse_rule
from venus.model import Check, Column, ForeignKey, Index, Kind, LogicalType, OwnType, TableSchema

TEXT, UUID, INT = LogicalType(kind=Kind.TEXT), LogicalType(kind=Kind.UUID), LogicalType(kind=Kind.INT, length=4)
CITEXT, MOOD = LogicalType(kind=Kind.NATIVE, name="citext"), LogicalType(kind=Kind.NATIVE, name="public.mood")


def column(name: str, number: int, kind: LogicalType = TEXT, **more: Any) -> Column:
    return Column(name=name, number=number, type=kind, **more)


CUSTOMERS = TableSchema(
    table_id=1,
    version=1,
    namespace="shop",
    name="customers",
    columns=(
        column("code", 1, nullable=False),
        column("email", 2),
        column("alias", 3, CITEXT),
        column("born", 4, LogicalType(kind=Kind.DATE)),
        column("mood", 5, MOOD),
        column("zip", 6, replace(TEXT, length=5)),
        column("note", 7, default_sql="'plain default'"),
        column("visits", 8, INT),
        column("created_by", 9, default_sql="'me'"),
        column("nick", 10, CITEXT),
    ),
    key=("code",),
    indexes=(
        Index(name="u_email", columns=("email",), unique=True),
        Index(name="u_nick", columns=("nick",), unique=True),
        Index(name="i_born", columns=("born",)),
        Index(name="i_note", columns=("note", "zip")),
        Index(name="i_lower", columns=("note",), definition='(lower("note"))'),
    ),
    checks=(Check(name="c_note", sql='("note" <> \'"zip"\')'), Check(name="c_zip", sql='(length("zip") = 5)')),
    types=(OwnType(namespace="public", name="mood", sql_name="public.mood", labels=("sad", "happy")),),
)
ORDERS = TableSchema(
    table_id=2,
    version=1,
    namespace="shop",
    name="orders",
    columns=(column("id", 1, INT), column("customer", 2), column("created_by", 3)),
    key=("id",),
    foreign_keys=(
        ForeignKey(
            name="fk_customer",
            columns=("customer",),
            referred_namespace="shop",
            referred_table="customers",
            referred_columns=("code",),
        ),
    ),
)
BOTH_ENDS = {"customers.code": "hmac", "orders.customer": "hmac"}


def rule_set(rules: dict[str, Any], new_columns: str = "carry", key_id: str = "ab12cd34") -> RuleSet:
    parsed = {name: parse_rule(value) for name, value in rules.items()}
    return RuleSet(place="targets.a.columns", rules=parsed, new_columns=new_columns, key_id=key_id)


def project(rules: dict[str, Any], **more: Any) -> list[TableSchema]:
    found = rule_set(rules, **more).resolve([CUSTOMERS, ORDERS])
    return [project_schema(s, found.get(s.table_id, TableColumns())) for s in (CUSTOMERS, ORDERS)]


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a column that is not there": ({"customers.mail": "hmac"}, "customers.mail: shop.customers has no column mail"),
    "a table that is not there": ({"custmers.email": "hmac"}, "there is no table custmers"),
    "a column of no table": ({"*.created": "hmac"}, "no table has a column created"),
    "no column": ({"email": "hmac"}, 'write "TABLE.COLUMN"'),
    "two rules by two names": ({"customers.note": "null", "shop.customers.note": "drop"}, "has a rule already"),
    "two rules by a pattern": ({"*.created_by": "null", "orders.created_by": "drop"}, "has a rule already"),
    "a key that would merge": ({"customers.code": {"constant": "x"}}, "is in the key: only hmac"),
    "a truncated key": ({"customers.code": {"truncate": 3}}, "is in the key: only hmac"),
    "a key without a value": ({"customers.code": "null"}, "is in the key: only hmac"),
    "a dropped key": ({"customers.code": "drop"}, "a key column cannot be dropped"),
    "a unique column": ({"customers.email": {"text": "x"}}, "is in unique index u_email: only hmac"),
    "a unique citext": ({"customers.nick": "hmac"}, "is citext and in unique index u_nick"),
    "a foreign key": ({"orders.customer": "null"}, "is in foreign key fk_customer: only hmac"),
    "one end of a foreign key": ({"orders.customer": "hmac"}, "have different rules"),
    "the other end": ({"customers.code": "hmac"}, "have different rules"),
    "an hmac of an integer": ({"customers.visits": "hmac"}, "is neither text, uuid nor binary"),
    "an hmac of an enum": ({"customers.mood": "hmac"}, "is neither text, uuid nor binary"),
    "an hmac that is too long": ({"customers.zip": "hmac"}, "holds 5 characters, and an hmac has 32"),
    "the year of a text": ({"customers.note": "year"}, "is no date"),
    "a part of an integer": ({"customers.visits": {"truncate": 2}}, "is no text"),
    "a text for an integer": ({"customers.visits": {"text": "x"}}, "is no text"),
    "a text that is too long": ({"customers.zip": {"text": "123456"}}, "holds 5 characters, and the text has 6"),
    "a constant of another type": ({"customers.visits": {"constant": "x"}}, "'x' is no such value"),
    "a constant beyond its type": ({"customers.visits": {"constant": 2**31}}, "is no such value"),
    "a day that is none": ({"customers.born": {"constant": "May"}}, "'May' is no such value"),
    "a label that is none": ({"customers.mood": {"constant": "angry"}}, "is an enum without the label 'angry'"),
    "a name that is taken": ({"customers.note": {"rename": "Email"}}, "two columns called"),
    "two new names": ({"customers.note": {"rename": "n"}, "customers.zip": {"rename": "n"}}, "two columns called n"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_bad_rule_is_refused_with_its_position(what: str) -> None:
    rules, message = REFUSED[what]
    with pytest.raises(ConfigError) as refused:
        rule_set(rules).resolve([CUSTOMERS, ORDERS])
    place = str(refused.value).split(":")[0]
    assert place.removeprefix("targets.a.columns.") in rules
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_hmac_without_a_key_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"targets\.a\.masking_key_file is not set"):
        project(BOTH_ENDS, key_id="")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("hmack", "^is no rule .did you mean hmac"),
        ({"truncate": 0}, "at least 1"),
        ({"truncate": True}, "at least 1"),
        ({"constant": "x", "text": "y"}, "has constant and text"),
        ({"rename": ""}, "needs the new name"),
        ({"renam": "x"}, "did you mean"),
        ({"constant": None}, "needs a value"),
        ({}, "write"),
        (7, "write"),
        ({"mask": "drop"}, "^has mask = 'drop': write"),
        ({"mask": "hmack"}, "^has mask = 'hmack' .did you mean hmac"),
    ],
)
def test_syntax_is_checked(value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_rule(value)


def test_a_rule_may_name_a_table_that_is_created_later() -> None:
    rules = rule_set({"later.email": "hmac"})
    assert rules.resolve([CUSTOMERS, ORDERS], elsewhere=["shop.later"]) == {}
    with pytest.raises(ConfigError, match="there is no table later"):
        rules.resolve([CUSTOMERS, ORDERS])


def test_a_table_is_described_as_the_target_gets_it() -> None:
    rules: dict[str, Any] = BOTH_ENDS | {
        "customers.code": {"mask": "hmac", "rename": "id"},
        "customers.email": {"rename": "mail"},
        "customers.alias": "hmac",
        "customers.note": "drop",
        "customers.zip": {"rename": "post", "truncate": 2},
        "*.created_by": {"constant": "venus"},
    }
    customers, orders = project(rules)
    assert isinstance(customers, ProjectedSchema)
    assert customers.key == ("id",)
    assert [c.name for c in customers.columns] == [
        "id",
        "mail",
        "alias",
        "born",
        "mood",
        "post",
        "visits",
        "created_by",
        "nick",
    ]
    assert [(i.name, i.columns) for i in customers.indexes] == [
        ("u_email", ("mail",)),
        ("u_nick", ("nick",)),
        ("i_born", ("born",)),
    ]
    assert customers.checks == ()
    assert {left.name for left in customers.left_out} == {"i_note", "i_lower", "c_note", "c_zip"}
    defaults = {c.name: c.default_sql for c in customers.columns}
    assert defaults["created_by"] == "'venus'"
    assert orders.foreign_keys[0].referred_columns == ("id",)
    assert customers.masks_key
    text = describe_columns(customers)
    assert "code (hmac, renamed to id)" in text
    assert text.endswith("masking key ab12cd34")
    assert customers.identity == (("id", 1),)


def test_checks_use_a_new_column_name_and_keep_constants() -> None:
    customers, _ = project({"customers.note": {"rename": "remark"}, "customers.zip": {"rename": "post"}})
    assert [c.sql for c in customers.checks] == ['("remark" <> \'"zip"\')', '(length("post") = 5)']
    assert [i.definition for i in customers.indexes if i.definition] == ['(lower("remark"))']


@pytest.mark.parametrize("new_columns", ["carry", "drop", "halt"])
def test_a_new_column_is_treated_as_configured(new_columns: str) -> None:
    rules = rule_set({"*.created_by": "null", "customers.note": "drop"}, new_columns=new_columns)
    first = project_schema(CUSTOMERS, rules.resolve([CUSTOMERS])[1])
    renamed = [replace(c, name="remark") if c.name == "note" else c for c in CUSTOMERS.columns]
    later = replace(CUSTOMERS, version=2, columns=(*renamed, column("phone", 11)), indexes=(), checks=())
    assert isinstance(first, ProjectedSchema)
    columns = rules.follow(first.source, first.rules, later)
    second = project_schema(later, columns)
    names = [c.name for c in second.columns]
    assert "remark" not in names  # a column that is renamed at the source stays dropped
    assert ("phone" in names) is (new_columns == "carry")
    assert isinstance(second, ProjectedSchema)
    assert second.undecided_columns == (() if new_columns == "carry" else ("phone",))
    # a rule names it, so it is no longer undecided
    kept = rule_set({"customers.phone": "keep"}, new_columns=new_columns).follow(first.source, first.rules, later)
    assert "phone" in [c.name for c in project_schema(later, kept).columns]


@pytest.mark.parametrize("seed", range(40))
def test_stored_rules_are_read_as_they_were_written(seed: int) -> None:
    rng = random.Random(seed)
    names = rng.sample(["null", "drop", "keep"], 3)
    rules: dict[str, Any] = {
        f"customers.{name}": what for name, what in zip(("note", "visits", "born"), names, strict=True)
    }
    rules["customers.alias"] = rng.choice(["hmac", {"rename": "käse", "text": '"{\n'}, {"truncate": 9}])
    found = rule_set(rules).resolve([CUSTOMERS]).get(1, TableColumns())
    assert TableColumns.from_text(found.to_text()) == found
    assert project_schema(CUSTOMERS, TableColumns.from_text(found.to_text())) == project_schema(CUSTOMERS, found)
