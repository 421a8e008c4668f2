"""`venus broker`: the middleware's own process."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import typer

from venus.cli.invocation import ConfigOption, Invocation, JsonOption

if TYPE_CHECKING:
    from venus.broker.service.process import Addresses


def broker(ctx: typer.Context, config: ConfigOption = None, as_json: JsonOption = False) -> int:
    """Run a broker in the foreground until SIGTERM.

    Its store is [broker] data_dir; it listens on [broker] listen and shows metrics and health on [broker] http.
    """
    from venus.broker.service.process import serve

    run = Invocation.of(ctx, config, as_json)
    settings = run.settings
    run.log_to_stderr(logging.INFO)
    data_dir = settings.broker.data_dir.resolve()

    def ready(addresses: Addresses) -> None:
        page = f", status page http://{addresses.http}/" if addresses.http else ""
        document = {"event": "ready", "listen": addresses.grpc, "http": addresses.http, "data_dir": data_dir}
        run.out.event(document, f"broker listens on {addresses.grpc}{page}, data in {data_dir}")

    return serve(settings, ready)
