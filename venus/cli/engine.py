"""`--engine auto|local|spark`: the choice of the runner for the tasks of a load or a comparison.

`auto` takes Spark if the configuration names a master or a Spark Connect server, or if spark-submit has started this
process. On this machine it takes Spark for work so large that its start does not matter (spark.auto_rows_min).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from venus.errors import ConfigError

if TYPE_CHECKING:
    from venus.config import Settings
    from venus.process.runners import Runner

T = TypeVar("T")
R = TypeVar("R")

ENGINES = ("auto", "local", "spark")
EngineOption = Annotated[
    str, typer.Option("--engine", metavar="|".join(ENGINES), help="What moves the rows: processes here, or Spark.")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """The chosen runner, and the reason."""

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
) -> Iterator[RunnerChoice]:
    """Yield a factory of runners, to call once the number of rows is known; what it starts ends with the context."""
    require_engine(settings, engine)
    with ExitStack() as stack:
        yield RunnerChoice(settings, engine, stack, say)


class RunnerChoice:
    """Factory that returns the runner for a number of rows."""

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
    if engine == "spark":
        return "--engine spark"
    if engine == "local":
        return ""
    if configured := find_configured_reason(settings):
        return configured
    wanted = settings.spark.auto_rows_min
    return f"{rows:,} rows, from {wanted:,} on" if rows >= wanted and can_use_spark(settings) else ""


def find_configured_reason(settings: Settings) -> str:
    """Return why Spark is chosen for any number of rows; empty = the number decides."""
    from venus.spark.session import is_submitted

    if settings.spark.remote:
        return "spark.remote is set"
    if settings.spark.master:
        return "spark.master is set"
    return "started by spark-submit" if is_submitted() else ""


def can_use_spark(settings: Settings) -> bool:
    """Return whether Spark can be started; without an explicit choice, processes of this machine do the work."""
    from venus.spark.session import require_spark

    try:
        require_spark(settings)
    except ConfigError:
        return False
    return True


class _LazySparkRunner:
    """Runner whose Spark session starts with the first task: a target may be loaded already."""

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
