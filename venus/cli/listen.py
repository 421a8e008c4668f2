"""`venus listen`: the rows of a table inside a predicate, then every change, as lines of JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from venus.cli.invocation import ConfigOption, Invocation, JsonOption
from venus.errors import ConfigError

if TYPE_CHECKING:
    from venus.client import ChangePosition, Changes
    from venus.client.changes import Start

NOW, ROWS = "now", "snapshot"
_WAIT_S = 1.0


def listen(
    ctx: typer.Context,
    table: Annotated[str, typer.Argument(metavar="TABLE", help="A table of the source, like orders or shop.orders.")],
    where: Annotated[
        str,
        typer.Argument(metavar="PREDICATE", help="Which rows, like \"region = 'EU' and amount >= 100\"; none = all."),
    ] = "",
    start: Annotated[
        str,
        typer.Option("--from", metavar="POSITION", help="A position that was printed, or now; none = all rows first."),
    ] = ROWS,
    columns: Annotated[
        list[str] | None,
        typer.Option("--column", metavar="NAME", help="Only the key and this column; may be repeated."),
    ] = None,
    group: Annotated[
        str, typer.Option("--group", metavar="NAME", help="Let the broker keep the position under this name.")
    ] = "",
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> int:
    """Print the rows of a table that a predicate selects, then every change of them, as lines of JSON."""
    from venus.client import Broker
    from venus.rpc.address import CONSUMER, broker_address

    run = Invocation.from_options(ctx, config, as_json)
    run.needs_passwords = False
    address, business = broker_address(run.settings, CONSUMER), run.settings.business.name
    if group.startswith(f"{business}/"):
        raise ConfigError(f"group {group!r} is that of a target", hint="choose a name without a slash")
    with Broker(address, business, "venus listen") as broker:
        changes = broker.changes(table, where=where, columns=columns or (), start=_parse_start(start), group=group)
        try:
            _print_changes(run, changes)
        except KeyboardInterrupt:
            if changes.position is not None:
                run.out.say(f"ended; --from {changes.position} continues here")
            raise
    return 0


def _parse_start(text: str) -> Start | ChangePosition:
    """Return where a subscription starts: a keyword of --from unchanged, or the position that the text states."""
    from venus.client import ChangePosition

    return text if text in (NOW, ROWS) else ChangePosition.parse(text)  # type: ignore[return-value]


def _print_changes(run: Invocation, changes: Changes) -> None:
    """Print changes as they arrive, and acknowledge each batch after it is printed."""
    while True:
        batch = changes.poll(_WAIT_S)
        if batch is None:
            run.out.write_lines(())  # if the reader of the output is gone, the command ends
            continue
        run.out.write_lines(batch.lines())
        batch.acknowledge()
