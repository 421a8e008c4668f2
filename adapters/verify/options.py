"""What is compared and how, and what is said on the way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from venus.adapters.dialects.verifying import Subject
from venus.adapters.running import Runner
from venus.adapters.verify.slices import SLICE_ROWS
from venus.adapters.verify.tasks import Place
from venus.errors import VenusError

#: Legs by name; `ends` is what `auto` takes while the source can be reached.
LEGS: dict[str, tuple[tuple[Place, Place], ...]] = {
    "ends": ((Place.SOURCE, Place.TARGET),),
    "target": ((Place.FULL, Place.TARGET),),
    "source": ((Place.SOURCE, Place.FULL),),
    "all": ((Place.FULL, Place.TARGET), (Place.SOURCE, Place.FULL)),
}
LEG_NAMES = ("auto", *LEGS)
MODES = ("auto", "hash", "scan")
DIGESTS = ("md5", "sha256")
#: What a row costs here beside a row that is loaded, by which runners are chosen: reading one and summing it up is a
#: twentieth, and of one whose database computes the checksum this process sees nothing at all.
READ_ROWS_PER_ROW, PUSHED_ROWS_PER_ROW = 20, 400


class VerificationFailed(VenusError):
    """The comparison could not be made."""

    exit_code = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What is compared, and how."""

    target: str
    leg: str = "auto"
    tables: tuple[str, ...] = ()
    where: str = ""
    mode: str = "auto"
    sample: float = 1.0
    seed: int = 0
    #: No more than so many rows a second, one slice at a time in this process; 0 = no limit.
    rows_per_s: float = 0.0
    wait_s: float = 30.0
    digest: str = "md5"
    differences_max: int = 100_000
    slice_rows: int = SLICE_ROWS


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a comparison is."""

    table: str
    rows: int
    rows_estimate: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """A table to be compared, or the reason why it cannot be."""

    subject: Subject
    note: str = ""
    obstacle: str = ""


Report = Callable[[Progress], None]
RunnerFor = Callable[[int], Runner]
