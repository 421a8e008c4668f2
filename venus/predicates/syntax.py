"""A predicate's text and its terms, before the table is known. Pure.

    region = 'EU' and amount >= 100 and placed between date '2026-01-01' and date '2026-12-31'

Terms joined by AND; a term is a range of one column: =, <, <=, >, >=, BETWEEN, IN, IS NULL, IS NOT NULL. Everything
else is refused, with its position in the text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from enum import Enum

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
    """Token of the text; `at` is the place of its first character, from 1."""

    sort: str
    text: str
    at: int

    @property
    def key(self) -> str:
        """The text as a keyword or sign."""
        return self.text.lower() if self.sort == "word" else self.text if self.sort == "sign" else ""


def split_words(text: str) -> list[Word]:
    """Return the words, followed by an end marker. Raises PredicateRefused."""
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


class ConstantForm(Enum):
    """Form of a constant in the text."""

    TEXT = "text"
    NUMBER = "number"
    BOOL = "boolean"
    BYTES = "bytes"


@dataclass(frozen=True, slots=True)
class Constant:
    """Constant in a predicate."""

    form: ConstantForm
    value: str | Decimal | bool | bytes
    at: int

    @property
    def sql(self) -> str:
        """The constant as it is written."""
        match self.value:
            case bool():
                return str(self.value).lower()
            case bytes():
                return f"x'{self.value.hex()}'"
            case Decimal():
                return f"{self.value:f}"
            case _:
                return "'" + self.value.replace("'", "''") + "'"


@dataclass(frozen=True, slots=True)
class Term:
    """Range of one column. `sign`: a comparison, "in", "null" or "not null"."""

    column: str
    quoted: bool  # then the name counts exactly as it is written
    at: int
    sign: str
    values: tuple[Constant, ...] = ()

    @property
    def sql(self) -> str:
        """The term in canonical form."""
        name = quote_column(self.column) if self.quoted else self.column.lower()
        if self.sign in ("null", "not null"):
            return f"{name} is {self.sign}"
        if self.sign == "in":
            return f"{name} in ({', '.join(v.sql for v in self.values)})"
        return f"{name} {self.sign} {self.values[0].sql}"


def quote_column(name: str) -> str:
    """Return a column's name as a quoted SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def to_sql(terms: tuple[Term, ...]) -> str:
    """Return the canonical text of terms; it is independent of blanks and of the case of keywords."""
    return " and ".join(term.sql for term in terms)


TEXT_CHARS_MAX = 10_000
VALUES_MAX = 1000
DIGITS_MAX = 300

