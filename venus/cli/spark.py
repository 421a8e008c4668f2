"""`venus spark`, which checks Spark and submits VENUS to a cluster, and `--engine auto|local|spark`.

The engine is the runner for the tasks of a load or a comparison. `auto` chooses Spark if the configuration names a
master or a Spark Connect server, or if spark-submit has started this process. Otherwise it chooses a local Spark only
for work so large that the start does not matter (spark.auto_rows_min).
"""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from venus.cli.invocation import CommandSet, ConfigOption, Invocation, JsonOption
from venus.cli.output import build_table
from venus.errors import ConfigError
from venus.text.formatting import format_bytes, format_duration

if TYPE_CHECKING:
    from venus.config import Settings
    from venus.process.runners import Runner
    from venus.spark.tasks import Worker

T = TypeVar("T")
R = TypeVar("R")

ENGINES = ("auto", "local", "spark")
EngineOption = Annotated[
    str, typer.Option("--engine", metavar="|".join(ENGINES), help="Engine that moves rows: processes here, or Spark.")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """The chosen runner with the name of its engine, and why it was chosen."""

    name: str
    why: str
    runner: Runner


def require_engine(settings: Settings, engine: str) -> None:
    """Refuse an unavailable engine before anything has been done. Raises ConfigError."""
    if engine not in ENGINES:
        raise ConfigError(f"--engine {engine}: invalid engine", hint=f"one of {', '.join(ENGINES)}")
    if engine == "spark" or (engine == "auto" and find_configured_reason(settings)):
        from venus.spark.session import require_reachable, require_spark

        require_spark(settings)
        require_reachable(settings)


@contextmanager
def choose_runner(settings: Settings, engine: str, rows: int = 0) -> Iterator[Engine]:
    """Yield the runner for work on about `rows` rows. Spark starts with the first task and ends with the context."""
    with open_runner_choice(settings, engine) as choice:
        runner = choice(rows)
        yield Engine(name=choice.name, why=choice.why, runner=runner)


@contextmanager
def open_runner_choice(
    settings: Settings, engine: str, say: Callable[[str], None] | None = None
) -> Iterator[RunnerFactory]:
    """Yield a factory of runners, for use once the number of rows is known; stop Spark at the end of the context."""
    require_engine(settings, engine)
    with ExitStack() as stack:
        yield RunnerFactory(settings, engine, stack, say)


class RunnerFactory:
    """Factory of runners: Spark or local processes, depending on the number of rows."""

    def __init__(self, settings: Settings, engine: str, stack: ExitStack, say: Callable[[str], None] | None) -> None:
        self._settings = settings
        self._engine = engine
        self._stack = stack
        self._say = say
        self.name = "local"
        self.why = ""

    def __call__(self, rows: int) -> Runner:
        """Return the runner for about `rows` rows."""
        from venus.process.runners import LocalRunner

        self.why = _find_spark_reason(self._settings, self._engine, rows)
        if not self.why:
            return LocalRunner.for_rows(self._settings.apply.load_workers, rows)
        self.name = "spark"
        if self._say is not None:
            self._say(f"Spark moves the rows ({self.why})")
        return _LazySparkRunner(self._settings, self._stack)


def _find_spark_reason(settings: Settings, engine: str, rows: int) -> str:
    """Return why Spark does the work; empty = local processes do it."""
    if engine == "spark":
        return "--engine spark"
    if engine == "local":
        return ""
    if configured := find_configured_reason(settings):
        return configured
    wanted = settings.spark.auto_rows_min
    return f"{rows:,} rows, from {wanted:,} on" if rows >= wanted and can_use_spark(settings) else ""


def find_configured_reason(settings: Settings) -> str:
    """Return why Spark is chosen for any number of rows; empty = the number of rows decides."""
    from venus.spark.session import is_submitted

    if settings.spark.remote:
        return "spark.remote is set"
    if settings.spark.master:
        return "spark.master is set"
    return "started by spark-submit" if is_submitted() else ""


def can_use_spark(settings: Settings) -> bool:
    """Return whether Spark can be started; if not, and without an explicit choice, local processes do the work."""
    from venus.spark.session import require_spark

    try:
        require_spark(settings)
    except ConfigError:
        return False
    return True


class _LazySparkRunner:
    """Runner whose Spark session starts with the first task, because there may be no task."""

    def __init__(self, settings: Settings, stack: ExitStack) -> None:
        self._settings = settings
        self._stack = stack
        self._runner: Runner | None = None

    def run(self, function: Callable[[T], R], tasks: Sequence[T]) -> Iterator[R]:
        if not tasks:
            return iter(())
        if self._runner is None:
            from venus.spark.runner import open_runner

            self._runner = self._stack.enter_context(open_runner(self._settings))
        return self._runner.run(function, tasks)


app = CommandSet(help="Check Spark; package and submit for clusters.")

#: The file that spark-submit runs. It imports every command, including this module, so no module imports it.
APPLICATION = Path(__file__).with_name("spark_job.py")
#: How many tasks describe the workers, and how long each takes, so that one worker cannot run all of them.
PROBES = 4
PROBE_PAUSE_S = 0.3


@app.command("check")
def check(ctx: typer.Context, config: ConfigOption = None, as_json: JsonOption = False) -> int:
    """Start Spark as configured, run a few tasks, and report which Java, which workers, and how long it took.

    Exit code 1 if workers lack what a load needs, or have another version of VENUS or Python.
    """
    import platform

    import venus
    from venus.spark.session import require_spark

    run = Invocation.from_options(ctx, config, as_json)
    settings = settings_or_defaults(run)
    require_spark(settings)
    facts = describe_session(settings)
    workers, times = probe_workers(settings)
    python = platform.python_version().rpartition(".")[0]
    wrong = [
        *(f"{w.host}: {', '.join(w.missing)} not installed" for w in workers if w.missing),
        *(f"{w.host}: VENUS {w.venus}, here {venus.__version__}" for w in workers if w.venus != venus.__version__),
        *(f"{w.host}: Python {w.python}, here {python}" for w in workers if w.python.rpartition(".")[0] != python),
    ]
    rows: list[tuple[object, ...]] = [*facts.items(), *((what, format_duration(s)) for what, s in times.items())]
    rows += [
        (f"worker on {w.host}", f"Python {w.python}, VENUS {w.venus}, {w.executable}") for w in unique_workers(workers)
    ]
    verdict = (
        "Spark can be used"
        if not wrong
        else "these workers cannot load; `venus spark package` provides what is missing"
    )
    document = facts | {"seconds": times, "workers": workers, "wrong": sorted(set(wrong))}
    run.out.answer(document, build_table("what", "is", rows=rows), *(f"! {w}" for w in sorted(set(wrong))), verdict)
    return 1 if wrong else 0


def settings_or_defaults(run: Invocation) -> Settings:
    """Return the configuration, or else the defaults: the check of Spark needs no configuration."""
    from venus.config import load

    settings = load(run.file)
    run.redactor.learn(settings)
    return settings


def describe_session(settings: Settings) -> dict[str, str]:
    """Return facts about the Spark session: PySpark, master, Java."""
    from importlib.metadata import version

    from venus.spark.java import find_java
    from venus.spark.session import is_submitted, plan_session
    from venus.text.formatting import mask_url

    facts = {"PySpark": version("pyspark")}
    if settings.spark.remote:
        return facts | {"Spark Connect": mask_url(settings.spark.remote)}
    if is_submitted():
        return facts | {"master": "that of spark-submit"}
    java = find_java(settings.spark.java_home)
    return facts | {
        "master": plan_session(settings).master,
        "Java": f"{java.version}, {java.home}",
        "found by": java.origin,
    }


def probe_workers(settings: Settings) -> tuple[list[Worker], dict[str, float]]:
    """Run a few tasks; return the workers that ran them, and the time of each phase."""
    from venus.spark.runner import open_runner
    from venus.spark.tasks import describe_worker

    began = time.monotonic()
    with open_runner(settings) as runner:
        started = time.monotonic()
        workers = list(runner.run(describe_worker, [PROBE_PAUSE_S] * PROBES))
        ran = time.monotonic()
    return workers, {"start": started - began, "first tasks": ran - started, "end": time.monotonic() - ran}


def unique_workers(workers: list[Worker]) -> list[Worker]:
    """Return one worker for each host, interpreter and version of VENUS."""
    return list({(w.host, w.executable, w.venus): w for w in workers}.values())


@app.command("package")
def package(
    ctx: typer.Context,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="Where to write it.")] = Path(
        "venus.pex"
    ),
    wheel: Annotated[
        Path | None, typer.Option("--wheel", metavar="FILE", help="VENUS's wheel; not required in a checkout.")
    ] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> int:
    """Package VENUS and its dependencies as one file for the nodes of a cluster: a PEX of about 100 MB.

    The file contains the packages installed here. The nodes need the same Python (3.11) and no installation.
    """
    from venus.spark.submit import build_pex

    run = Invocation.from_options(ctx, config, as_json)
    began = time.monotonic()
    if not output.parent.is_dir():
        raise ConfigError(f"--output {output}: there is no folder {output.parent}")
    run.out.say("packing; this takes a minute or two")
    build_pex(output, wheel)
    size = output.stat().st_size
    run.out.answer(
        {"file": str(output), "bytes": size, "seconds": time.monotonic() - began},
        f"{output}: {format_bytes(size)}, in {format_duration(time.monotonic() - began)}",
        f"next: venus spark submit --pex {output} -- migrate --target NAME",
    )
    return 0


