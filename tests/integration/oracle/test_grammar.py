"""Every statement of the Oracle dialect and of the target, for every version, read by a real grammar of PL/SQL.

A test that the grammar refuses what is broken goes with it: a parser that takes everything would prove nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest

from tests.support.oracle.plsql import Grammar
from tests.support.oracle.scripts import LIMITED, ROWS, inline_statements, running, statements, survey_statements
from tests.support.oracle.target_statements import target_statements
from venus.adapters.dialects.oracle.session.options import VERSIONS, Version
from venus.adapters.dialects.oracle.sql import NAME_BYTES_MAX

pytestmark = pytest.mark.integration

#: What this grammar does not know yet is read without it.
UNKNOWN_TO_IT = {
    r"JSON_SERIALIZE\((.*?) RETURNING CLOB\)": r"JSON_SERIALIZE(\1)",
    r"NONEDITIONABLE TRIGGER": "TRIGGER",
    r"ISOLATION_LEVEL = READ COMMITTED": "ISOLATION_LEVEL = SERIALIZABLE",
}
#: A word or sign that a statement cannot do without; taking one away must be noticed wherever it stands.
NEEDED = re.compile(r"(?<!')[()]|(?<!')\b(?:BEGIN|THEN|INTO|EACH|BY|TABLE|SET|WHEN|MODE)\b")


def known_text(text: str) -> str:
    for pattern, instead in UNKNOWN_TO_IT.items():
        text = re.sub(pattern, instead, text)
    return text


def every(versions: Sequence[Version] = VERSIONS) -> list[str]:
    installed = {s for v in versions for options in (ROWS, LIMITED) for s in statements(v, options)}
    inline = {s for v in versions for s in inline_statements(v)}
    return sorted(installed | inline | {*running(), *survey_statements()})


@pytest.mark.parametrize(
    ("versions", "some"), [(VERSIONS[-1:], 40), pytest.param(VERSIONS, 90, marks=pytest.mark.slow)], ids=["last", "all"]
)
def test_every_statement_can_be_read(plsql_grammar: Grammar, versions: Sequence[Version], some: int) -> None:
    found = {text: plsql_grammar.problem(known_text(text)) for text in every(versions)}
    assert {text: problem for text, problem in found.items() if problem} == {}
    assert len(found) > some


def test_every_statement_of_the_target_can_be_read(plsql_grammar: Grammar) -> None:
    sent = target_statements()
    assert {text: problem for text in sent if (problem := plsql_grammar.problem(text))} == {}
    assert len(sent) > 120
    names = {name for text in sent for name in re.findall(r"\bVENUS_\w+", text.upper())}
    assert max(map(len, names)) <= NAME_BYTES_MAX
    newer = re.compile(
        r"\bIF (NOT )?EXISTS\b|\bIDENTITY\b|\bFETCH FIRST\b|\bBOOLEAN\b|\bSTANDARD_HASH\b|\bELSE INSERT\b"
    )
    assert [text for text in sent if newer.search(text)] == []


@pytest.mark.slow
def test_a_statement_without_one_of_its_words_cannot(plsql_grammar: Grammar) -> None:
    broken = {
        text[: at.start()] + text[at.end() :]
        for text in [*every(), *target_statements()]
        for at in list(NEEDED.finditer(text))[:3]
        if text.startswith(("CREATE", "LOCK", "INSERT", "UPDATE")) and not text.startswith("INSERT /*")
    }
    taken = [text for text in sorted(broken) if not plsql_grammar.problem(known_text(text))]
    assert taken == []
    assert len(broken) > 60
