"""Base of the command line: plain help in the terminal's width, with commands under headings.

Typer's own help reads `[broker]` in a text as markup and drops it, and calls a flag `<bool>`. It needs Rich, which
takes longer to import than everything else that help needs.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

#: Help is not wider than this: longer lines are hard to read.
COLUMNS_MAX = 100
#: Maximum length of the first sentence of a command's help, which is its line in a list.
SUMMARY_MAX = 200
#: Below this width a column for the explanations would hold single words.
COLUMNS_TWO_MIN = 60

#: Typer's word for an argument's type, in Python's terms.
_TYPE = re.compile(r" <[^<>]*>$")

_Context: type[Any] = TyperCommand.context_class
_Formatter: type[Any] = _Context.formatter_class


class HelpFormatter(_Formatter):  # type: ignore[misc]
    """Formatter of help: names and explanations side by side, on a narrow terminal one below the other."""

    def write_dl(self, rows: Any, col_max: int = 30, col_spacing: int = 2) -> None:
        rows = [(_TYPE.sub("", name), explanation) for name, explanation in rows]
        if self.width >= COLUMNS_TWO_MIN:
            super().write_dl(rows, col_max, col_spacing)
            return
        for name, explanation in rows:
            self.write(f"{'':>{self.current_indent}}{name.rstrip()}\n")
            with self.indentation(), self.indentation():
                self.write_text(explanation)


class PlainContext(_Context):  # type: ignore[misc]
    """The context of every command."""

    formatter_class = HelpFormatter


class PlainCommand(TyperCommand):
    """A command."""

    context_class = PlainContext

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments; add the command to an error that lacks it, so that its hint names the right help."""
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            if getattr(error, "ctx", ctx) is None:
                error.ctx = ctx  # type: ignore[attr-defined]
            raise


class PlainGroup(TyperGroup):
    """A command with subcommands, which its help lists under their headings."""

    context_class = PlainContext

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the commands, by heading."""
        headings: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            command: Any = self.get_command(ctx, name)
            if command is not None and not command.hidden:
                heading = getattr(command, "rich_help_panel", None)
                heading = heading if isinstance(heading, str) else "Commands"
                headings.setdefault(heading, []).append((name, command.get_short_help_str(limit=SUMMARY_MAX)))
        widest = max((len(name) for rows in headings.values() for name, _ in rows), default=0)
        for heading, rows in headings.items():
            with formatter.section(heading):
                formatter.write_dl([(name.ljust(widest), explanation) for name, explanation in rows])


class CommandSet(typer.Typer):
    """A set of commands with plain-text help."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(
            cls=PlainGroup, rich_markup_mode=None, no_args_is_help=True, pretty_exceptions_enable=False, **settings
        )

    def command(self, name: str | None = None, **settings: Any) -> Callable[[Any], Any]:
        """Register a command; as in Typer."""
        return super().command(name, **({"cls": PlainCommand} | settings))


def help_width() -> int:
    """Return the width of help."""
    return max(20, min(shutil.get_terminal_size().columns, COLUMNS_MAX))
