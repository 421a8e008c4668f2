"""The command `venus support`: collects the parts and writes them into one archive.

Each part is collected separately, so that an unreachable part does not prevent the others.
"""

from __future__ import annotations

import io
import json
import os
import platform
import re
import shlex
import sys
import tarfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path
from typing import Annotated, Any

import typer

from venus.cli.invocation import ConfigOption, Invocation, JsonOption
from venus.errors import ConfigError, VenusError
from venus.process.system import state_folder

LOG_LINES_MAX = 2000
#: How many bytes of the end of a log are read.
LOG_BYTES_MAX = 4 << 20
FAILURES_MAX = 5
GONE = "***"
_ENCLOSED = re.compile(
    r"""'[^'\n]*'|"[^"\n]*"|\([^()\n]*\)|\[[^\[\]\n]*\]|\{[^{}\n]*\}""",
)
#: `row 17`, `key 4711-a`, `value 3.5`: the text that follows is a value.
_NAMED = re.compile(
    r"\b(row|key|keys|value|values|record|DETAIL:|CONTEXT:|PARAMETERS:|HINT:)([ :=]+)(\S.*)?$", re.IGNORECASE
)
#: A quote or parenthesis that is never closed: the rest of the line is removed.
_OPEN = re.compile(r"""(?<!\w)['"({\[](?!\*\*\*).*$|=\(.*$""")
_SQLSTATE = re.compile(r"\(([0-9A-Z]{5})\)")
#: Fields of a log line that contain no values.
_PLAIN = frozenset({"time", "level", "logger", "role", "pid", "thread", "cut", "stage", "took_ms", "exit_code", "kind"})


@dataclass(frozen=True, slots=True)
class BundlePart:
    """A file of the bundle, and the function that makes its text."""

    name: str
    make: Callable[[], str]


def build_parts(run: Invocation, logs: Sequence[Path]) -> Iterator[BundlePart]:
    """Yield every part of the bundle."""
    yield BundlePart("versions.json", lambda: _to_json(collect_versions()))
    yield BundlePart("configuration.json", lambda: _to_json(collect_configuration(run)))
    yield BundlePart("status.json", lambda: _to_json(collect_status(run)))
    yield BundlePart("broker.json", lambda: _to_json(collect_broker(run)))
    yield BundlePart("metrics.txt", lambda: collect_metrics(run))
    for number, file in enumerate([*logs, *find_failure_reports()]):
        yield BundlePart(f"logs/{number}-{file.name}", lambda file=file: read_log(run, file))  # type: ignore[misc]


def collect_versions() -> dict[str, Any]:
    """Return the versions of VENUS, Python and all packages."""
    import venus

    installed = {found.metadata["Name"]: found.version for found in distributions()}
    return {
        "venus": venus.__version__,
        "python": sys.version,
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "packages": dict(sorted(installed.items(), key=lambda item: str(item[0]).lower())),
    }


def collect_configuration(run: Invocation) -> dict[str, Any]:
    """Return the settings in force; of commands, only the program, because arguments may be secrets."""
    from venus.config import effective_settings

    found = effective_settings(run.settings)
    for section in (found["source"], *found["targets"].values()):
        section["password_command"] = GONE if section["password_command"] else ""
    for recipient in found["alarms"]["to"].values():
        recipient["command"] = _mask_arguments(recipient["command"])
    found["spark"]["conf"] = dict.fromkeys(found["spark"]["conf"], GONE)
    return json.loads(run.redactor(json.dumps(found, default=str)))  # type: ignore[no-any-return]


def collect_status(run: Invocation) -> Any:
    """Return the document of `venus status`, without anything that could be a value of a row."""
    from venus.cli.output import to_plain
    from venus.cli.probes import read_overview
    from venus.cli.status import document

    return scrub_tree(json.loads(run.redactor(json.dumps(document(read_overview(run.settings)), default=to_plain))))


def collect_broker(run: Invocation) -> Any:
    """Return the broker's status of all businesses, with the rule of each alarm."""
    from google.protobuf.json_format import MessageToDict

    from venus.text.alarm_rules import classify_sentence

    found = _read_broker_status(run)
    document = MessageToDict(found, preserving_proto_field_name=True)
    sentences = [*found.alarms, *(text for entry in found.businesses for text in entry.alarms)]
    document["rules"] = [classify_sentence(text)[0].name for text in sentences]
    return scrub_tree(json.loads(run.redactor(json.dumps(document))))


def collect_metrics(run: Invocation) -> str:
    """Return the broker's metrics, computed from its status."""
    from prometheus_client import generate_latest

    from venus.broker.service.metrics import build_registry

    return generate_latest(build_registry(_read_broker_status(run))).decode()


def read_log(run: Invocation, file: Path) -> str:
    """Return the newest lines of a log."""
    with file.open("rb") as opened:
        opened.seek(max(0, file.stat().st_size - LOG_BYTES_MAX))
        lines = opened.read(LOG_BYTES_MAX).decode(errors="replace").splitlines()
    return "\n".join(scrub_log_line(run.redactor(line)) for line in lines[-LOG_LINES_MAX:]) + "\n"


