"""Installation, capture and removal in the scratch schema, to check the dialect's statements and their plans.

The statements are recorded as they are rendered. While the installation exists, the database's own parser checks each
statement, and the database explains the statements of a cut and of a fill. Steps are independent: a failed step does
not hide the next.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

from venus.adapters.dialects.contract import Source
from venus.adapters.dialects.proving_contract import Application, ScratchSchema, run_transaction
from venus.adapters.dialects.registry import survey
from venus.adapters.dialects.statements import RecordedStatements
from venus.adapters.dialects.survey_contract import SurveyRequest
from venus.cli.prove.follower import Follower
from venus.cli.prove.results import FAILED, PASSED, SKIPPED, CaseResult, Details, ProofReport, describe_failure

STEPS, STATEMENTS, PLANS = "One life of an installation", "Statements at the database's own parser", "Plans"
#: How many rows the explained table has: so many that a scan would cost more than an index.
ROWS = 3000
#: How many statements of one block are parsed; a block may have one for each table.
TEXTS_MAX = 4
#: Files whose statements do not belong to capture: those of this command and of `venus verify`.
OTHER_FILES = ("scratch", "verify")


class Rehearsal:
    """Rehearsal of an installation: independent steps in one scratch schema."""

    def __init__(self, scratch: ScratchSchema, report: ProofReport, details: Details) -> None:
        self._scratch = scratch
        self._report = report
        self._details = details

    @contextmanager
    def _record_case(self, section: str, name: str) -> Iterator[None]:
        """Record in the report whether the block fails."""
        began, outcome, why = time.monotonic(), PASSED, ""
        try:
            yield
        except Exception as error:  # whatever the error is, try the next step
            outcome, why = FAILED, describe_failure(error)
            self._details.add(f"{section}: {name}", error)
        case = CaseResult(name=name, outcome=outcome, seconds=time.monotonic() - began, why=why)
        self._report.section(section).cases.append(case)

    def run(self, recorded: RecordedStatements) -> None:
        """Run all steps; the caller's recording fills `recorded`."""
        with closing(self._scratch.connect()) as app, closing(self._scratch.open()) as source:
            with self._record_case(STEPS, "the tables of the application"):
                self._create_tables(app)
            self._install(app, source)
            for name, step in self._steps(app, source):
                with self._record_case(STEPS, name):
                    step()
            self._parse(recorded)
            self._explain(recorded)
            with self._record_case(STEPS, "removal"):
                source.installer.uninstall()

    def _create_tables(self, app: Application) -> None:
        t = self._scratch.types
        run_transaction(
            app,
            f"CREATE TABLE proof (id {t['int']} NOT NULL PRIMARY KEY, name varchar(40), price {t['decimal']},"
            f" note {t['text']})",
            f"CREATE TABLE proof_line (code varchar(20) NOT NULL, pos {t['int']} NOT NULL, amount {t['int']},"
            " PRIMARY KEY (pos, code))",
            f"CREATE TABLE proof_keyless (a {t['int']})",
        )
        for number in range(ROWS):
            app.execute("INSERT INTO proof VALUES (?, ?, ?, 'note')", number, f"name {number}", number)
        app.execute("INSERT INTO proof_line VALUES ('a', 1, 1)")
        app.commit()
        self._scratch.analyze(app, "proof")

    def _install(self, app: Application, source: Source) -> None:
        """Install; if that fails, run each statement alone, so that one report lists all refused statements."""
        plan = []
        with self._record_case(STEPS, "check and plan of the installation"):
            source.installer.check(["*"], [])
            plan = source.installer.plan_install(["*"], ["proof_keyless"])
        before = len(self._report.failures)
        with self._record_case(STEPS, "installation"):
            source.installer.install(["*"], ["proof_keyless"])
        if len(self._report.failures) > before:
            for number, step in enumerate(plan, 1):
                with self._record_case(STATEMENTS, f"statement {number} of the installation: {step.what}"):
                    app.execute(step.sql)
                    app.commit()

    def _steps(self, app: Application, source: Source) -> Iterator[tuple[str, Callable[[], object]]]:
        """Yield the name and the function of each step after the installation."""
        yield "reading of the existing rows", lambda: Follower(source).drain(fill_rows=1000)
        yield "a small cut", lambda: self._change(app, source, 3)
        yield "a large cut", lambda: self._change(app, source, ROWS)
        yield "heartbeat and backlog", lambda: self._watch_source(source)
        yield "dictionary", lambda: self._read_dictionary(source)
        yield "states of a table", lambda: self._set_states(source)
        yield "a table leaves capture and returns", lambda: self._release(source)
        yield "DDL of the application", lambda: self._alter(app, source)
        yield "assessment", self._survey
        yield "a cut behind it all", lambda: self._change(app, source, 5)

    def _change(self, app: Application, source: Source, rows: int) -> None:
        """Change rows as an application does, and capture the changes."""
        for number in range(rows):
            app.execute("UPDATE proof SET name = ? WHERE id = ?", f"changed {rows}", number)
        run_transaction(app, "UPDATE proof_line SET amount = amount + 1", "DELETE FROM proof WHERE id = 17")
        app.execute("INSERT INTO proof (id, name) VALUES (17, 'again')")
        app.commit()
        Follower(source).drain()

    def _watch_source(self, source: Source) -> None:
        """Run the statements by which capture waits for changes and reports its state."""
        source.capture.write_heartbeat()
        source.capture.wait(0.01)
        source.capture.read_backlog()
        source.capture.find_missing_grants()
        source.capture.find_blocking_locks()
        source.capture.describe_blockers()
        source.registry.read_row_counts()
        source.registry.read_registry_fingerprint()
        source.registry.read_batches([source.registry.read_state().last_batch])
        Follower(source).drain()

    def _read_dictionary(self, source: Source) -> None:
        """Run the statements that read the database's dictionary."""
        dictionary = source.dictionary
        dictionary.read_tables(["*"], [])
        dictionary.read_table_names()
        dictionary.find_uncaptured_tables(["*"], [])
        dictionary.find_unmatched_patterns(["proof", "nowhere"])
        dictionary.read_numberings()
        dictionary.read_other_objects()
        source.registry.read_released_tables()

    def _set_states(self, source: Source) -> None:
        """Pause and resume a table, and read it again by a fill and by a sweep."""
        number = Follower(source).table_id("proof")
        source.registry.set_table_state(number, "PAUSED", "by hand")
        source.registry.set_table_state(number, "ACTIVE", "")
        source.capture.restart_fill(number)
        source.capture.restart_with_sweep(number, 2)
        Follower(source).drain(fill_rows=1000)

    def _release(self, source: Source) -> None:
        """Release a table from capture, and capture it again."""
        number = Follower(source).table_id("proof_line")
        source.installer.release([number])
        source.installer.drop_logs({number: "rehearsal"})
        source.installer.install(["*"], ["proof_keyless"])
        Follower(source).drain()

    def _alter(self, app: Application, source: Source) -> None:
        """Add a column as an application does, and follow the new version of the table."""
        run_transaction(app, f"ALTER TABLE proof ADD extra {self._scratch.types['int']} DEFAULT 7")
        source.capture.refresh_schemas()
        Follower(source).drain(fill_rows=1000)

    def _survey(self) -> None:
        """Run the statements of `venus assess`."""
        survey(self._scratch.settings(), SurveyRequest(include=["*"], exclude=[], count_rows=True, sample_s=5.0))

    # -- statements ---------------------------------------------------------------------------------------------

    def _parse(self, recorded: RecordedStatements) -> None:
        """Let the database parse the rendered statements; a block counts once."""
        for (file, block), texts in sorted(recorded.items()):
            name = f"{file}.{block}"
            if file in OTHER_FILES or name in self._scratch.pieces:
                continue
            with self._record_case(STATEMENTS, name):
                judged = self._scratch.parse(list(texts)[-TEXTS_MAX:])
            case = self._report.section(STATEMENTS).cases[-1]
            if case.outcome == PASSED and not judged:
                run = CaseResult(name=name, outcome=PASSED, why="run by a step above; it cannot be parsed alone")
                self._report.section(STATEMENTS).cases[-1] = run

    def _explain(self, recorded: RecordedStatements) -> None:
        """Record the plans of the statements, and whether each uses an index."""
        with self._record_case(PLANS, "the database explains its plans"):
            for check in self._scratch.explain(recorded):
                self._report.plans.append((check.name, check.steps))
                why = f"no index: {check.complaint}" if check.complaint else ""
                outcome = FAILED if why else PASSED
                self._report.section(PLANS).cases.append(CaseResult(name=check.name, outcome=outcome, why=why))


def note_unreached(scratch: ScratchSchema, report: ProofReport, reached: RecordedStatements) -> None:
    """Add the SQL blocks that the rehearsal did not run or parse: passed if a case ran them, else skipped."""
    section = report.section(STATEMENTS)
    known = {case.name for case in section.cases}
    for file, block in scratch.statements.names():
        name = f"{file}.{block}"
        if file in OTHER_FILES or name in known or name in scratch.pieces:
            continue
        if (file, block) in reached:
            section.cases.append(CaseResult(name=name, outcome=PASSED, why="run by a case"))
        else:
            section.cases.append(CaseResult(name=name, outcome=SKIPPED, why="not reached on this server"))