_POSSIBLE = "allowed: =, <, <=, >, >=, BETWEEN, IN (...), IS NULL and IS NOT NULL of single columns, joined by AND"
_COMPARISONS = ("=", "<", "<=", ">", ">=")
_MIRRORED = {"=": "=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_NO_COLUMN = frozenset({"and", "between", "false", "in", "is", "like", "not", "null", "or", "true"})
#: Type names that may stand before a text constant; the column's type decides how the constant is read.
_TYPED = frozenset({"date", "time", "timestamp", "timestamptz"})


def parse(text: str) -> tuple[Term, ...]:
    """Return the terms of a predicate. Raises PredicateRefused with the position in the text."""
    if len(text) > TEXT_CHARS_MAX:
        raise PredicateRefused(f"{len(text):,} characters are too many, at most {TEXT_CHARS_MAX:,} are read")
    parser = _Parser(text, split_words(text))
    terms = parser.conjunction()
    parser.end()
    return terms


class _Parser:
    """Recursive-descent parser; the deepest nesting is a conjunction in parentheses."""

    def __init__(self, text: str, words: list[Word]) -> None:
        self._text = text
        self._words = words
        self._next = 0

    @property
    def _word(self) -> Word:
        """The next word, which is not consumed."""
        return self._words[self._next]

    def _take(self) -> Word:
        """Consume the next word and return it; the end marker stays."""
        word = self._word
        self._next += word.sort != "end"
        return word

    def _accept(self, key: str) -> bool:
        """Consume the next word if it is this one; return whether it was."""
        taken = self._word.key == key
        self._next += taken
        return taken

    def _refusal(self, word: Word, what: str, *, hint: str = _POSSIBLE) -> PredicateRefused:
        """Return the error at a word, with its place in the text."""
        return PredicateRefused(f"character {word.at}: {what}", hint=hint)

    def end(self) -> None:
        """Raise PredicateRefused unless everything was read."""
        word = self._word
        if word.key == "or":
            raise self._refusal(word, "OR joins two ranges into something that is not a range", hint=_or_hint())
        if word.sort != "end":
            raise self._refusal(word, f"{word.text!r} where AND or the end was expected")

    def conjunction(self) -> tuple[Term, ...]:
        """Parse terms that are joined by AND."""
        terms = list(self._item())
        while self._accept("and"):
            terms += self._item()
        return tuple(terms)

    def _item(self) -> tuple[Term, ...]:
        """Parse a term, or a conjunction in parentheses."""
        if self._word.key != "(":
            return self._term()
        opened = self._take()
        terms = self.conjunction()
        if self._word.key == "or":
            self.end()
        if not self._accept(")"):
            raise self._refusal(opened, "an unclosed parenthesis")
        return terms

    def _term(self) -> tuple[Term, ...]:
        """Parse one term; BETWEEN becomes two terms."""
        word = self._word
        if word.key == "not":
            raise self._refusal(word, "NOT turns a range into something that is not a range")
        if self._is_constant():
            return (self._reversed_term(),)
        column = self._column()
        sign = self._take()
        match sign.key:
            case "=" | "<" | "<=" | ">" | ">=":
                return (self._make_term(column, sign.key, (self._constant(),)),)
            case "between":
                low = self._constant()
                if not self._accept("and"):
                    raise self._refusal(self._word, "BETWEEN needs AND and its second constant")
                return self._make_term(column, ">=", (low,)), self._make_term(column, "<=", (self._constant(),))
            case "in":
                return (self._make_term(column, "in", self._list()),)
            case "is":
                return (self._null_test(column),)
        raise self._sign_refusal(column, sign)

    def _null_test(self, column: Word) -> Term:
        """Parse the rest of IS NULL or IS NOT NULL."""
        sign = "not null" if self._accept("not") else "null"
        if not self._accept("null"):
            raise self._refusal(self._word, "IS can be followed by NULL or NOT NULL only")
        return self._make_term(column, sign, ())

    def _sign_refusal(self, column: Word, sign: Word) -> PredicateRefused:
        """Return the error for a sign that does not compare a column with a constant."""
        if sign.key == "(":
            return self._refusal(column, f"{column.text}() is a function; a range is about the column itself")
        if sign.key in ("<>", "!=", "not"):
            return self._refusal(sign, f"{sign.text.upper()} leaves two ranges, one on either side")
        if sign.key in ("like", "ilike", "similar", "regexp", "~"):
            return self._refusal(sign, f"{sign.text.upper()} is a pattern, not a range")
        if sign.key == ".":
            return self._refusal(column, f"{column.text} is not a column; write columns without their table")
        if sign.sort == "end" or sign.key in ("and", "or", ")"):
            return self._refusal(column, f"{column.text} stands alone; compare it with a constant, as in = true")
        return self._refusal(sign, f"{sign.text!r} is not a comparison of a column with a constant")

    def _reversed_term(self) -> Term:
        """Parse a term that begins with its constant."""
        constant = self._constant()
        sign = self._take()
        if sign.key not in _COMPARISONS:
            raise self._refusal(sign, f"{sign.text!r} behind a constant; a term compares a column")
        return self._make_term(self._column(), _MIRRORED[sign.key], (constant,))

    def _make_term(self, column: Word, sign: str, values: tuple[Constant, ...]) -> Term:
        """Return a term; a quoted column name loses its quotes."""
        name = column.text[1:-1].replace('""', '"') if column.sort == "quoted" else column.text
        return Term(name, column.sort == "quoted", column.at, sign, values)

    def _column(self) -> Word:
        """Consume the name of a column. Raises PredicateRefused for any other word."""
        word = self._take()
        if word.sort == "end":
            raise self._refusal(word, "the text ends where a column was expected")
        if word.sort not in ("word", "quoted") or word.key in _NO_COLUMN:
            raise self._refusal(word, f"{word.text!r} where a column was expected")
        return word

    def _is_constant(self) -> bool:
        """Return whether the next word begins a constant."""
        word = self._word
        if word.key in _TYPED:
            return self._words[self._next + 1].sort == "text"
        return word.sort in ("text", "number", "bytes") or word.key in ("true", "false", "null")

    def _list(self) -> tuple[Constant, ...]:
        """Parse the constants of IN, in parentheses."""
        opened = self._word
        if not self._accept("("):
            raise self._refusal(opened, "IN needs its values in parentheses")
        values = [self._constant()]
        while self._accept(","):
            values.append(self._constant())
        if not self._accept(")"):
            raise self._refusal(self._word, "IN takes constants with commas between and a parenthesis at the end")
        if len(values) > VALUES_MAX:
            raise self._refusal(opened, f"{len(values):,} values are too many, at most {VALUES_MAX:,} are taken")
        return tuple(values)

    def _constant(self) -> Constant:
        """Parse a constant. Raises PredicateRefused for anything else."""
        if not self._is_constant():
            raise self._no_constant(self._word)
        word = self._take()
        if word.key in _TYPED:
            word = self._take()
        constant = _constant_of(word)
        if self._word.key in ("::", "||", "+", "-", "*", "/", "%") or self._word.sort == "number":
            raise self._refusal(self._word, f"{self._word.text!r} computes; write out the constant")
        return constant

    def _no_constant(self, word: Word) -> PredicateRefused:
        """Return the error for a word where a constant was expected."""
        if word.sort == "end":
            return self._refusal(word, "the text ends where a constant was expected")
        if word.sort in ("word", "quoted"):
            function = self._words[self._next + 1].key == "("
            what = f"{word.text}() is a function" if function else f"{word.text} is a column"
            return self._refusal(word, f"{what} where a constant was expected; text needs single quotes")
        return self._refusal(word, f"{word.text!r} where a constant was expected")


def _constant_of(word: Word) -> Constant:
    """Return the constant that a word spells. Raises PredicateRefused."""
    if word.sort == "number":
        return Constant(ConstantForm.NUMBER, _number(word), word.at)
    if word.sort == "text":
        return Constant(ConstantForm.TEXT, word.text[1:-1].replace("''", "'"), word.at)
    if word.sort == "bytes":
        try:
            return Constant(ConstantForm.BYTES, bytes.fromhex(word.text[2:-1]), word.at)
        except ValueError:
            raise PredicateRefused(f"character {word.at}: {word.text} is not hexadecimal") from None
    if word.key == "null":
        raise PredicateRefused(
            f"character {word.at}: nothing is equal to NULL, or greater or smaller", hint="write IS NULL or IS NOT NULL"
        )
    return Constant(ConstantForm.BOOL, word.key == "true", word.at)


def _number(word: Word) -> Decimal:
    """Return the number that a word spells. Raises PredicateRefused for too many digits."""
    try:
        found = Decimal(word.text)
    except InvalidOperation:
        found = Decimal("NaN")
    if not found.is_finite() or (found and abs(found.adjusted()) > DIGITS_MAX) or len(word.text) > DIGITS_MAX:
        raise PredicateRefused(f"character {word.at}: a number of more than {DIGITS_MAX} digits")
    return found


def _or_hint() -> str:
    """Return the hint for a predicate with OR."""
    return "values of one column can be listed: column IN (a, b); " + _POSSIBLE