def find_failure_reports() -> list[Path]:
    """Return the newest reports of unexpected failures of this user's commands."""
    return sorted(state_folder().glob("failure-*.log"))[-FAILURES_MAX:]


def _read_broker_status(run: Invocation) -> Any:
    """Return the broker's status of all businesses."""
    from venus.rpc.address import broker_address
    from venus.rpc.admin import AdminClient

    with AdminClient(broker_address(run.settings), timeout_s=5.0) as admin:
        return admin.status("")


def _mask_arguments(command: str) -> str:
    """Return the program of a command line, with a mark in place of its arguments."""
    try:
        return f"{shlex.split(command)[0]} {GONE}" if command else ""
    except (ValueError, IndexError):
        return GONE


def _to_json(found: Any) -> str:
    return json.dumps(found, indent=1, ensure_ascii=False, default=str) + "\n"


LogOption = Annotated[
    list[Path] | None,
    typer.Option("--log", metavar="FILE", help="A log of a VENUS process; its last lines are included. Repeatable."),
]
OutputOption = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FILE", help="The archive; default venus-support-TIME.tar.gz.")
]


def support(
    ctx: typer.Context,
    log: LogOption = None,
    output: OutputOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> int:
    """Write a bundle for a bug report: versions, configuration, status, metrics, logs; no rows and no secrets.

    What could be a value of a row is removed from every text: everything in quotes, parentheses or braces.
    """
    run = Invocation.from_options(ctx, config, as_json)
    logs = log or []
    if missing := next((file for file in logs if not file.is_file()), None):
        raise ConfigError(f"--log {missing}: no such file", hint="name the file with the stderr of the process")
    chosen = output or Path(f"venus-support-{time.strftime('%Y%m%d-%H%M%S')}.tar.gz")
    name = chosen.name.removesuffix(".gz").removesuffix(".tar").removesuffix(".tgz")
    written: list[str] = []
    missed: dict[str, str] = {}
    with _create_file(chosen) as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
        for part in build_parts(run, logs):
            try:
                content = part.make()
            except Exception as error:  # a bundle is most needed when a part of VENUS has a defect
                expected = isinstance(error, VenusError | OSError)
                missed[part.name] = run.redactor(str(error) if expected else f"{type(error).__name__}: {error}")
                continue
            _add_file(archive, f"{name}/{part.name}", content)
            written.append(part.name)
        _add_file(archive, f"{name}/missing.txt", "".join(f"{part}: {why}\n" for part, why in missed.items()))
    document = {"bundle": str(chosen), "parts": written, "missing": missed}
    lines = [f"wrote {chosen}: {', '.join(written)}", *(f"! {part} is missing: {why}" for part, why in missed.items())]
    run.out.answer(document, *lines, "It contains names of hosts, tables and columns. Review it before you send it.")
    return 0


def _create_file(path: Path) -> io.BufferedWriter:
    """Create a new file that only its owner can read."""
    try:
        return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", hint="name another file with --output") from None


def _add_file(archive: tarfile.TarFile, name: str, content: str) -> None:
    entry, data = tarfile.TarInfo(name), content.encode()
    entry.size, entry.mtime, entry.mode = len(data), int(time.time()), 0o600
    archive.addfile(entry, io.BytesIO(data))


def scrub_text(text: str) -> str:
    """Return a text, of one or several lines, without anything that could be a value of a row."""
    return "\n".join(_scrub_line(line) for line in text.splitlines())


def scrub_tree(found: Any) -> Any:
    """Return a document with every text in it scrubbed; numbers are counts and positions, and are kept."""
    if isinstance(found, dict):
        return {name: scrub_tree(value) for name, value in found.items()}
    if isinstance(found, list | tuple):
        return [scrub_tree(value) for value in found]
    return scrub_text(found) if isinstance(found, str) else found


def scrub_log_line(text: str) -> str:
    """Return a log line scrubbed; a line of JSON remains JSON."""
    if text.startswith("{"):
        try:
            found = json.loads(text)
        except ValueError:
            return scrub_text(text)
        if isinstance(found, dict):
            kept = {name: value if name in _PLAIN else scrub_tree(value) for name, value in found.items()}
            return json.dumps(kept, ensure_ascii=False)
    return scrub_text(text)


def _scrub_line(line: str) -> str:
    """Return a line without anything that could be a value of a row; SQLSTATEs are kept."""
    if re.match(r'\s*File "[^"]+", line \d+', line):
        return line  # a frame of a traceback, whose source line contains only names of VENUS's code
    states = _SQLSTATE.findall(line)
    before = None
    while before != line:
        before, line = line, _ENCLOSED.sub(GONE, line)
    line = _NAMED.sub(rf"\1\2{GONE}", line)
    line = _OPEN.sub(GONE, line)
    return line + "".join(f" SQLSTATE {state}" for state in states)
