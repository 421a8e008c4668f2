"""Removal of everything in a text that could be a value of a row. Pure.

Databases and VENUS write values in quotes, parentheses, brackets and braces: `Key (id)=(17)`, `row {"id": 17}`,
`invalid input syntax: "abc"`. All content of these is removed, including names: a bundle with too little costs a
question, but one with too much cannot be taken back.
"""

from __future__ import annotations

import json
import re
from typing import Any

GONE = "***"
_ENCLOSED = re.compile(
    r"""'[^'\n]*'|"[^"\n]*"|\([^()\n]*\)|\[[^\[\]\n]*\]|\{[^{}\n]*\}""",
)
#: `row 17`, `key 4711-a`, `value 3.5`: the text that follows is a value.
_NAMED = re.compile(
    r"\b(row|key|keys|value|values|record|DETAIL:|CONTEXT:|PARAMETERS:|HINT:)([ :=]+)(\S.*)?$", re.IGNORECASE
)
#: A quote or parenthesis that is never closed: the rest of the line is removed.
_OPEN = re.compile(r"""(?<!\w)['"({\[](?!\*\*\*).*$|=\(.*$""")
_SQLSTATE = re.compile(r"\(([0-9A-Z]{5})\)")
#: Fields of a log line that contain no values.
_PLAIN = frozenset({"time", "level", "logger", "role", "pid", "thread", "cut", "stage", "took_ms", "exit_code", "kind"})


def scrub_text(text: str) -> str:
    """Return a text, of one or several lines, without anything that could be a value."""
    return "\n".join(_scrub_line(line) for line in text.splitlines())


def scrub_tree(found: Any) -> Any:
    """Return a document with every text in it scrubbed; numbers are counts and positions, and are kept."""
    if isinstance(found, dict):
        return {name: scrub_tree(value) for name, value in found.items()}
    if isinstance(found, list | tuple):
        return [scrub_tree(value) for value in found]
    return scrub_text(found) if isinstance(found, str) else found


def scrub_log_line(text: str) -> str:
    """Return a log line scrubbed; a line of JSON remains JSON."""
    if text.startswith("{"):
        try:
            found = json.loads(text)
        except ValueError:
            return scrub_text(text)
        if isinstance(found, dict):
            kept = {name: value if name in _PLAIN else scrub_tree(value) for name, value in found.items()}
            return json.dumps(kept, ensure_ascii=False)
    return scrub_text(text)


def _scrub_line(line: str) -> str:
    if re.match(r'\s*File "[^"]+", line \d+', line):
        return line  # a frame of a traceback, whose source line has only names of our code
    states = _SQLSTATE.findall(line)
    before = None
    while before != line:
        before, line = line, _ENCLOSED.sub(GONE, line)
    line = _NAMED.sub(rf"\1\2{GONE}", line)
    line = _OPEN.sub(GONE, line)
    return line + "".join(f" SQLSTATE {state}" for state in states)
