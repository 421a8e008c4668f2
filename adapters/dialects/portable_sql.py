"""Translation of check conditions and index expressions to PostgreSQL's SQL, or the reason why not. Pure.

A check that means something else at the target is worse than no check: it would halt a table at a row that the source
has accepted, or accept a row that the source would refuse. So only expressions that certainly mean the same in both
databases are translated. The translator visits each node of the parsed tree and considers the types of the columns.
sqlglot only parses; its generator is not used. The resulting text quotes column names, and nothing else, with double
quotes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import partial

from venus.model import Check, Kind, LeftOut, LogicalType

_ISO_MOMENT = re.compile(r"\d{4}-\d\d-\d\d([ T]\d\d:\d\d(:\d\d(\.\d+)?)?)?|\d\d:\d\d(:\d\d)?")


class NotPortableError(Exception):
    """An expression without a certain equivalent in PostgreSQL; the text is the reason."""


class ImpliedError(Exception):
    """A condition that the target's column type guarantees anyway."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grammar:
    """How to parse the expressions of a source, and where their meaning differs from PostgreSQL's."""

    name: str  # of the grammar in sqlglot
    empty_is_null: bool = False  # '' is NULL
    like_ignores_case: bool = False
    folds_ascii_only: bool = False  # lower() and upper() change only the letters A to Z
    length_in_bytes: bool = False  # LENGTH counts bytes where the parsed node is marked as binary


def add_check(
    name: str, text: str, grammar: Grammar, facts: Mapping[str, ColumnFact], checks: list[Check]
) -> LeftOut | None:
    """Add a check constraint to `checks`, or return the record of one that is not carried."""
    try:
        checks.append(Check(name=name, sql=to_postgresql(text, grammar, facts)))
    except ImpliedError:
        return None
    except NotPortableError as why:
        return LeftOut(
            what="check constraint", name=name, definition=text, reason=f"{why}{_proposal(text, grammar, facts)}"
        )
    return None


def _proposal(text: str, grammar: Grammar, facts: Mapping[str, ColumnFact]) -> str:
    """Return, for the end of a reason, a check that compares texts exactly; empty if it cannot be translated either."""
    try:
        return f"; if exact spelling is meant: CHECK ({to_postgresql(text, grammar, facts, loose=True)})"
    except (NotPortableError, ImpliedError):
        return ""


class ValueSort(Enum):
    """The sort of value that an expression yields, as far as comparisons are concerned."""

    NUMBER = "a number"
    TEXT = "text"
    BOOL = "a truth value"
    MOMENT = "a date or time"
    LITERAL = "a quoted constant"
    OTHER = "a value of its own kind"


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnFact:
    """The facts about a column that decide how the source compares its values."""

    name: str
    type: LogicalType
    #: Two texts are equal only if all of their characters are.
    exact: bool = True


@dataclass(frozen=True, slots=True)
class _Term:
    """A translated expression: its SQL, and the facts that decide what it can be compared with."""

    sql: str
    sort: ValueSort
    exact: bool = True
    kind: Kind | None = None


_SORTS = {
    **dict.fromkeys((Kind.INT, Kind.DECIMAL, Kind.FLOAT), ValueSort.NUMBER),
    Kind.TEXT: ValueSort.TEXT,
    Kind.BOOL: ValueSort.BOOL,
    **dict.fromkeys((Kind.DATE, Kind.TIME, Kind.TIMESTAMP, Kind.TIMESTAMPTZ), ValueSort.MOMENT),
}


def to_postgresql(text: str, grammar: Grammar, facts: Mapping[str, ColumnFact], *, loose: bool = False) -> str:
    """Return a condition in PostgreSQL's SQL. Raises NotPortableError.

    `facts` are the columns by lower-case name. `loose` compares texts exactly even where the source does not, for a
    proposal to the operator.
    """
    term = _translate(text, grammar, facts, loose=loose)
    if term.sort is not ValueSort.BOOL:
        raise NotPortableError("it yields no truth value")
    return term.sql


