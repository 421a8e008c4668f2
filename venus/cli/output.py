"""Output of a command: sentences and tables for people, JSON for machines; answers on stdout, the rest on stderr.

With --json, stdout gets exactly one document, or one object per line for long-running commands. Progress is a bar on a
terminal, a plain line every few seconds elsewhere, and absent with --json. All output passes through the redactor:
drivers may quote a connection string with its password in an error message.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shlex
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from enum import Enum
from functools import cached_property
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NoReturn, TextIO
from urllib.parse import unquote, unquote_plus

from venus.errors import ConfigError
from venus.text.formatting import mask_url

if TYPE_CHECKING:
    from pydantic import SecretStr
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.progress import Progress, TaskID
    from rich.table import Table

    from venus.config import Settings


STRUCK = "***"
#: Masking shorter secrets would also mask half of the other text.
SECRET_CHARS_MIN = 3


class Redactor:
    """Masks known passwords in text, and the password of anything that looks like a URL."""

    def __init__(self) -> None:
        self._secrets: set[str] = set()
        self._urls: list[SecretStr] = []

    def learn(self, settings: Settings) -> None:
        """Add the secrets of these settings to the known ones; passwords in URLs both as written and decoded."""
        for url in (settings.source.url, *(target.url for target in settings.targets.values())):
            self._secrets |= find_passwords(url.get_secret_value())
            self._urls.append(url)
        self._secrets |= find_passwords(settings.spark.remote)
        from venus.config import is_secret

        others = [value for name, value in settings.spark.conf.items() if is_secret(name)]
        others.append(settings.security.client_token.get_secret_value())
        for recipient in settings.alarms.to.values():
            others += [recipient.webhook.get_secret_value(), recipient.smtp_password.get_secret_value()]
        others.append(settings.cluster.etcd_password.get_secret_value())
        self._secrets |= {secret for secret in others if len(secret) >= SECRET_CHARS_MIN}

    def __call__(self, text: str) -> str:
        """Return the text without any password."""
        for secret in sorted(self._secrets | self._read_new_passwords(), key=len, reverse=True):
            text = text.replace(secret, STRUCK)
        return re.sub(r"\S+://\S+", lambda found: mask_url(found[0]), text)

    def _read_new_passwords(self) -> set[str]:
        """Return the passwords read since the last call: a database's password may change while VENUS runs."""
        known: set[str] = set()
        for url in self._urls:
            for text in getattr(url, "known", ()):
                known |= find_passwords(text)
        return known


def find_passwords(url: str) -> set[str]:
    """Return every spelling of the passwords in a URL, except passwords that are too short to be masked."""
    found: set[str] = set()
    if match := re.search(r"://[^:/?@]*:(.*)@", url, re.DOTALL):
        found.add(match[1])
    found |= set(re.findall(r"[?&;][^=&;]*(?:passw|secret|token)[^=&;]*=([^&;]*)", url, re.IGNORECASE))
    found |= {decode(secret) for secret in found for decode in (unquote, unquote_plus)}
    return {secret for secret in found if len(secret) >= SECRET_CHARS_MIN}


#: Below this width a table that would fold its cells is shown as a list.
COLUMNS_MIN = 70


