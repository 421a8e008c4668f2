"""The parts of `venus prove` in their order, in a schema that is empty before and after.

A file in the state folder marks a schema as used by a run. The file outlives a killed run, so that the next run knows
the origin of the objects that it finds.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime

import psutil

from venus.adapters.dialects.proving_contract import ScratchSchema
from venus.adapters.dialects.statements import RecordedStatements
from venus.cli.prove.case_run import Progress, run_cases
from venus.cli.prove.rehearsal import Rehearsal, note_unreached
from venus.cli.prove.results import FAILED, PASSED, CaseResult, Details, ProofReport, describe_failure
from venus.cli.prove.workload import count_writers, measure_cost, run_writers
from venus.errors import ConfigError, Held, Refused, VenusError
from venus.model import count_phrase
from venus.process.system import state_folder
from venus.text.formatting import mask_url

#: How many objects a refusal lists.
NAMED_MAX = 5
#: Signals that end a run as Ctrl-C does.
ENDING_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
WRITER_SECTION, END = "Writers against capture", "The end"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofRequest:
    """The options of a run of `venus prove`."""

    minutes: float
    rows: int
    seed: int
    #: A pattern of pytest's -k; empty = all cases.
    only: str


class ScratchNotEmpty(Refused):
    """The scratch schema has objects, although it must be empty."""


class ScratchMarker:
    """The file that marks a schema as used by a run. The file's name is a digest of the URL without password."""

    def __init__(self, url: str) -> None:
        digest = hashlib.sha256(mask_url(url).encode()).hexdigest()[:16]
        self._path = state_folder() / f"prove-{digest}.json"

    def read(self) -> tuple[str, bool] | None:
        """Return when the unfinished run in the schema began, and whether it still runs; None if there is none."""
        try:
            found = json.loads(self._path.read_text(encoding="utf-8"))
            began, pid, started = str(found["began"]), int(found["pid"]), float(found["started"])
        except (OSError, ValueError, KeyError, TypeError):
            return None
        with suppress(psutil.Error):
            return began, pid != os.getpid() and psutil.Process(pid).create_time() == started
        return began, False

    def write(self) -> None:
        """Record the beginning of this run. If the folder is not writable, the next run cannot know of this run."""
        began = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
        process = psutil.Process()
        with suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            record = {"began": began, "pid": process.pid, "started": process.create_time()}
            self._path.write_text(json.dumps(record), encoding="utf-8")

    def remove(self) -> None:
        """Record that nothing is left in the schema."""
        with suppress(OSError):
            self._path.unlink()


def require_empty(scratch: ScratchSchema, marker: ScratchMarker) -> None:
    """Raise Held if another run uses the schema, ScratchNotEmpty if it has objects."""
    earlier = marker.read()
    if earlier is not None and earlier[1]:
        raise Held(f"{scratch.name} is used by another `venus prove`, which began at {earlier[0]}", hint="wait for it")
    objects = scratch.list_objects()
    if not objects:
        return
    named = ", ".join(objects[:NAMED_MAX]) + (", ..." if len(objects) > NAMED_MAX else "")
    message = f"{scratch.name} has {count_phrase(len(objects), 'object')} ({named})"
    if earlier is None:
        raise ScratchNotEmpty(f"{message}, and a scratch must be empty")
    raise ScratchNotEmpty(
        f"{message}, which a `venus prove` of {earlier[0]} has left: it was ended before it could remove them",
        hint=f"remove them: `{scratch.removal()}`",
    )


@contextmanager
def use_scratch(scratch: ScratchSchema, marker: ScratchMarker, say: Callable[[str], None]) -> Iterator[None]:
    """Leave the schema empty, even after Ctrl-C and other signals; else report what is left and how to remove it."""
    previous = {number: signal.signal(number, signal.default_int_handler) for number in ENDING_SIGNALS}
    marker.write()
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        try:
            say(f"removing everything from {scratch.name}")
            scratch.clear()
            left = scratch.list_objects()
        except BaseException as error:
            say(f"{scratch.name} may still have objects of this run")
            if isinstance(error, VenusError):
                error.hint = f"to remove what is left: {_describe_removal(scratch)}"
            raise
        if left:
            say(f"{scratch.name} still has {', '.join(left[:NAMED_MAX])}; remove them: `{scratch.removal()}`")
        else:
            marker.remove()