def to_postgresql_term(text: str, grammar: Grammar, facts: Mapping[str, ColumnFact]) -> str:
    """Return an index expression in PostgreSQL's SQL. Raises NotPortableError."""
    return _translate(text, grammar, facts, loose=False).sql


def _translate(text: str, grammar: Grammar, facts: Mapping[str, ColumnFact], *, loose: bool) -> _Term:
    # imported here because the parser is large and most tables have no expressions
    import sqlglot
    from sqlglot.errors import SqlglotError

    try:
        tree = sqlglot.parse_one(text, read=grammar.name)
    except SqlglotError:
        raise NotPortableError("it could not be parsed") from None
    return _Translator(grammar, facts, loose=loose).term(tree)


class _Translator:
    """Translator of one expression, with one method for each class of nodes in sqlglot."""

    def __init__(self, grammar: Grammar, facts: Mapping[str, ColumnFact], *, loose: bool) -> None:
        self._grammar = grammar
        self._facts = facts
        self._loose = loose
        comparisons = {"EQ": "=", "NEQ": "<>", "GT": ">", "GTE": ">=", "LT": "<", "LTE": "<="}
        self._rules: dict[str, Callable[..., _Term]] = {
            **{name: partial(self._translate_comparison, operator) for name, operator in comparisons.items()},
            **{
                name: partial(self._translate_arithmetic, sign)
                for name, sign in {"Add": "+", "Sub": "-", "Mul": "*"}.items()
            },
            "NullSafeEQ": partial(self._translate_comparison, "IS NOT DISTINCT FROM"),
            "And": partial(self._translate_junction, "AND"),
            "Or": partial(self._translate_junction, "OR"),
            "Not": self._translate_negation,
            "Paren": self._translate_parentheses,
            "Column": self._translate_column,
            "Literal": self._translate_literal,
            "Boolean": lambda node: _Term(str(node.this).lower(), ValueSort.BOOL),
            "Neg": lambda node: self._require_number(node.this, "-{}"),
            "Abs": lambda node: self._require_number(node.this, "abs({})"),
            "Mod": self._translate_remainder,
            "In": self._translate_in_list,
            "Between": self._translate_between,
            "Is": self._translate_null_test,
            "Like": self._translate_like,
            "Length": self._translate_length,
            "Lower": partial(self._translate_case_mapping, "lower"),
            "Upper": partial(self._translate_case_mapping, "upper"),
            "Coalesce": self._translate_coalesce,
            "Introducer": lambda node: self.term(node.expression),  # names the character set of a constant
            "Anonymous": self._translate_function,
        }

    def term(self, node: object) -> _Term:
        """Translate a node of the parsed tree with its children. Raises NotPortableError."""
        rule = self._rules.get(type(node).__name__)
        if rule is None:
            raise NotPortableError(f"{str(node)[:60]} may mean something else in PostgreSQL")
        return rule(node)

    # -- leaves ----------------------------------------------------------------------------------------------------

    def _translate_column(self, node) -> _Term:  # type: ignore[no-untyped-def]
        fact = self._facts.get(node.name.lower())
        if fact is None or node.table:
            raise NotPortableError(f"{node.name} is not a column that is carried")
        sort = _SORTS.get(fact.type.kind, ValueSort.OTHER)
        quoted = '"' + fact.name.replace('"', '""') + '"'
        return _Term(quoted, sort, fact.exact or self._loose, fact.type.kind)

    def _translate_literal(self, node) -> _Term:  # type: ignore[no-untyped-def]
        if not node.is_string:
            return _Term(node.this, ValueSort.NUMBER)
        if self._grammar.empty_is_null and not node.this:
            raise NotPortableError("'' is NULL at the source")
        return _Term("'" + node.this.replace("'", "''") + "'", ValueSort.LITERAL)

    # -- booleans -----------------------------------------------------------------------------------------------------

    def _require_boolean(self, node: object) -> _Term:
        term = self.term(node)
        if term.sort is not ValueSort.BOOL:
            raise NotPortableError(f"{term.sql} stands where PostgreSQL requires a boolean")
        return term

    def _translate_junction(self, word: str, node) -> _Term:  # type: ignore[no-untyped-def]
        return _Term(
            f"{self._require_boolean(node.left).sql} {word} {self._require_boolean(node.right).sql}", ValueSort.BOOL
        )

    def _translate_negation(self, node) -> _Term:  # type: ignore[no-untyped-def]
        return _Term(f"NOT {self._require_boolean(node.this).sql}", ValueSort.BOOL)

    def _translate_parentheses(self, node) -> _Term:  # type: ignore[no-untyped-def]
        inner = self.term(node.this)
        return _Term(f"({inner.sql})", inner.sort, inner.exact, inner.kind)

    def _translate_null_test(self, node) -> _Term:  # type: ignore[no-untyped-def]
        if type(node.expression).__name__ != "Null":
            raise NotPortableError("IS with something other than NULL")
        return _Term(f"({self.term(node.this).sql} IS NULL)", ValueSort.BOOL)

    # -- comparisons -------------------------------------------------------------------------------------------------

    def _translate_comparison(self, operator: str, node) -> _Term:  # type: ignore[no-untyped-def]
        equality = operator in ("=", "<>", "IS NOT DISTINCT FROM")
        left, right = self._make_comparable(self.term(node.left), self.term(node.right), equality=equality)
        return _Term(f"{left.sql} {operator} {right.sql}", ValueSort.BOOL)

    def _make_comparable(self, left: _Term, right: _Term, *, equality: bool) -> tuple[_Term, _Term]:
        """Return both sides so that PostgreSQL compares them as the source does. Raises NotPortableError."""
        sorts = {left.sort, right.sort}
        if ValueSort.LITERAL in sorts and left.sort is not right.sort:
            return self._check_literal(left, right, equality=equality)
        if sorts == {ValueSort.BOOL, ValueSort.NUMBER}:
            return _to_boolean(left), _to_boolean(right)
        if sorts == {ValueSort.NUMBER}:
            return left, right
        if sorts == {ValueSort.MOMENT} and left.kind is right.kind:
            return left, right
        if sorts == {ValueSort.TEXT} and equality:
            return self._require_exact(left), self._require_exact(right)
        raise NotPortableError(f"databases compare {left.sql} and {right.sql} in different ways")

    def _check_literal(self, left: _Term, right: _Term, *, equality: bool) -> tuple[_Term, _Term]:
        """Return both sides if PostgreSQL compares this constant with the value as the source does."""
        value, literal = (right, left) if left.sort is ValueSort.LITERAL else (left, right)
        if value.sort is ValueSort.TEXT:
            if not equality:
                raise NotPortableError("it orders texts, and every database has its own order")
            self._require_exact(value)
        elif value.sort is not ValueSort.MOMENT or not _ISO_MOMENT.fullmatch(literal.sql[1:-1]):
            raise NotPortableError(f"{value.sql} is {value.sort.value} and is compared with {literal.sql}")
        return left, right

    def _require_exact(self, term: _Term) -> _Term:
        """Return the term. Raises NotPortableError if the source treats different texts of it as equal."""
        if not term.exact:
            raise NotPortableError(f"the source treats different texts of {term.sql} as equal")
        return term

    def _translate_in_list(self, node) -> _Term:  # type: ignore[no-untyped-def]
        if node.args.get("query") is not None or not node.expressions:
            raise NotPortableError("it queries another table")
        value = self.term(node.this)
        listed = [self._make_comparable(value, self.term(each), equality=True)[1].sql for each in node.expressions]
        return _Term(f"{value.sql} IN ({', '.join(listed)})", ValueSort.BOOL)

    def _translate_between(self, node) -> _Term:  # type: ignore[no-untyped-def]
        value = self.term(node.this)
        low, high = (
            self._make_comparable(value, self.term(node.args[at]), equality=False)[1] for at in ("low", "high")
        )
        return _Term(f"{value.sql} BETWEEN {low.sql} AND {high.sql}", ValueSort.BOOL)

    def _translate_like(self, node) -> _Term:  # type: ignore[no-untyped-def]
        value, pattern = self.term(node.this), self.term(node.expression)
        if self._grammar.like_ignores_case:
            raise NotPortableError("LIKE ignores the case of letters at the source")
        if value.sort is not ValueSort.TEXT or pattern.sort is not ValueSort.LITERAL or "\\" in pattern.sql:
            raise NotPortableError("LIKE with something other than a column and a plain pattern")
        return _Term(f"{self._require_exact(value).sql} LIKE {pattern.sql}", ValueSort.BOOL)

    # -- arithmetic -------------------------------------------------------------------------------------------------

    def _require_number(self, node: object, shape: str) -> _Term:
        """Return a numeric term; `shape` is its SQL with a placeholder for the operand."""
        term = self.term(node)
        if term.sort is not ValueSort.NUMBER:
            raise NotPortableError(f"{term.sql} is {term.sort.value}, not a number")
        return _Term(shape.format(term.sql), ValueSort.NUMBER)

    def _translate_arithmetic(self, sign: str, node) -> _Term:  # type: ignore[no-untyped-def]
        return _Term(
            f"{self._require_number(node.left, '{}').sql} {sign} {self._require_number(node.right, '{}').sql}",
            ValueSort.NUMBER,
        )

    def _translate_remainder(self, node) -> _Term:  # type: ignore[no-untyped-def]
        left, right = self.term(node.left), self.term(node.right)
        if left.kind is not Kind.INT or not right.sql.isdigit():
            raise NotPortableError("a remainder of something other than whole numbers")
        return _Term(f"{left.sql} % {right.sql}", ValueSort.NUMBER)

    # -- text ------------------------------------------------------------------------------------------------------

    def _require_text(self, node: object) -> _Term:
        term = self.term(node)
        if term.sort is not ValueSort.TEXT:
            raise NotPortableError(f"{term.sql} is {term.sort.value}, not text")
        return term

    def _translate_length(self, node) -> _Term:  # type: ignore[no-untyped-def]
        octets = self._grammar.length_in_bytes and bool(node.args.get("binary"))
        return _Term(f"{'octet_length' if octets else 'length'}({self._require_text(node.this).sql})", ValueSort.NUMBER)

    def _translate_case_mapping(self, word: str, node) -> _Term:  # type: ignore[no-untyped-def]
        term = self._require_text(node.this)
        ascii_only = ' COLLATE "C"' if self._grammar.folds_ascii_only else ""
        return _Term(f"{word}({term.sql}{ascii_only})", ValueSort.TEXT, term.exact)

    def _translate_coalesce(self, node) -> _Term:  # type: ignore[no-untyped-def]
        first, *others = (self.term(each) for each in (node.this, *node.expressions))
        for other in others:
            self._make_comparable(first, other, equality=True)
        return _Term(f"coalesce({', '.join(t.sql for t in (first, *others))})", first.sort, first.exact, first.kind)

    def _translate_function(self, node) -> _Term:  # type: ignore[no-untyped-def]
        name = str(node.this).lower()
        if name == "json_valid" and self.term(node.expressions[0]).kind is Kind.JSON:
            raise ImpliedError
        raise NotPortableError(f"PostgreSQL has no function {name}, or one that does something else")


def _to_boolean(term: _Term) -> _Term:
    """Return the constants 0 and 1 as booleans, for a comparison with a boolean column."""
    if term.sort is ValueSort.BOOL:
        return term
    if term.sql not in ("0", "1"):
        raise NotPortableError(f"a truth value is compared with {term.sql}")
    return _Term("true" if term.sql == "1" else "false", ValueSort.BOOL)
