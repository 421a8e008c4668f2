"""bench/FIGURES.md: the last run of each figure, with its day and the load of the machine."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.figures.figure import Figure, FigureResult

PAGE = Path(__file__).parents[1] / "FIGURES.md"
HEAD = """# Figures

The last run of each figure, written by `python -m bench.all --write`; bench/README.md says what each one measures and
under which conditions. Brokers, clients, databases and peers share the cores of one machine.
"""


def section(figure: Figure, findings: Sequence[FigureResult], conditions: str) -> str:
    """Return one figure's section of the page; `conditions` says when and where it was measured."""
    rows = [
        f"| {_cell(f.what)} | {_cell(f.paper)} | {_cell(f.peer)} | {_cell(f.ours)} | {_cell(f.goal)} |"
        f" {'met' if f.met else '**missed**'} |"
        for f in findings
    ]
    table = ["| what | paper | peer | VENUS | goal | |", "|---|---|---|---|---|---|", *rows]
    return "\n".join([f"## {figure.id}: {figure.title}", conditions, "", *table, ""])


def merge_sections(page: str, sections: Mapping[str, str], order: Sequence[str]) -> str:
    """Return the page with these sections, by id, in place of the earlier ones; all other sections stay."""
    parts = {part.split(":")[0]: f"## {part}" for part in re.split(r"^## ", page, flags=re.MULTILINE)[1:]}
    parts |= sections
    return "\n".join([HEAD, *(parts[name].rstrip() + "\n" for name in order if name in parts)])


def _cell(text: str) -> str:
    """Return a text that fits into a cell of a Markdown table."""
    return text.replace("|", "/").replace("\n", " ")