@app.command("submit")
def submit(
    ctx: typer.Context,
    command: Annotated[
        list[str], typer.Argument(metavar="COMMAND", help="The VENUS command, after `--`: -- migrate --target NAME")
    ],
    master: Annotated[
        str, typer.Option("--master", metavar="URL", help="spark://HOST:PORT, yarn, k8s://URL; default spark.master.")
    ] = "",
    pex: Annotated[
        Path | None,
        typer.Option("--pex", metavar="FILE", help="Package for the nodes; omit it if VENUS is installed on them."),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option("--option", metavar="WORDS", help="An option for spark-submit: --option '--executor-cores 2'."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the command line; run nothing.")] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> int:
    """Run a command with spark-submit: the driver here, the work on the cluster's executors.

    Prints the command's output and exits with its exit code.
    """
    from venus.spark.sessionlog import SessionLog
    from venus.spark.submit import plan_submission
    from venus.spark.submit import submit as run_submission

    run = Invocation.from_options(ctx, config, as_json)
    words = with_config(command, run)
    options = [word for given in option or () for word in split_option(given)]
    wanted = plan_submission(settings_or_defaults(run), words, APPLICATION, master=master, pex=pex, options=options)
    if dry_run:
        line = shlex.join(wanted.command)
        environ = " ".join(f"{name}={shlex.quote(value)}" for name, value in wanted.environ.items())
        run.out.answer({"command": wanted.command, "environment": wanted.environ}, f"{environ} \\\n  {line}")
        return 0
    with SessionLog() as log:
        code = run_submission(wanted, log.path)
        log.kept = code != 0
    if code:
        run.out.say(f"Spark's output is in {log.path}")
    return code


def split_option(given: str) -> list[str]:
    """Split an option for spark-submit into words, as a shell does."""
    try:
        return shlex.split(given)
    except ValueError as error:
        raise ConfigError(f"--option {given!r}: {str(error)[:1].lower()}{str(error)[1:]}") from None


def _names_configuration(word: str) -> bool:
    """Return whether this word is the option for the configuration: -c FILE, -cFILE, --config FILE, --config=FILE."""
    return word == "--config" or word.startswith("--config=") or re.match(r"-c(?!-)", word) is not None


def with_config(command: list[str], run: Invocation) -> list[str]:
    """Add the options for configuration and JSON output to the command."""
    words = list(command)
    if run.file is not None and not any(map(_names_configuration, words)):
        words += ["-c", str(run.file.resolve())]
    return words + (["--json"] if run.json and "--json" not in words else [])
