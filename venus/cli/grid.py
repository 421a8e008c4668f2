"""Tables for people: columns where they fit, and on a narrow terminal one value below the other."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.table import Table

#: A table that would have to fold its cells is shown as a list below this width.
COLUMNS_MIN = 70


class Grid:
    """Columns and rows; how they are shown is decided when the width is known."""

    def __init__(self, columns: tuple[str, ...], rows: list[tuple[object, ...]]) -> None:
        self.columns = columns
        self.rows = rows

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        side_by_side = self._table(options.max_width)
        wanted = console.measure(side_by_side, options=options.update(width=10_000))
        folds = wanted.maximum > options.max_width
        if folds and (options.max_width < COLUMNS_MIN or wanted.minimum > options.max_width):
            yield from self._listed(options.max_width)
        else:
            yield side_by_side

    def _table(self, width: int) -> Table:
        from rich.table import Table

        shown = Table(box=None, pad_edge=False, header_style="bold")
        for number, name in enumerate(self.columns):
            numeric = any(self.rows) and all(isinstance(row[number], int | float) for row in self.rows)
            # the first column says what a row is about: it is not broken in the middle of a name
            whole = number == 0 and all(2 * len(cell(row[0])) <= width for row in self.rows)
            shown.add_column(name, justify="right" if numeric else "left", overflow="fold", no_wrap=whole)
        for row in self.rows:
            shown.add_row(*(cell(value) for value in row))
        return shown

    def _listed(self, width: int) -> Iterator[RenderableType]:
        """Show each row as its first value, and below it the others with their columns' names."""
        from rich.text import Text

        for row in self.rows:
            yield Text(cell(row[0]), style="bold", overflow="fold")
            for name, value in zip(self.columns[1:], row[1:], strict=True):
                if value is not None and cell(value):
                    line = f"{name}: {cell(value)}" if name else cell(value)
                    yield Text(textwrap.fill(line, width, initial_indent="  ", subsequent_indent="    "))


def table(*columns: str, rows: list[tuple[object, ...]]) -> Grid:
    """Return a table for people; numbers to the right."""
    return Grid(columns, rows)


def cell(value: object) -> str:
    """Return a value as a table shows it."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.1f}"
    return str(value)
