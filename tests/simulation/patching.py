"""Removes one rule from the product's code: replaces a piece of a function's text."""

from __future__ import annotations
import __future__

import importlib
import inspect
import textwrap
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceEdit:
    """Replaces the single occurrence of `old` in the function `where` by `new`.

    `where` is MODULE.CLASS.FUNCTION of venus.replication, or venus.PATH.TO.MODULE:CLASS.FUNCTION.

    An empty `old` stands for the whole function.
    """

    where: str
    old: str
    new: str


@contextmanager
def apply_edits(edits: tuple[SourceEdit, ...]) -> Iterator[None]:
    """Apply the edits within the block. Raises AssertionError if the code differs from what an edit expects."""
    with ExitStack() as undo:
        for edit in edits:
            function = function_of(edit.where)
            undo.callback(setattr, function, "__code__", function.__code__)
            function.__code__ = _edited_code(function, edit)
        yield


def function_of(where: str) -> FunctionType:
    """Return the function that an edit changes."""
    module, *path = where.split(".")
    if module == "venus":
        *folders, module = where.split(":")[0].split(".")
        found: Any = importlib.import_module(".".join((*folders, module)))
        path = where.split(":")[1].split(".")
    else:
        found = importlib.import_module(f"venus.replication.{module}")
    for name in path:
        found = inspect.getattr_static(found, name)
    found = found.fget if isinstance(found, property) else found
    assert isinstance(found, FunctionType), where
    return found


def _edited_code(function: FunctionType, edit: SourceEdit) -> CodeType:
    """Compile the function's text with the edit; return its code."""
    source = edit.new
    if edit.old:
        source = textwrap.dedent(inspect.getsource(function))
        assert source.count(edit.old) == 1, f"{edit.where} has {source.count(edit.old)} times: {edit.old}"
        source = source.replace(edit.old, edit.new).removeprefix("@property\n")
    flags = __future__.annotations.compiler_flag
    code = compile(source, f"<{edit.where} edited>", "exec", flags=flags, dont_inherit=True)
    made: dict[str, Any] = {}
    exec(code, function.__globals__, made)
    new = made[function.__name__]
    assert isinstance(new, FunctionType)
    return new.__code__
