"""`venus pause`, `resume`, `resync` and `forget`: commands on individual tables, targets and businesses.

`pause`, `resume` and `resync` act on capture at the source or on apply at one target, for one table or all. `forget`
drops the data that the broker keeps for a target that will not come back, or a whole business.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from venus.cli.install import open_configured_source
from venus.cli.invocation import ConfigOption, Invocation, JsonOption
from venus.errors import ConfigError, Refused
from venus.model import count_phrase
from venus.rpc.conditions import RELEASING, missing_table_advice
from venus.text.formatting import suggest_nearest

if TYPE_CHECKING:
    from venus.adapters.dialects.contract import RegisteredTable, Source
    from venus.rpc.admin import AdminClient


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
    from venus.rpc.address import broker_address
    from venus.rpc.admin import AdminClient

    run = Invocation.from_options(ctx, config, as_json)
    if (target is None) == (business is None):
        raise ConfigError("name what to forget: --target NAME or --business NAME", hint="`venus status` shows both")
    with AdminClient(broker_address(run.settings)) as admin:
        if business is not None:
            line = _forget_business(admin, business, yes)
        else:
            line = _forget_target(admin, run.settings.business.name, str(target), yes)
    run.out.answer({"forgotten": target} if business is None else {"forgotten_business": business}, line)
    return 0


def _forget_target(admin: AdminClient, business: str, target: str, yes: bool) -> str:
    """Let the broker drop what it keeps for a target; return a sentence that confirms it."""
    from venus.network.topology import PULLS_AS

    group = target if target.startswith(PULLS_AS) else f"{business}/{target}"  # or of a broker set that pulls from here
    found = [entry for entry in admin.status(business).businesses if entry.business == business]
    groups = [consumer.group for entry in found for consumer in entry.consumers]
    if group not in groups and sum(entry.consumers_total for entry in found) <= len(groups):
        known = [g.removeprefix(f"{business}/") for g in groups]
        hint = f"it has {', '.join(known)}" if known else "it has none"
        raise ConfigError(f"the broker knows no target {target!r}{suggest_nearest(target, known)}", hint=hint)
    if not yes:
        raise Refused(f"target {target} would have to be loaded again", hint="repeat with --yes to confirm")
    admin.forget(business, group)
    return f"the broker no longer keeps anything for target {target}"


def _forget_business(admin: AdminClient, name: str, yes: bool) -> str:
    """Let the broker drop a business with all its data; return a sentence that confirms it."""
    known = {found.business: found for found in admin.status().businesses}
    if name not in known:
        hint = f"it has {', '.join(sorted(known))}" if known else "it has none"
        raise ConfigError(f"the broker knows no business {name!r}{suggest_nearest(name, list(known))}", hint=hint)
    if not yes:
        found = next((b for b in admin.whole_status(name).businesses if b.business == name), known[name])
        rows = sum(table.rows_estimate for table in found.tables)
        raise Refused(
            f"business {name} would be lost permanently: {count_phrase(len(found.tables), 'table')}, about "
            f"{count_phrase(rows, 'row')}, {count_phrase(found.next_offset, 'change')}; a source could only be "
            "filled again",
            hint="stop its capture and its targets, then repeat with --yes to confirm",
        )
    admin.forget_business(name)
    return f"the broker has forgotten business {name} and all its data"


TableArgument = Annotated[
    str | None, typer.Argument(metavar="TABLE", help="A table, with or without its namespace; none = all.")
]
AtTarget = Annotated[str | None, typer.Option("--target", metavar="NAME", help="At this target, not at the source.")]

DONE = {
    "pause": "paused",
    "resume": "resumed",
    "resync": "will be made equal to the broker's full data by `venus sync`",
}


def pause(
    ctx: typer.Context,
    name: TableArgument = None,
    target: AtTarget = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> int:
    """Stop capturing a table (or all); with --target, stop applying it there. Nothing is lost: changes wait."""
    run = Invocation.from_options(ctx, config, as_json)
    if target is not None:
        return change_target_tables(run, "pause", target, name)
    return set_state_at_source(run, name, "PAUSED", "paused by an operator")


def resume(
    ctx: typer.Context,
    name: TableArgument = None,
    target: AtTarget = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> int:
    """Resume a table (or all) that was paused or has halted."""
    run = Invocation.from_options(ctx, config, as_json)
    if target is not None:
        return change_target_tables(run, "resume", target, name)
    return set_state_at_source(run, name, "ACTIVE", "")


def resync(
    ctx: typer.Context,
    name: TableArgument = None,
    everything: Annotated[bool, typer.Option("--all", help="Every table.")] = False,
    differences: Annotated[
        bool, typer.Option("--differences", help="Ship only the rows that differ from the broker's full data.")
    ] = False,
    target: AtTarget = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> int:
    """Read a table again: with --target from the broker's full data, without it from the source.

    With --differences the table is read at the source, but only rows that differ are shipped. Exit code 1 if a table
    cannot be read because it is gone, or its triggers are not in order.
    """
    run = Invocation.from_options(ctx, config, as_json)
    if (name is None) != everything:
        raise ConfigError("name a table, or use --all")
    if target is not None:
        if differences:
            raise ConfigError("--differences concerns the source, --target the full data: use one of them")
        return change_target_tables(run, "resync", target, name)
    return resync_from_source(run, name, differences=differences)


def resync_from_source(run: Invocation, name: str | None, *, differences: bool) -> int:
    """Read tables again from the source."""
    with open_configured_source(run.directed_settings) as source:
        chosen = without_releasing(find_captured_tables(source, name), name)
        there = set(source.dictionary.read_table_names())
        present = [table.schema for table in chosen if table.schema.qualified_name in there]
        for schema in present:
            source.capture.restart_fill(schema.table_id)
        compared = [s.qualified_name for s in present if differences and request_comparison(source, s.table_id)]
        missed = {
            t.schema.qualified_name
            for t in choose_tables(source.registry.read_registered_tables(), name)
            if t.state == "RESYNC"
        }
    every = [table.schema.qualified_name for table in chosen]
    names = [q for q in every if q in there - missed]
    whole = [q for q in names if q not in compared]
    lines = [f"will be read again from the source: {', '.join(whole)}"] if whole else []
    lines += [f"will be compared with the full data: {', '.join(compared)}"] if compared else []
    if missed & there:
        mended = ", ".join(q for q in every if q in missed & there)
        lines.append(f"! not read, run `venus install-triggers`, then `venus resync` again: {mended}")
    lines += [f"! {q} no longer exists: {missing_table_advice(q)}" for q in every if q not in there]
    left = [q for q in every if q not in names]
    run.out.answer({"resync": names, "from": "source", "left": left}, *lines)
    return 1 if left else 0


def request_comparison(source: Source, table_id: int) -> bool:
    """Let the requested fill ship only differences. Return False if the table is paused or partly read already."""
    from venus.adapters.dialects.registry_rules import comparison_reason

    return source.registry.begin_comparison(table_id, comparison_reason("requested"))


def set_state_at_source(run: Invocation, name: str | None, state: str, reason: str) -> int:
    """Set the state of captured tables. A table that has missed changes cannot be resumed, only resynchronised."""
    with open_configured_source(run.directed_settings) as source:
        chosen = without_releasing(find_captured_tables(source, name), name)
        missed = [t.schema.qualified_name for t in chosen if t.state == "RESYNC"]
        if missed and name is not None:
            raise Refused(f"{missed[0]} has missed changes", hint=f"run `venus resync {missed[0]}` instead")
        chosen = [t for t in chosen if t.state != "RESYNC"]
        for table in chosen:
            source.registry.set_table_state(table.schema.table_id, state, reason)
    names = [table.schema.qualified_name for table in chosen]
    left = f"; not resumed, run `venus resync`: {', '.join(missed)}" if missed else ""
    document = {"state": state, "tables": names, "left": missed}
    run.out.answer(document, f"{state.lower()} at the source: {', '.join(names) or 'nothing'}{left}")
    return 0


def find_captured_tables(source: Source, name: str | None) -> list[RegisteredTable]:
    """Return the named captured table, or all. Raises Refused if that table was released."""
    registered = source.registry.read_registered_tables()
    if name is not None and not any(name in (t.schema.qualified_name, t.schema.name) for t in registered):
        for table in source.registry.read_released_tables():
            if name in (table.schema.qualified_name, table.schema.name):
                why = f"{table.schema.qualified_name} is not captured any more ({table.reason})"
                raise Refused(why, hint="`venus install-triggers` takes it up again")
    return choose_tables(registered, name)


def without_releasing(tables: list[RegisteredTable], name: str | None) -> list[RegisteredTable]:
    """Return the tables that are not being released. Raises Refused if the named table is."""
    leaving = [t.schema.qualified_name for t in tables if t.state == RELEASING]
    if leaving and name is not None:
        hint = f"`venus uninstall-triggers {leaving[0]}` finishes that, `venus install-triggers` takes it up again"
        raise Refused(f"{leaving[0]} is being taken out of capture", hint=hint)
    return [t for t in tables if t.schema.qualified_name not in leaving]


def choose_tables(tables: list[RegisteredTable], name: str | None) -> list[RegisteredTable]:
    """Return the named table, or all. Raises ConfigError for a name that matches no table or several."""
    tables = [t for t in tables if not t.schema.is_heartbeat]
    if not tables:
        raise ConfigError("no table is captured yet", hint="run `venus install-triggers` first")
    if name is None:
        return tables
    found = [t for t in tables if name in (t.schema.qualified_name, t.schema.name)]
    known = [t.schema.qualified_name for t in tables]
    if not found:
        hint = "captured: " + ", ".join(sorted(known)[:12])
        raise ConfigError(f"no captured table is named {name!r}{suggest_nearest(name, known)}", hint=hint)
    if len(found) > 1:
        named = " or ".join(t.schema.qualified_name for t in found)
        raise ConfigError(f"{name!r} matches more than one table: write {named}")
    return found


def change_target_tables(run: Invocation, action: str, target: str, name: str | None) -> int:
    """Pause, resume or resync a table of a target, or every table."""
    from venus.adapters.targets.registry import open_target

    opened = open_target(run.directed_settings, target)
    if action == "pause":
        done = opened.pause(name, "paused by an operator")
    elif action == "resume":
        done = opened.resume(name)
    else:
        done = opened.resync(name)
    document = {
        "target": target,
        "asked": action,
        "table": done.table,
        "states": done.states,
        "waits_for": done.waits_for,
    }
    first = f", after {done.waits_for}" if done.waits_for else ""
    run.out.answer(document, f"target {target}: {done.table or 'every table'}: {DONE[action]}{first}")
    return 0
