"""Suggested rules for columns whose names look personal, for `venus assess --suggest-masks`. Pure.

Only names and types are judged; no value is read. A suggestion that would make a configuration invalid is left out.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import replace

from venus.errors import ConfigError
from venus.masking.fit import find_misfit
from venus.masking.rules import RuleSet
from venus.masking.syntax import DROP, HMAC, NULL, TEXT, YEAR, ColumnRule
from venus.model import Column, Kind, TableSchema

#: By kind of content: the words in a column's name, and the rules to try in this order.
_IDENTIFIERS = (
    "account card email fax iban insurance ip login mail mobile passport phone ssn tax taxid tel telephone user "
    "username kontonummer steuernummer telefon"
)
_NAMES = (
    "address addressline firstname forename fullname givenname lastname maidenname middlename nickname street surname "
    "anschrift nachname strasse vorname"
)
_BIRTH = "birth birthdate birthday born dob geburtsdatum geburtstag"
_SECRETS = "passwd password passwort pin pwd secret token"
_NOTES = "bemerkung comment diagnosis note notes remark remarks"
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_TEXT_RULE = ColumnRule(mask=TEXT, argument="***")
_ATTEMPTS: tuple[tuple[str, tuple[ColumnRule, ...]], ...] = (
    (_SECRETS, (ColumnRule(mask=DROP),)),
    (_BIRTH, (ColumnRule(mask=YEAR), ColumnRule(mask=NULL))),
    (_IDENTIFIERS, (ColumnRule(mask=HMAC), _TEXT_RULE, ColumnRule(mask=NULL))),
    (_NAMES, (_TEXT_RULE, ColumnRule(mask=HMAC), ColumnRule(mask=NULL))),
    (_NOTES, (ColumnRule(mask=DROP),)),
)
#: Kinds whose values are no personal text: a flag that a mail was sent, a number of cards.
_HARMLESS = (Kind.BOOL, Kind.FLOAT)


def suggest_masks(schemas: Iterable[TableSchema]) -> list[str]:
    """Return the lines of `[targets.NAME.columns]` for columns whose names look personal."""
    tables = [replace(s, table_id=n) for n, s in enumerate(schemas, 1) if not s.is_heartbeat]
    found = {(t.table_id, c.name): rule for t in tables for c in t.columns if (rule := _suggest(c, t)) is not None}
    for one, other in _linked_columns(tables):
        for end, twin in ((one, other), (other, one)):
            if end in found and twin not in found:
                found[twin] = found[end]
    by_id = {t.table_id: t for t in tables}
    rules = {f"{by_id[table_id].qualified_name}.{name}": rule for (table_id, name), rule in found.items()}
    return [f'"{name}" = {_spell(rule)}' for name, rule in _accepted_rules(rules, tables).items()]


def _suggest(column: Column, table: TableSchema) -> ColumnRule | None:
    """Return the suggested rule for a column, None if it looks harmless."""
    words = _split_words(column.name)
    if column.type.kind in _HARMLESS:
        return None
    for known, attempts in _ATTEMPTS:
        if words & set(known.split()):
            return next((rule for rule in attempts if not find_misfit(rule, column, table)), None)
    return None


def _split_words(name: str) -> set[str]:
    """Return the words of a name, and neighbouring words joined: first_name and FirstName both yield firstname."""
    words = [word.lower() for word in _WORDS.findall(name)]
    return {*words, *(a + b for a, b in itertools.pairwise(words))}


def _linked_columns(tables: Seq[TableSchema]) -> Iterator[tuple[tuple[int, str], tuple[int, str]]]:
    """Yield the pairs of columns that foreign keys link."""
    by_name = {(t.namespace, t.name): t for t in tables}
    for table in tables:
        for key in table.foreign_keys:
            other = by_name.get((key.referred_namespace, key.referred_table))
            for name, referred in zip(key.columns, key.referred_columns, strict=False):
                if other is not None:
                    yield (table.table_id, name), (other.table_id, referred)


def _accepted_rules(rules: dict[str, ColumnRule], tables: Seq[TableSchema]) -> dict[str, ColumnRule]:
    """Return the rules without those that are refused."""
    left = dict(rules)
    while left:
        try:
            RuleSet(place="suggested", rules=left, key_id="suggested").resolve(tables)
        except ConfigError as error:
            refused = next((name for name in left if str(error).startswith(f"suggested.{name}: ")), None)
            if refused is None:
                return {}
            del left[refused]
        else:
            break
    return left


def _spell(rule: ColumnRule) -> str:
    """Return a rule as a value in TOML."""
    return f'{{ text = "{rule.argument}" }}' if rule.mask == TEXT else f'"{rule.mask}"'