class Grid:
    """Table that rich renders in columns, or on a narrow terminal as a list with one value below the other."""

    def __init__(self, columns: tuple[str, ...], rows: list[tuple[object, ...]]) -> None:
        self.columns = columns
        self.rows = rows

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        side_by_side = self._build_table(options.max_width)
        wanted = console.measure(side_by_side, options=options.update(width=10_000))
        folds = wanted.maximum > options.max_width
        if folds and (options.max_width < COLUMNS_MIN or wanted.minimum > options.max_width):
            yield from self._render_list(options.max_width)
        else:
            yield side_by_side

    def _build_table(self, width: int) -> Table:
        """Build the table that rich renders in columns."""
        from rich.table import Table

        shown = Table(box=None, pad_edge=False, header_style="bold")
        for number, name in enumerate(self.columns):
            numeric = any(self.rows) and all(isinstance(row[number], int | float) for row in self.rows)
            # the first column names the subject of the row, and is not broken within a name
            whole = number == 0 and all(2 * len(format_cell(row[0])) <= width for row in self.rows)
            shown.add_column(name, justify="right" if numeric else "left", overflow="fold", no_wrap=whole)
        for row in self.rows:
            shown.add_row(*(format_cell(value) for value in row))
        return shown

    def _render_list(self, width: int) -> Iterator[RenderableType]:
        """Yield each row as its first value, and below it the other values with the names of their columns."""
        from rich.text import Text

        for row in self.rows:
            yield Text(format_cell(row[0]), style="bold", overflow="fold")
            for name, value in zip(self.columns[1:], row[1:], strict=True):
                if value is not None and format_cell(value):
                    line = f"{name}: {format_cell(value)}" if name else format_cell(value)
                    yield Text(textwrap.fill(line, width, initial_indent="  ", subsequent_indent="    "))


def build_table(*columns: str, rows: list[tuple[object, ...]]) -> Grid:
    """Build a table for people; numbers are aligned to the right."""
    return Grid(columns, rows)


def format_cell(value: object) -> str:
    """Format a value for a cell."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.1f}"
    return str(value)


def require_writable(option: str, file: Path | None) -> None:
    """Raise ConfigError if an option's file is not writable; otherwise a long run could lose its result."""
    if file is None:
        return
    folder = file.absolute().parent
    if not folder.is_dir():
        raise ConfigError(
            f"{option} {file}: {folder} is no folder", hint=f"make it: mkdir -p {shlex.quote(str(folder))}"
        )
    if file.is_dir() or not os.access(file if file.exists() else folder, os.W_OK):
        raise ConfigError(f"{option} {file} cannot be written", hint="name another file")


#: A step shorter than this shows no progress.
QUIET_S = 2.0
#: The width of a table without a terminal.
PIPE_COLUMNS = 160
#: How often a plain line is written without a terminal.
PLAIN_EVERY_S = 5.0


class ReaderGone(Exception):
    """The reader of stdout has closed it, as `| head` does; further output is useless."""


def detach_stdout() -> ReaderGone:
    """Redirect stdout to nowhere, so that the interpreter's last flush does not fail; return the exception to raise."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
    return ReaderGone()


def _on_broken_pipe() -> NoReturn:
    """End the command with the exit code of a closed output; rich by itself would exit with 1, that is unhealthy."""
    raise detach_stdout()


class Output:
    """Writer of the output of one command, in the requested form."""

    def __init__(self, *, json: bool, redactor: Redactor) -> None:
        self.json = json
        self.written = self.streaming = False
        self.redact = redactor
        #: The standard streams as of the start of the command, not of its first output.
        self._streams = sys.stdout, sys.stderr

    @cached_property
    def console(self) -> Console:
        """The console for the answer: stdout."""
        return build_console(self._streams[0])

    @cached_property
    def stderr(self) -> Console:
        """The console for everything else: stderr."""
        return build_console(self._streams[1])

    def answer(self, document: Any, *shown: RenderableType) -> None:
        """Write the answer of the command: `document` for machines, `shown` for people."""
        if self.json:
            self._write_json(document, indent=2)
            return
        for item in shown:
            if isinstance(item, str):
                self.console.print(self.redact(item), markup=False)
            else:
                self.console.print(item)

    def write_event(self, document: Any, line: str) -> None:
        """Write one event of a long-running command: `document` for machines, `line` for people."""
        self.streaming = True
        if self.json:
            self._write_json(document, indent=None)
        else:
            self.console.print(line, markup=False)
            self._flush(self.console.file)

    def write_lines(self, lines: Iterable[str]) -> None:
        """Write the rows of a table unchanged, each as one line."""
        self.written = True
        self._flush(sys.stdout, "".join(f"{line}\n" for line in lines))

    def write_error(self, document: Any) -> None:
        """Write the error of the command as one line of JSON, also after the events of a long-running command."""
        self._write_json(document, indent=None)

    def say(self, line: str) -> None:
        """Print a remark to stderr; print nothing with --json."""
        if not self.json:
            self.stderr.print(self.redact(line), markup=False)

    def _write_json(self, document: Any, indent: int | None) -> None:
        self.written = True
        text = json.dumps(self._redact_value(document), indent=indent, ensure_ascii=False)
        self._flush(sys.stdout, text + "\n")

    @staticmethod
    def _flush(stream: IO[str], text: str = "") -> None:
        """Write a text and flush the stream. Raises ReaderGone if the stream's reader has closed it."""
        try:
            stream.write(text)
            stream.flush()
        except BrokenPipeError as error:
            raise detach_stdout() from error

    def _redact_value(self, value: Any) -> Any:
        """Convert a value to JSON types, with passwords masked."""
        if isinstance(value, dict):
            return {str(name): self._redact_value(each) for name, each in value.items()}
        if isinstance(value, list | tuple):
            return [self._redact_value(each) for each in value]
        if isinstance(value, str):
            return self.redact(value)
        return value if value is None or isinstance(value, bool | int | float) else self._redact_value(to_plain(value))

    @contextmanager
    def progress(self, title: str) -> Iterator[ProgressSteps]:
        """Show the progress of several long steps."""
        steps = ProgressSteps(self, title)
        try:
            yield steps
        finally:
            steps.close()


