"""The commands that documents tell people to type, as they stand there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

#: A line of a console block, or code in the text, that begins with the program.
_BLOCKS = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
_TYPED = ("", "console", "bash", "sh")
_INLINE = re.compile(r"`(venus [^`\n]+(?:\n[^`\n]+)?)`")
#: What a shell takes for itself, behind a command.
_SHELL = re.compile(r"""^((?:[^"']|"[^"]*"|'[^']*')*?)\s+(?:#|>|<|\||&&|&).*$""")


def find_commands(document: str) -> list[str]:
    """Return every `venus ...` of a document: lines of blocks first, then what stands in the text."""
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
    """Return the argument lists that a command line with `a|b`, `[optional]` and `...` stands for."""
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
    """Return what a file tells people to type, each line once."""
    return list(dict.fromkeys(find_commands(path.read_text())))
