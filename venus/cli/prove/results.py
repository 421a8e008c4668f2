"""The results of `venus prove`, in a form that a user can send in: no rows, no names of hosts, users or objects.

A failure is described by its exception's class, the server's error code and the line of VENUS at which it occurred. The
complete texts, which may contain names, go into a log beside the report (`Details`).
"""

from __future__ import annotations

import re
import traceback
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PASSED, FAILED, SKIPPED = "passed", "failed", "does not apply"
#: The server's codes in the messages of the drivers: ORA-00942, SQLSTATE or number in brackets.
_CODE = re.compile(r"\b(?:ORA|DPY|DPI|PLS)-\d{4,5}\b|\((?:\d{4}|(?=[A-Z]*\d)[0-9A-Z]{5})\)$")
#: Version of the format of the JSON report.
FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseResult:
    """One behaviour that VENUS relies on, and whether the server shows it."""

    name: str
    outcome: str
    seconds: float = 0.0
    why: str = ""


@dataclass(slots=True, kw_only=True)
class ReportSection:
    """The results of the cases of one subject."""

    title: str
    cases: list[CaseResult] = field(default_factory=list)

    def count(self, outcome: str) -> int:
        """Return how many cases have this outcome."""
        return sum(case.outcome == outcome for case in self.cases)


@dataclass(slots=True, kw_only=True)
class ProofReport:
    """All results of a run of `venus prove`."""

    version: str
    taken_at: str
    dialect: str
    seed: int
    facts: list[tuple[str, str]] = field(default_factory=list)
    sections: list[ReportSection] = field(default_factory=list)
    plans: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    figures: list[tuple[str, float, str]] = field(default_factory=list)
    #: Parts that were left out on request.
    left_out: list[str] = field(default_factory=list)

    def section(self, title: str) -> ReportSection:
        """Return the section with this title; add it if there is none."""
        for section in self.sections:
            if section.title == title:
                return section
        self.sections.append(ReportSection(title=title))
        return self.sections[-1]

    @property
    def outcomes(self) -> Counter[str]:
        """How many cases have each outcome."""
        return Counter(case.outcome for section in self.sections for case in section.cases)

    @property
    def failures(self) -> list[tuple[str, CaseResult]]:
        """The failed cases with the titles of their sections."""
        return [(s.title, case) for s in self.sections for case in s.cases if case.outcome == FAILED]

    def verdict(self) -> str:
        """Return the summary sentence."""
        found = self.outcomes
        text = f"{found[PASSED]} of {found[PASSED] + found[FAILED]} cases passed"
        text += f", {found[SKIPPED]} do not apply" if found[SKIPPED] else ""
        return text + (f"; left out: {', '.join(self.left_out)}" if self.left_out else "")

    def to_document(self) -> dict[str, Any]:
        """Return the report for machines."""
        return {
            "format": FORMAT,
            "venus": self.version,
            "taken_at": self.taken_at,
            "dialect": self.dialect,
            "seed": self.seed,
            "verdict": self.verdict(),
            "proved": not self.failures and not self.left_out,
            "left_out": self.left_out,
            "facts": dict(self.facts),
            "sections": [
                {
                    "title": section.title,
                    "cases": [
                        {"name": c.name, "outcome": c.outcome, "seconds": round(c.seconds, 2), "why": c.why}
                        for c in section.cases
                    ],
                }
                for section in self.sections
            ],
            "plans": [{"statement": name, "steps": list(steps)} for name, steps in self.plans],
            "figures": [{"what": what, "value": round(value, 3), "unit": unit} for what, value, unit in self.figures],
        }


def describe_failure(error: BaseException) -> str:
    """Describe an error without its message: class, code, and the line of VENUS or of a case where it occurred."""
    codes = [code for one in _causes(error) for code in _CODE.findall(str(one).strip().split("\n")[0])]
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "venus" in Path(frame.filename).parts]
    parts = [type(error).__name__, *dict.fromkeys(code.strip("()") for code in codes)]
    if frames:
        parts.append(f"at {'/'.join(Path(frames[-1].filename).parts[-2:])}:{frames[-1].lineno}")
    return " ".join(parts)


def _causes(error: BaseException | None) -> list[BaseException]:
    """Return the error and the errors from which it was raised."""
    found = []
    while error is not None and error not in found:
        found.append(error)
        error = error.__cause__
    return found


class Details:
    """The log of complete error texts, which stays with the user. The log is written only if there is an error."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.texts: list[str] = []

    def add(self, name: str, error: BaseException) -> None:
        """Record an error of a case."""
        self.texts.append(f"== {name}\n{''.join(traceback.format_exception(error))}")

    def write(self) -> bool:
        """Write the log, unless there was no error; return whether it was written."""
        self.path.unlink(missing_ok=True)
        if self.texts:
            self.path.write_text("\n".join(self.texts), encoding="utf-8")
        return bool(self.texts)
