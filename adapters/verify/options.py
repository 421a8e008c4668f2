"""Options and progress of a comparison."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from venus.adapters.dialects.verify_contract import Subject
from venus.adapters.running import Runner
from venus.adapters.verify.slice_tasks import ComparisonSide
from venus.adapters.verify.slices import SLICE_ROWS
from venus.errors import VenusError

#: Pairs of sides by name; `auto` uses `ends` while the source can be reached.
LEGS: dict[str, tuple[tuple[ComparisonSide, ComparisonSide], ...]] = {
    "ends": ((ComparisonSide.SOURCE, ComparisonSide.TARGET),),
    "target": ((ComparisonSide.FULL, ComparisonSide.TARGET),),
    "source": ((ComparisonSide.SOURCE, ComparisonSide.FULL),),
    "all": ((ComparisonSide.FULL, ComparisonSide.TARGET), (ComparisonSide.SOURCE, ComparisonSide.FULL)),
}
LEG_NAMES = ("auto", *LEGS)
MODES = ("auto", "hash", "scan")
DIGESTS = ("md5", "sha256")
#: Cost of a compared row relative to a loaded one, to choose runners: reading and summing a row costs a twentieth; a
#: row whose database computes the checksum costs this process nothing.
READ_ROWS_PER_ROW, PUSHED_ROWS_PER_ROW = 20, 400


class VerificationFailed(VenusError):
    """The comparison failed."""

    exit_code = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyOptions:
    """Options of a comparison."""

    target: str
    leg: str = "auto"
    tables: tuple[str, ...] = ()
    where: str = ""
    mode: str = "auto"
    sample: float = 1.0
    seed: int = 0
    #: Limit of rows a second, one slice at a time in this process; 0 means no limit.
    rows_per_s: float = 0.0
    wait_s: float = 30.0
    digest: str = "md5"
    differences_max: int = 100_000
    slice_rows: int = SLICE_ROWS


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyProgress:
    """Progress of a comparison."""

    table: str
    rows: int
    rows_estimate: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenTable:
    """Table to compare, or the reason why it cannot be compared."""

    subject: Subject
    note: str = ""
    obstacle: str = ""


Report = Callable[[VerifyProgress], None]
RunnerFor = Callable[[int], Runner]
