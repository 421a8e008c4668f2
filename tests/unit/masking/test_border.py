"""The rules at the border of a broker set: the columns they apply to, their refusals, and the tables below."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from venus.codec import schema as schemas_codec
from venus.masking.border import Border, BorderTable, flatten
from venus.masking.functions import MaskingKey
from venus.masking.rules import RuleSet
from venus.masking.syntax import parse_rule
from venus.model import Check, Column, ForeignKey, Index, Kind, LogicalType, TableSchema
from venus.network.row_filters import partial_tables

TEXT, INT = LogicalType(kind=Kind.TEXT), LogicalType(kind=Kind.INT, length=4)
KEY = MaskingKey(b"a key of more than sixteen bytes")


def schema(table_id: int, name: str, *columns: tuple[int, str, LogicalType], **more: Any) -> TableSchema:
    found = tuple(Column(name=n, number=i, type=kind, nullable=n != "id") for i, n, kind in columns)
    return TableSchema(table_id=table_id, version=1, namespace="shop", name=name, columns=found, key=("id",), **more)


PEOPLE = schema(
    1,
    "people",
    (1, "id", INT),
    (2, "mail", TEXT),
    (3, "note", TEXT),
    (4, "visits", INT),
    indexes=(Index(name="i_note", columns=("note",)),),
    checks=(Check(name="c_mail", sql="(\"mail\" <> 'secret')"),),
)
BEAT = replace(schema(9, "heartbeat", (1, "id", INT), (2, "note", TEXT)), namespace="venus")
RULES: dict[str, Any] = {"people.mail": "hmac", "*.note": "drop"}


def border(**rules: Any) -> Border:
    parsed = {name: parse_rule(value) for name, value in (rules.get("rules", RULES)).items()}
    return Border(RuleSet(place="cluster.columns.main", rules=parsed, key_id=KEY.key_id), KEY)


def fit_border(*schemas: TableSchema, rules: dict[str, Any] | None = None) -> BorderTable:
    return border(rules=rules or RULES).fit([*schemas, BEAT])[1]


def test_the_sets_below_get_a_table_as_if_it_were_the_sources() -> None:
    seen = flatten(fit_border(PEOPLE).projected[1])
    assert type(seen) is TableSchema
    assert [c.name for c in seen.columns] == ["id", "mail", "visits"]
    assert (seen.indexes, seen.checks) == ((), ())
    key = f"a broker set above changes it, by the masking key {KEY.key_id}"
    assert seen.masked_above == f"mail (hmac; {key}), note (drop; {key})"
    again = schemas_codec.from_wire(schemas_codec.to_wire(seen))
    assert (again.masked_above, [c.name for c in again.columns]) == (seen.masked_above, ["id", "mail", "visits"])


def test_the_heartbeat_and_other_tables_are_unchanged() -> None:
    found = border().fit([PEOPLE, BEAT, schema(2, "plain", (1, "id", INT))])
    assert [flatten(found[n].projected[1]).masked_above for n in (2, 9)] == ["", ""]


def test_a_column_stays_masked_when_the_source_renames_it() -> None:
    renamed = replace(
        PEOPLE, version=2, columns=tuple(replace(c, name=c.name.replace("mail", "post")) for c in PEOPLE.columns)
    )
    found = fit_border(PEOPLE, renamed)
    assert "post (hmac" in flatten(found.projected[2]).masked_above
    assert found.misfit == ""


def test_a_table_is_not_sent_from_the_first_version_that_contradicts_the_rules() -> None:
    changed = replace(PEOPLE, version=2, columns=tuple(replace(c, type=INT) for c in PEOPLE.columns))
    found = fit_border(PEOPLE, changed, replace(changed, version=3))
    assert [found.has_version(v) for v in (1, 2, 3)] == [True, False, False]
    assert found.misfit.startswith("cluster.columns.main.people.mail: shop.people.mail is neither text, uuid nor")


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        (
            {"people.id": "hmac"},
            "people.id: shop.people.id is in the key of its table, which stays as it is at a border",
        ),
        ({"people.male": "hmac"}, "people.male: shop.people never had such a column"),
        ({"people.mail": "hmac", "*.mail": "null"}, "*.mail: a column of shop.people has another rule already"),
    ],
)
def test_a_table_that_contradicts_the_rules_is_not_sent(rules: dict[str, Any], message: str) -> None:
    found = fit_border(PEOPLE, rules=rules)
    assert (found.has_version(1), dict(found.projected)) == (False, {})
    assert message in found.misfit


def test_both_ends_of_a_foreign_key_need_the_same_rule() -> None:
    link = ForeignKey(
        name="fk", columns=("mail",), referred_namespace="shop", referred_table="accounts", referred_columns=("code",)
    )
    accounts = schema(2, "accounts", (1, "id", INT), (2, "code", TEXT))
    found = border().fit([replace(PEOPLE, foreign_keys=(link,)), accounts])
    assert "foreign key fk refers to shop.accounts, which has other rules at that end" in found[1].misfit
    same = border(rules=RULES | {"accounts.code": "hmac"}).fit([replace(PEOPLE, foreign_keys=(link,)), accounts])
    assert [same[n].misfit for n in (1, 2)] == ["", ""]


def test_a_rule_about_a_missing_table_is_named() -> None:
    found = border(rules=RULES | {"peple.mail": "hmac"}).find_absent([PEOPLE])
    assert found == [
        "[cluster.columns.main] is about peple.mail, a table that this set does not have: its values would be sent as "
        "they are"
    ]


def test_masked_rows_have_another_identity_as_have_other_options() -> None:
    def identity(rules: dict[str, Any]) -> dict[int, int]:
        seen = [flatten(s) for s in fit_border(PEOPLE, rules=rules).projected.values()]
        return {n: one.digest for n, one in partial_tables((), seen).items()}

    digests = [
        identity(rules).get(1)
        for rules in ({"people.note": "keep"}, RULES, {"people.note": {"text": "a"}}, {"people.note": {"text": "b"}})
    ]
    assert digests[0] is None
    assert len(set(digests)) == 4
    assert border().digest != border(rules=RULES | {"people.visits": "null"}).digest
