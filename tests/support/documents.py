"""The commands in documents, exactly as a user would type them."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

#: A line of a console block, or inline code, that begins with the program's name.
_BLOCKS = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
_TYPED = ("", "console", "bash", "sh")
_INLINE = re.compile(r"`(venus [^`\n]+(?:\n[^`\n]+)?)`")
#: Shell syntax after a command.
_SHELL = re.compile(r"""^((?:[^"']|"[^"]*"|'[^']*')*?)\s+(?:#|>|<|\||&&|&).*$""")


def find_commands(document: str) -> list[str]:
    """Return every `venus ...` of a document: lines of code blocks first, then inline code."""
    lines = [
        line.strip().removeprefix("$ ").removeprefix("! ")
        for language, block in _BLOCKS.findall(document)
        if language in _TYPED
        for line in block.replace("\\\n", " ").splitlines()
    ]
    found = [line for line in lines if line.startswith("venus ")]
    found += [" ".join(code.split()) for code in _INLINE.findall(_BLOCKS.sub("", document))]
    return [_SHELL.sub(r"\1", line) for line in found]


def alternatives(command: str) -> list[list[str]]:
    """Return all argument lists of a command line with `a|b`, `[optional]` and `...`."""
    whole = command.replace("...", " ").replace("…", " ")
    spelled = [re.sub(r"\[[^\]]*\]", " ", whole), re.sub(r"[\[\]]", " ", whole)] if "[" in whole else [whole]
    found: list[list[str]] = []
    for one in spelled:
        lines: list[list[str]] = [[]]
        for word in shlex.split(one):
            parts = word.split("|") if "|" in word and "=" not in word else [word]
            lines = [[*line, part] for line in lines for part in parts]
        found += [line for line in lines if line not in found]
    return found


def read(path: Path) -> list[str]:
    """Return the commands of a file, each line once."""
    return list(dict.fromkeys(find_commands(path.read_text())))
