"""The report of `venus prove` as one self-contained HTML file and as JSON, which a user can send in."""

from __future__ import annotations

import json
from collections.abc import Iterable
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template

from venus.adapters.assess.html import page_style
from venus.cli.prove.results import FAILED, PASSED, CaseResult, ProofReport, ReportSection
from venus.errors import VenusError
from venus.text.formatting import format_figure

_TONES = {PASSED: "good", FAILED: "bad"}
PRODUCTS = {"postgresql": "PostgreSQL", "mysql": "MariaDB or MySQL", "sqlite": "SQLite", "oracle": "Oracle"}


def write_reports(report: ProofReport, stem: Path) -> list[Path]:
    """Write both files, replacing older ones; return their paths."""
    html, document = (stem.with_name(f"{stem.name}.{suffix}") for suffix in ("html", "json"))
    try:
        html.write_text(render_page(report), encoding="utf-8")
        document.write_text(json.dumps(report.to_document(), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise VenusError(f"--report {stem}: {error.strerror or error}") from error
    return [html, document]


def render_page(report: ProofReport) -> str:
    """Return the report as HTML."""
    template = Template((files(__package__) / "prove.html").read_text(encoding="utf-8"))
    version = dict(report.facts).get("version", "")
    return template.substitute(
        style=page_style(),
        title=escape(f"{PRODUCTS.get(report.dialect, report.dialect)} {version}".strip()),
        version=escape(report.version),
        taken_at=escape(report.taken_at),
        seed=report.seed,
        tone="bad" if report.failures else "good",
        verdict=escape(report.verdict()),
        failures=_html_failures(report),
        facts=_html_grid(
            (), (f'<td class="name">{escape(name)}</td><td>{escape(value)}</td>' for name, value in report.facts)
        ),
        sections="".join(map(_html_section, report.sections)),
        figures=_html_figures(report),
        plans=_html_plans(report),
    )


def _html_grid(heads: tuple[str, ...], rows: Iterable[str], kind: str = "") -> str:
    """Return an HTML table; the rows are HTML cells already."""
    head = f"<tr>{''.join(f'<th>{escape(name)}</th>' for name in heads)}</tr>" if heads else ""
    return f'<table class="{kind}">{head}{"".join(f"<tr>{row}</tr>" for row in rows)}</table>'


def _html_failures(report: ProofReport) -> str:
    """Return the HTML section of the failed cases; empty if there is none."""
    if not report.failures:
        return ""
    rows = (
        f'<td class="name">{escape(case.name)}</td><td>{escape(title)}</td><td><code>{escape(case.why)}</code></td>'
        for title, case in report.failures
    )
    grid = _html_grid(("case", "subject", "failed with"), rows, "words")
    return f'<section><h2>What failed</h2><div class="scroll">{grid}</div></section>'


def _html_section(section: ReportSection) -> str:
    """Return the cases of a subject as an HTML section, which is collapsed unless a case has failed."""
    failed = section.count(FAILED)
    pill = f"{failed} failed" if failed else f"{section.count(PASSED)} passed"
    tone = "bad" if failed else "good"
    cases = _html_grid(("case", "", "seconds", ""), map(_html_case, section.cases))
    return (
        f"<details{' open' if failed else ''}><summary>{escape(section.title)}"
        f' <span class="pill {tone}">{pill}</span></summary><div class="scroll">{cases}</div></details>'
    )


def _html_case(case: CaseResult) -> str:
    """Return the HTML cells of a case."""
    tone = _TONES.get(case.outcome, "")
    outcome = f'<span class="pill {tone}">{escape(case.outcome)}</span>' if tone else escape(case.outcome)
    why = f'<span class="soft">{escape(case.why)}</span>'
    return f"<td>{escape(case.name)}</td><td>{outcome}</td><td class='number'>{case.seconds:.1f}</td><td>{why}</td>"


def _html_figures(report: ProofReport) -> str:
    """Return the HTML section of the measured figures; empty if there is none."""
    if not report.figures:
        return ""
    rows = (
        f'<td>{escape(what)}</td><td class="number">{escape(format_figure(value, unit))}</td>'
        for what, value, unit in report.figures
    )
    return f'<section><h2>Figures</h2><div class="scroll">{_html_grid((), rows)}</div></section>'


def _html_plans(report: ProofReport) -> str:
    """Return the HTML section of the database's plans; empty if there is none."""
    if not report.plans:
        return ""
    shown = "".join(f"<h3>{escape(name)}</h3><pre>{escape(chr(10).join(steps))}</pre>" for name, steps in report.plans)
    return f"<section><h2>Plans</h2>{shown}</section>"