def _describe_removal(scratch: ScratchSchema) -> str:
    """Return how to remove the remaining objects, even if the database does not answer."""
    try:
        return f"`{scratch.removal()}`"
    except VenusError:
        return "run the command again, which names what it finds"


class ProofRun:
    """One run of `venus prove`, with all its parts, in one scratch schema."""

    def __init__(self, scratch: ScratchSchema, request: ProofRequest, report: ProofReport, details: Details) -> None:
        self._scratch = scratch
        self._request = request
        self._report = report
        self._details = details

    def run(self, marker: ScratchMarker, say: Callable[[str], None], progress: Progress) -> None:
        """Run all parts. Raises ScratchNotEmpty; later failures are recorded in the report."""
        require_empty(self._scratch, marker)
        before = self._scratch.dump()
        self._report.facts = self._scratch.read_facts()
        with use_scratch(self._scratch, marker, say), self._scratch.statements.record() as reached:
            say("statements and plans")
            self._run_part(lambda: self._rehearse(reached))
            say("cases")
            run_cases(self._scratch, self._report, self._details, only=self._request.only, progress=progress)
            self._run_writers(say)
            self._measure_cost(say)
        note_unreached(self._scratch, self._report, reached)
        self._compare_catalogue(before)

    def _run_part(self, run: Callable[[], None]) -> None:
        """Run a part in an empty schema, and empty it afterwards."""
        self._scratch.prepare()
        try:
            run()
        finally:
            self._scratch.clear()

    def _rehearse(self, reached: RecordedStatements) -> None:
        """Rehearse an installation and its removal."""
        Rehearsal(self._scratch, self._report, self._details).run(reached)

    def _run_writers(self, say: Callable[[str], None]) -> None:
        """Let writers work during capture, and record whether the captured rows are right."""
        minutes = self._request.minutes
        if not minutes:
            self._report.left_out.append("writers")
            return
        say(f"writers for {minutes:g} min")
        name = f"what was captured of {count_phrase(count_writers(self._scratch), 'writer')} equals the table"
        with self._record_case(WRITER_SECTION, name):
            self._run_part(self._run_workload)

    def _run_workload(self) -> None:
        """Run the writers, and record how many of their transactions ended in which way."""
        counts = run_writers(self._scratch, seed=self._request.seed, seconds=self._request.minutes * 60)
        for what, number in sorted(counts.ended.items()):
            self._report.figures.append((f"transactions of the writers: {what}", float(number), ""))

    def _measure_cost(self, say: Callable[[str], None]) -> None:
        """Measure what triggers cost, unless this part is left out."""
        if not self._request.rows:
            self._report.left_out.append("cost of triggers")
            return
        say(f"cost of triggers for {self._request.rows:,} rows")
        with self._record_case("What triggers cost", "rows with and without triggers"):
            self._run_part(lambda: self._report.figures.extend(measure_cost(self._scratch, self._request.rows)))

    @contextmanager
    def _record_case(self, section: str, name: str) -> Iterator[None]:
        """Record whether the block fails; the next part runs in any case."""
        outcome, why = PASSED, ""
        try:
            yield
        except Exception as error:
            outcome, why = FAILED, describe_failure(error)
            self._details.add(name, error)
        self._report.section(section).cases.append(CaseResult(name=name, outcome=outcome, why=why))

    def _compare_catalogue(self, before: str) -> None:
        """Record whether the catalogue of the schema is the same as before the run."""
        with self._record_case(END, "the catalogue is as it was before"):
            after = self._scratch.dump()
            if after != before:
                changed = sorted(set(after.splitlines()) ^ set(before.splitlines()))
                raise ScratchNotEmpty("; ".join(changed[:NAMED_MAX]))


def check_request(request: ProofRequest) -> None:
    """Raise ConfigError for options that make no sense."""
    if not 0 <= request.minutes <= 24 * 60:
        raise ConfigError(f"--minutes {request.minutes:g}: a number from 0 to 1440 is needed")
    if not 0 <= request.rows <= 10_000_000:
        raise ConfigError(f"--rows {request.rows}: a number from 0 to 10,000,000 is needed")
