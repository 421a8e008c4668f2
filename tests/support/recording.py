"""docs/recording.svg: the terminal of a real run of `venus run`; `python -m tests.support.recording` recreates it.

The commands run as shown. Addresses of PostgreSQL and broker come from the environment; the picture shows the usual
ones. The times are those of the run.
"""

from __future__ import annotations

import os
import pty
import re
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from html import escape
from pathlib import Path

import psycopg2

from venus.cli.demo.servers import Postgres, find_free_ports, wait_for

PICTURE = Path(__file__).parents[2] / "docs" / "recording.svg"
CONFIGURATION = """\
[source]
url = "sqlite:///shop.db"

[targets.main]
url = "postgresql://venus@localhost/shop"
"""
CREATE = """
CREATE TABLE orders (id INTEGER PRIMARY KEY, status TEXT NOT NULL, total DECIMAL(10, 2) NOT NULL);
INSERT INTO orders VALUES (1, 'new', 9.90), (2, 'paid', 120.00), (3, 'new', 42.50);
"""
QUERY = "select id, status, total from orders order by id"
CHANGE = "update orders set status = 'sent' where id = 1"
#: Height of a line and width of the picture in pixels; seconds between two lines.
LINE, WIDTH, STEP_S = 20, 860, 0.7
#: Longer lines are cut off.
COLUMNS = 96
COLOURS = {"command": "#e6edf3", "output": "#8b949e", "good": "#3fb950"}


@dataclass(frozen=True, slots=True)
class TerminalLine:
    """A line of the terminal; `kind` is a key of `COLOURS`."""

    text: str
    kind: str = "output"


def draw(lines: Sequence[TerminalLine]) -> str:
    """Return an SVG in which the lines appear one after the other."""
    height = LINE * len(lines) + 40
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}">\n'
        "<style>text{font:14px ui-monospace,Menlo,Consolas,monospace;white-space:pre;opacity:0;"
        "animation:show .2s forwards}@keyframes show{to{opacity:1}}"
        "@media(prefers-reduced-motion:reduce){text{animation:none;opacity:1}}</style>\n"
        f'<rect width="{WIDTH}" height="{height}" rx="8" fill="#0d1117"/>\n'
    )
    body = "".join(
        f'<text x="20" y="{LINE * n + 32}" fill="{COLOURS[line.kind]}" style="animation-delay:{n * STEP_S:.1f}s">'
        f"{escape(shorten(line.text))}</text>\n"
        for n, line in enumerate(lines)
    )
    return f"{head}{body}</svg>\n"


def shorten(text: str) -> str:
    """Return a line that fits the picture."""
    return text if len(text) <= COLUMNS else f"{text[: COLUMNS - 1]}…"


def format_rows(names: Sequence[str], rows: Sequence[Sequence[object]]) -> Iterator[TerminalLine]:
    """Yield a result as psql shows it."""
    texts = [[str(value) for value in row] for row in rows]
    widths = [max(map(len, (name, *column))) for name, *column in zip(names, *texts, strict=True)]
    yield TerminalLine(" " + " | ".join(name.ljust(width) for name, width in zip(names, widths, strict=True)))
    for row in texts:
        yield TerminalLine(" " + " | ".join(v.ljust(width) for v, width in zip(row, widths, strict=True)), "good")


@contextmanager
def running_venus(folder: Path, target: str) -> Iterator[Callable[[], str]]:
    """Run `venus run --install`; yield a function that returns its output."""
    ports = find_free_ports(2)
    environ = os.environ | {
        "VENUS_TARGETS__MAIN__URL": target,
        "VENUS_BROKER__LISTEN": f"127.0.0.1:{ports[0]}",
        "VENUS_BROKER__HTTP": f"127.0.0.1:{ports[1]}",
        "VENUS_BROKER__FREE_BYTES_MIN": "0",
        "COLUMNS": str(COLUMNS),
    }
    shown_as = {str(folder): "/srv/shop", str(ports[0]): "7400", str(ports[1]): "7401", "\r": ""}
    command = [str(Path(sys.executable).parent / "venus"), "run", "--install"]
    screen, terminal = pty.openpty()
    process = subprocess.Popen(command, cwd=folder, env=environ, stdout=terminal, stderr=terminal)
    os.close(terminal)
    shown = bytearray()
    reader = threading.Thread(target=read_screen, args=(screen, shown))
    reader.start()
    try:
        yield lambda: re.sub("|".join(shown_as), lambda found: shown_as[found[0]], shown.decode())
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        reader.join()
        os.close(screen)


def read_screen(screen: int, shown: bytearray) -> None:
    """Collect a terminal's output until its last writer has closed it."""
    with suppress(OSError):  # EIO marks the end of a terminal
        while piece := os.read(screen, 65536):
            shown.extend(piece)


def record(folder: Path, target: str) -> Iterator[TerminalLine]:
    """Yield the lines of a run from an SQLite file in this folder to a PostgreSQL database."""
    with closing(sqlite3.connect(folder / "shop.db", isolation_level=None)) as shop:
        shop.executescript(CREATE)
        (folder / "venus.toml").write_text(CONFIGURATION)
        yield TerminalLine("$ cat venus.toml", "command")
        yield from (TerminalLine(line) for line in CONFIGURATION.splitlines())
        yield TerminalLine("$ venus run --install", "command")
        with running_venus(folder, target) as written:
            wait_for(lambda: "main: following" in written(), "the target to follow")
            yield from (TerminalLine(line) for line in written().splitlines() if line.strip())
            with closing(psycopg2.connect(target.replace("+psycopg2", ""))) as there, there.cursor() as cursor:
                there.autocommit = True
                yield from ask(cursor)
                yield TerminalLine(f'$ sqlite3 shop.db "{CHANGE}"', "command")
                began = time.monotonic()
                shop.execute(CHANGE)
                wait_for(lambda: read(cursor)[0][1] == "sent", "the change", every_s=0.002)
                took_ms = (time.monotonic() - began) * 1000
                yield from ask(cursor)
                yield TerminalLine(f"-- the change was there after {took_ms:.0f} ms")


def read(cursor: psycopg2.extensions.cursor) -> list[tuple[object, ...]]:
    """Return the rows of the target."""
    cursor.execute(QUERY)
    return cursor.fetchall()


def ask(cursor: psycopg2.extensions.cursor) -> Iterator[TerminalLine]:
    """Yield the query and the target's rows."""
    yield TerminalLine(f"shop=> {QUERY};", "command")
    rows = read(cursor)
    yield from format_rows([column.name for column in cursor.description or ()], rows)


def main() -> None:
    """Record a run and write the picture."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)  # the embedded server may run as another user
        postgres = Postgres(folder / "postgres")
        postgres.start()
        try:
            PICTURE.write_text(draw(list(record(folder, postgres.url("shop")))), encoding="utf-8")
        finally:
            postgres.stop()


if __name__ == "__main__":
    main()
