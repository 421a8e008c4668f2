"""The command: collects the parts, writes them into one archive, and says what to do with it."""

from __future__ import annotations

import io
import os
import tarfile
import time
from pathlib import Path
from typing import Annotated

import typer

from venus.cli.invocation import ConfigOption, Invocation, JsonOption
from venus.errors import ConfigError, VenusError

LogOption = Annotated[
    list[Path] | None,
    typer.Option("--log", metavar="FILE", help="A log of a VENUS process; its last lines go in. Repeatable."),
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
    from venus.cli.support.parts import parts

    run = Invocation.of(ctx, config, as_json)
    logs = log or []
    if missing := next((file for file in logs if not file.is_file()), None):
        raise ConfigError(f"--log {missing}: no such file", hint="name the file that the process's stderr goes to")
    chosen = output or Path(f"venus-support-{time.strftime('%Y%m%d-%H%M%S')}.tar.gz")
    name = chosen.name.removesuffix(".gz").removesuffix(".tar").removesuffix(".tgz")
    written: list[str] = []
    missed: dict[str, str] = {}
    with _created(chosen) as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
        for part in parts(run, logs):
            try:
                content = part.make()
            except (VenusError, OSError) as error:
                missed[part.name] = run.redactor(str(error))
                continue
            _add(archive, f"{name}/{part.name}", content)
            written.append(part.name)
        _add(archive, f"{name}/missing.txt", "".join(f"{part}: {why}\n" for part, why in missed.items()))
    document = {"bundle": str(chosen), "parts": written, "missing": missed}
    lines = [f"wrote {chosen}: {', '.join(written)}", *(f"! {part} is missing: {why}" for part, why in missed.items())]
    run.out.answer(
        document, *lines, "Names of hosts, tables and columns are in it. Look through it before you send it."
    )
    return 0


def _created(path: Path) -> io.BufferedWriter:
    """Make a file for its owner alone, which must not exist."""
    try:
        return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", hint="name another file with --output") from None


def _add(archive: tarfile.TarFile, name: str, content: str) -> None:
    entry, data = tarfile.TarInfo(name), content.encode()
    entry.size, entry.mtime, entry.mode = len(data), int(time.time()), 0o600
    archive.addfile(entry, io.BytesIO(data))
