"""`venus forget`: what the broker keeps for a target that will not come back, or a whole business with all it has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from venus.cli.invocation import ConfigOption, Invocation, JsonOption
from venus.errors import ConfigError, Refused
from venus.model import counted
from venus.suggest import nearest

if TYPE_CHECKING:
    from venus.rpc.admin import Admin


def forget(
    ctx: typer.Context,
    target: Annotated[
        str | None,
        typer.Option(
            "--target",
            metavar="NAME",
            help="Drop what the broker keeps for this target; mirror/SET is a broker set that pulls.",
        ),
    ] = None,
    business: Annotated[
        str | None,
        typer.Option("--business", metavar="NAME", help="Drop a whole business: its queue and its full data."),
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="Confirm that it will not come back, or will be loaded again.")
    ] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> int:
    """Drop what the broker keeps for a target, or a whole business, even if it is no longer configured."""
    from venus.rpc.address import broker_of
    from venus.rpc.admin import Admin

    run = Invocation.of(ctx, config, as_json)
    if (target is None) == (business is None):
        raise ConfigError("name what to forget: --target NAME or --business NAME", hint="`venus status` shows both")
    with Admin(broker_of(run.settings)) as admin:
        if business is not None:
            line = _business(admin, business, yes)
        else:
            line = _target(admin, run.settings.business.name, str(target), yes)
    run.out.answer({"forgotten": target} if business is None else {"forgotten_business": business}, line)
    return 0


def _target(admin: Admin, business: str, target: str, yes: bool) -> str:
    from venus.network.topology import PULLS_AS

    group = target if target.startswith(PULLS_AS) else f"{business}/{target}"  # or a broker set that pulls from here
    found = [entry for entry in admin.status(business).businesses if entry.business == business]
    groups = [consumer.group for entry in found for consumer in entry.consumers]
    if group not in groups and sum(entry.consumers_total for entry in found) <= len(groups):
        known = [g.removeprefix(f"{business}/") for g in groups]
        hint = f"it has {', '.join(known)}" if known else "it has none"
        raise ConfigError(f"the broker knows no target {target!r}{nearest(target, known)}", hint=hint)
    if not yes:
        raise Refused(f"target {target} would have to be loaded again", hint="repeat with --yes to confirm")
    admin.forget(business, group)
    return f"the broker no longer keeps anything for target {target}"


def _business(admin: Admin, name: str, yes: bool) -> str:
    known = {found.business: found for found in admin.status().businesses}
    if name not in known:
        hint = f"it has {', '.join(sorted(known))}" if known else "it has none"
        raise ConfigError(f"the broker knows no business {name!r}{nearest(name, list(known))}", hint=hint)
    if not yes:
        found = next((b for b in admin.whole_status(name).businesses if b.business == name), known[name])
        rows = sum(table.rows_estimate for table in found.tables)
        raise Refused(
            f"business {name} would be gone for good: {counted(len(found.tables), 'table')}, about "
            f"{counted(rows, 'row')}, {counted(found.next_offset, 'change')}; a source could only be filled again",
            hint="stop its capture and its targets, then repeat with --yes to confirm",
        )
    admin.forget_business(name)
    return f"the broker has forgotten business {name} and all it had"
