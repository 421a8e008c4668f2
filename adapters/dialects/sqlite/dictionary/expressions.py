"""Terms and conditions in the text of CREATE INDEX and CREATE TABLE. Pure.

SQLite's pragmas name the columns of an index, but they do not show its expressions or the condition of a partial index.
Both are needed to find the rows that REPLACE would remove through the index.
"""

from __future__ import annotations

import re

_TOKEN = re.compile(
    r"""
      '(?:[^']|'')*' | "(?:[^"]|"")*" | `(?:[^`]|``)*` | \[[^\]]*\]   # strings and quoted names
    | --[^\n]*(?:\n|$) | /\*.*?(?:\*/|$)                                # comments
    | [A-Za-z_\x80-\U0010ffff][\w$\x80-\U0010ffff]*
    | .
    """,
    re.VERBOSE | re.DOTALL,
)


def _tokenise(sql: str) -> list[str]:
    return [t for t in _TOKEN.findall(sql) if not t.startswith(("--", "/*"))]


def _split_body(sql: str) -> tuple[list[list[str]], list[str]]:
    """Return the tokens of each term between the index's parentheses, and the tokens after them."""
    tokens = _tokenise(sql)
    start = tokens.index("(")
    depth, terms, current = 0, [], []  # type: ignore[var-annotated]
    for at in range(start + 1, len(tokens)):
        token = tokens[at]
        if token == ")" and depth == 0:
            return [*terms, current], tokens[at + 1 :]
        depth += (token == "(") - (token == ")")
        if token == "," and depth == 0:
            terms.append(current)
            current = []
        else:
            current.append(token)
    return [*terms, current], []


def parse_index_terms(sql: str) -> tuple[str, ...]:
    """Return the indexed terms without ASC and DESC. COLLATE stays, because it is part of the expression."""
    return tuple(_strip_direction("".join(term).strip()) for term in _split_body(sql)[0])


def _strip_direction(term: str) -> str:
    return re.sub(r"\s(ASC|DESC)\s*$", "", term, flags=re.IGNORECASE).strip()


def parse_index_condition(sql: str) -> str:
    """Return the condition of a partial index, empty if it has none."""
    rest = "".join(_split_body(sql)[1]).strip()
    return rest[len("WHERE") :].strip() if rest.upper().startswith("WHERE") else ""


def parse_checks(sql: str) -> list[tuple[str, str]]:
    """Return (name, condition) of each CHECK in a CREATE TABLE; the name is empty where it has none."""
    tokens = _tokenise(sql)
    words = [at for at, token in enumerate(tokens) if not token.isspace()]
    found = []
    for n, at in enumerate(words):
        if tokens[at].upper() != "CHECK" or n + 1 == len(words) or tokens[words[n + 1]] != "(":
            continue
        named = n >= 2 and tokens[words[n - 2]].upper() == "CONSTRAINT"
        found.append((_unquote(tokens[words[n - 1]]) if named else "", _text_in_parentheses(tokens, words[n + 1])))
    return found


def _text_in_parentheses(tokens: list[str], opening: int) -> str:
    """Return the text between an opening parenthesis and the matching closing one."""
    depth = 0
    for at in range(opening, len(tokens)):
        depth += (tokens[at] == "(") - (tokens[at] == ")")
        if not depth:
            return "".join(tokens[opening + 1 : at]).strip()
    return "".join(tokens[opening + 1 :]).strip()


def find_names(*texts: str) -> set[str]:
    """Return every name in these expressions, unquoted and in lower case, function names included."""
    tokens = [token for text in texts for token in _tokenise(text)]
    return {_unquote(token).lower() for token in tokens if token[0].isalpha() or token[0] in '_"`[' or token[0] > "~"}


def _unquote(token: str) -> str:
    if token[0] == "[":
        return token[1:-1]
    return token[1:-1].replace(token[0] * 2, token[0]) if token[0] in '"`' else token