def build_console(stream: TextIO) -> Console:
    """Build rich's console, as wide as the terminal. Tables in a pipe, which has no width, are not folded.

    COLUMNS in the environment sets the width of any stream. Text is never treated as markup: `[targets.main]` may be
    part of a message, and names of tables come from outside.
    """
    from rich.console import Console

    if stream.isatty() or os.environ.get("COLUMNS", "").isdigit():
        made = Console(file=stream, highlight=False, markup=False, emoji=False)
    else:
        made = Console(file=stream, highlight=False, markup=False, emoji=False, soft_wrap=True, width=PIPE_COLUMNS)
    made.on_broken_pipe = _on_broken_pipe  # type: ignore[method-assign]
    return made


class ProgressSteps:
    """Progress of named steps. It is cheap to update often, because it draws rarely."""

    def __init__(self, out: Output, title: str) -> None:
        self._out = out
        self._title = title
        self._opened = self._printed = time.monotonic()
        self._bar: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        self._ended: set[str] = set()  # steps whose end was written, without a terminal

    def update(self, name: str, done: int, total: int = 0, *, title: str = "") -> None:
        """Set the progress of one step; total 0 = unknown, an empty title = the title given to `progress`."""
        title = title or self._title
        now = time.monotonic()
        if self._out.json or now - self._opened < QUIET_S:
            return
        if not self._out.stderr.is_terminal:
            has_ended = bool(total) and done >= total and name not in self._ended
            if now - self._printed >= PLAIN_EVERY_S or has_ended:
                self._printed = now
                self._ended |= {name} if has_ended else set()
                of = f" of about {total:,}" if total else ""
                self._out.say(f"{title} {name}: {done:,}{of}")
            return
        if self._bar is None:
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

            columns = (
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
            )
            self._bar = Progress(*columns, console=self._out.stderr, transient=True)
            self._bar.start()
        if name not in self._tasks:
            self._tasks[name] = self._bar.add_task(f"{title} {name}", total=total or None)
        self._bar.update(self._tasks[name], completed=done, total=max(total, done) or None)

    def close(self) -> None:
        """Remove the progress bar from the terminal."""
        if self._bar is not None:
            self._bar.stop()


def to_plain(value: Any) -> Any:
    """Convert a dataclass, path, enum, bytes or set to JSON types."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    converters: list[tuple[Any, Callable[[Any], Any]]] = [
        (Enum, lambda v: v.name),
        (Path, str),
        (bytes, bytes.hex),
        ((set, frozenset), sorted),
    ]
    for kind, convert in converters:
        if isinstance(value, kind):
            return convert(value)
    return str(value)
