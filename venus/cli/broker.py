"""`venus broker`: runs a broker process, or checks its data directory."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Annotated

import typer

from venus.cli.invocation import ConfigOption, Invocation, JsonOption, LogFormatOption
from venus.cli.output import to_plain
from venus.model import count_phrase

if TYPE_CHECKING:
    from venus.broker.service.process import Addresses


CheckOption = Annotated[
    bool,
    typer.Option(
        "--check",
        help="Read everything in data_dir, report what was checked, and exit with 0 if it is sound, 1 if not. "
        "No broker may run on it.",
    ),
]


def broker(
    ctx: typer.Context,
    check: CheckOption = False,
    log_format: LogFormatOption = "text",
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> int:
    """Run a broker in the foreground until SIGTERM.

    The broker stores its data in [broker] data_dir, listens on [broker] listen, and shows metrics and health on
    [broker] http.
    """
    from venus.broker.service.process import serve
    from venus.process import tracing

    run = Invocation.from_options(ctx, config, as_json)
    run.choose_log_format(log_format)
    run.needs_passwords = False
    settings = run.settings
    if check:
        return _check_data_dir(run)
    run.log_to_stderr(logging.INFO)
    data_dir = settings.broker.data_dir.resolve()

    def announce_ready(addresses: Addresses) -> None:
        """Write the event that the broker is ready, with its addresses."""
        page = f", status page {addresses.page}" if addresses.http else ""
        document = {
            "event": "ready",
            "listen": addresses.grpc,
            "http": addresses.http,
            "tls": addresses.tls,
            "data_dir": data_dir,
        }
        run.out.write_event(document, f"broker listens on {addresses.grpc}{page}, data in {data_dir}")

    spans = tracing.start_tracing(settings.tracing.endpoint, settings.tracing.sample, run.role)
    try:
        return serve(settings, announce_ready)
    finally:
        tracing.stop_tracing(spans)


def _check_data_dir(run: Invocation) -> int:
    """Check a whole data directory for damage; print a line for each check."""
    from venus.broker.snapshot import offline

    data_dir = run.settings.broker.data_dir.resolve()
    findings = 0
    for found in offline.check_directory(data_dir):
        findings += bool(found.finding)
        word, text = ("WRONG", found.finding) if found.finding else ("ok", found.seen)
        run.out.write_event({"event": "checked", **to_plain(found)}, f"{word:5} {found.what}: {text}")
    end = f"{count_phrase(findings, 'finding')}: none of this may be served" if findings else "no damage found"
    run.out.write_event({"event": "ended", "findings": findings}, f"{data_dir}: {end}")
    return 1 if findings else 0
