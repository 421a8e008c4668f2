"""Log of Spark, which is hidden from the user. After a failure, one line of the log is shown."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from venus.errors import SparkFailed, VenusError
from venus.process.system import state_folder

#: Messages of Spark about workers that cannot run VENUS, each with its remedy.
_WORKERS = (
    (
        r"ModuleNotFoundError: No module named '([\w.]+)'",
        "the workers' Python lacks {}: `venus spark package` provides it",
    ),
    (r'Cannot run program "([^"]+)"', "the workers have no {}: set PYSPARK_PYTHON, or spark.pyspark.python"),
    (r"(PYTHON_VERSION_MISMATCH)", "set PYSPARK_PYTHON to a Python of the same version as here"),
)

#: Messages of a JVM that come after the reason why it does not start.
_NO_REASON = re.compile(
    r"^Error: (Could not create the Java Virtual Machine|A fatal exception has occurred)\b.*", re.MULTILINE
)

#: Logs of earlier sessions that failed.
LOGS_KEPT = 10
#: A longer log is moved to the older part, because `venus sync --engine spark` is one session for months.
LOG_BYTES_MAX = 8 << 20
LOOK_EVERY_S = 2.0


class SessionLog:
    """Log file of Spark's output; removed after a session without errors.

    The newest part is in `path`, the part before it in a second file, `older`; earlier output is deleted.
    """

    def __init__(self, *, bytes_max: int = LOG_BYTES_MAX, look_every_s: float = LOOK_EVERY_S) -> None:
        self._bytes_max, self._look_every_s = bytes_max, look_every_s
        self._ended = threading.Event()
        self._watching = threading.Thread(target=self._watch, name="venus-spark-log", daemon=True)
        name = f"spark-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.log"
        state = state_folder()
        try:
            state.mkdir(parents=True, exist_ok=True)
            self.path = state / name
            os.close(os.open(self.path, os.O_WRONLY | os.O_CREAT, 0o600))
        except OSError:
            self.path = Path(tempfile.mkdtemp(prefix="venus-spark-")) / name
            self.path.touch(0o600)
        #: Whether to keep the log although no error was raised.
        self.kept = False
        for old in sorted(self.path.parent.glob("spark-*.log"))[:-LOGS_KEPT]:
            _remove(old)

    @property
    def older(self) -> Path:
        """Path of the older part of the log, which need not exist."""
        return _older_path(self.path)

    def last_cause(self) -> str:
        """Return the last line that names an error; "" if there is none."""
        found = re.findall(r"^(?!\s*at ).*?\b((?:Error|[\w.]*(?:Error|Exception)): .+)$", self._text(), re.MULTILINE)
        return found[-1].strip()[:500] if found else ""

    def last_words(self) -> str:
        """Return the last cause, or else simply the last line: a JVM that fails to start names no exception.

        A message that Spark's shell script writes when Java printed nothing is skipped, because it is not useful.
        """
        lines = [line.strip() for line in self._text().splitlines() if line.strip()]
        lines = [line for line in lines if not re.match(r"\S+/spark-class: line \d+: ", line)]
        return self.last_cause() or (lines[-1][:500] if lines else "")

    def _text(self) -> str:
        """Return both parts of the log, without lines that only say that no JVM was created."""
        parts = (part.read_text(errors="replace") for part in (self.older, self.path) if part.exists())
        return _NO_REASON.sub("", "".join(parts))

    def _watch(self) -> None:
        """Truncate the log whenever it is too long, until the session ends."""
        while not self._ended.wait(self._look_every_s):
            with suppress(OSError):  # a full disk, or the file was removed: the next check tries again
                self._truncate()

    def _truncate(self) -> None:
        """Truncate a log that is too long, after a copy: the JVM keeps appending to the same file.

        Output between the copy and the truncation is lost: at most a few lines.
        """
        if self.path.stat().st_size <= self._bytes_max:
            return
        copy = self.path.with_suffix(".copy")
        with (
            self.path.open("rb") as whole,
            open(os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as to,
        ):
            whole.seek(-self._bytes_max, os.SEEK_END)
            shutil.copyfileobj(whole, to)
        copy.replace(self.older)
        os.truncate(self.path, 0)

    def __enter__(self) -> SessionLog:
        self._watching.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._ended.set()
        self._watching.join()
        if kind is None and not self.kept:
            _remove(self.path)
            if self.path.parent.name.startswith("venus-spark-"):
                shutil.rmtree(self.path.parent, ignore_errors=True)


def _older_path(path: Path) -> Path:
    return path.with_suffix(".older")


def _remove(path: Path) -> None:
    """Remove a log with its older part."""
    for part in (path, _older_path(path), path.with_suffix(".copy")):
        part.unlink(missing_ok=True)


@contextmanager
def failures(log: SessionLog | None) -> Iterator[None]:
    """Convert an error of Spark, whose text usually has 15 kB, into one line and the path of the log."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except VenusError as error:
        if isinstance(error, SparkFailed) and log is not None and not error.hint:
            error.hint = f"Spark's output is in {log.path}"
        raise
    except (PySparkException, Py4JError) as error:
        where = f"Spark's output is in {log.path}" if log is not None else ""
        hint = "; ".join(filter(None, [_find_solution(str(error)), where]))
        raise SparkFailed(f"Spark: {last_cause(error)}", hint=hint) from error


def _find_solution(text: str) -> str:
    """Return the remedy for workers that cannot run VENUS; "" for any other text."""
    found = ((re.search(pattern, text), advice) for pattern, advice in _WORKERS)
    return next((advice.format(match[1]) for match, advice in found if match), "")


def last_cause(error: BaseException) -> str:
    """Return the last `SomethingError: ...` line of an exception that quotes other processes' stack traces."""
    # lines from the JVM begin with a colon
    lines = [line.strip().removeprefix(": ") for line in str(error).splitlines() if line.strip()]
    causes = [
        line for line in lines if re.match(r"(Caused by: )?([\w.$]*(Error|Exception|Exit)\b|venus\.[\w.]+).*: ", line)
    ]
    chosen = causes[-1] if causes else lines[0] if lines else type(error).__name__
    return chosen.removeprefix("Caused by: ")[:500]
