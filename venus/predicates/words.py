"""The text of a predicate as words, each with its place. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from venus.errors import ConfigError

_TOKEN = re.compile(
    r"""\s*(?:
        (?P<text>'(?:[^']|'')*') | (?P<bytes>[xX]'(?:[^']|'')*') | (?P<quoted>"(?:[^"]|"")+")
        | (?P<number>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?(?![\w.]))
        | (?P<word>[^\W\d][\w$\#]*) | (?P<sign><=|>=|<>|!=|::|\|\||[-+*/%=<>(),.;^&|!~?:@\[\]{}])
        | (?P<end>$) | (?P<odd>.)
    )""",
    re.VERBOSE | re.DOTALL,
)


class PredicateRefused(ConfigError):
    """A predicate is not a conjunction of ranges, or does not fit its table."""


@dataclass(frozen=True, slots=True)
class Word:
    """A piece of the text; `at` = its first character, from 1."""

    sort: str
    text: str
    at: int

    @property
    def key(self) -> str:
        """The text as a keyword or sign."""
        return self.text.lower() if self.sort == "word" else self.text if self.sort == "sign" else ""


def words_of(text: str) -> list[Word]:
    """Return the words, behind them one of the sort `end`. Raises PredicateRefused."""
    found: list[Word] = []
    at = 0
    while not found or found[-1].sort != "end":
        match = _TOKEN.match(text, at)
        assert match is not None
        assert match.lastgroup is not None
        word = Word(match.lastgroup, match[match.lastgroup], match.start(match.lastgroup) + 1)
        if word.sort == "odd":
            what = "an unclosed quotation mark" if word.text in "'\"" else "not part of SQL"
            raise PredicateRefused(f"character {word.at}: {word.text!r} is {what}")
        found.append(word)
        at = match.end()
    return found
