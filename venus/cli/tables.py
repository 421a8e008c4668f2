"""`venus pause`, `resume`, `resync`: of capture at the source or of apply at one target; everything, or one table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from venus.cli import lakes
from venus.cli.install import nearest, opened_source
from venus.cli.invocation import ConfigOption, Invocation, JsonOption
from venus.errors import ConfigError, Refused

if TYPE_CHECKING:
    from venus.adapters.dialects.contract import RegisteredTable
    from venus.config import Settings

TableArgument = Annotated[
    str | None, typer.Argument(metavar="TABLE", help="A table, with or without its namespace; none = all.")
]
AtTarget = Annotated[
    str | None, typer.Option("--target", metavar="NAME", help="At this target instead of at the source.")
]

DONE = {"pause": "paused", "resume": "goes on", "resync": "will be made equal to the broker's full data"}


def pause(
    ctx: typer.Context,
    name: TableArgument = None,
    target: AtTarget = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> int:
    """Stop capturing a table (or all), or with --target stop applying it there. Nothing is lost: changes wait."""
    run = Invocation.of(ctx, config, as_json)
    if target is not None:
        return at_target(run, "pause", target, name)
    return at_source(run, name, "PAUSED", "paused by an operator")


def resume(
    ctx: typer.Context,
    name: TableArgument = None,
    target: AtTarget = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> int:
    """Go on with a table (or all) that was paused or has halted."""
    run = Invocation.of(ctx, config, as_json)
    if target is not None:
        return at_target(run, "resume", target, name)
    return at_source(run, name, "ACTIVE", "")


def resync(
    ctx: typer.Context,
    name: TableArgument = None,
    everything: Annotated[bool, typer.Option("--all", help="Every table.")] = False,
    target: AtTarget = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> int:
    """Read a table again: with --target from the broker's full data, without it from the source."""
    run = Invocation.of(ctx, config, as_json)
    if (name is None) != everything:
        raise ConfigError("name a table, or say --all")
    if target is not None:
        return at_target(run, "resync", target, name)
    with opened_source(run.settings) as source:
        chosen = choose(source.registered(), name)
        for table in chosen:
            source.restart_fill(table.schema.table_id)
    names = [table.schema.qualified for table in chosen]
    run.out.answer({"resync": names, "from": "source"}, f"will be read again from the source: {', '.join(names)}")
    return 0


def at_source(run: Invocation, name: str | None, state: str, reason: str) -> int:
    """Set the state of captured tables; one that missed changes is not declared well by resuming it."""
    with opened_source(run.settings) as source:
        chosen = choose(source.registered(), name)
        missed = [t.schema.qualified for t in chosen if t.state == "RESYNC"]
        if missed and name is not None:
            raise Refused(f"{missed[0]} has missed changes", hint=f"run `venus resync {missed[0]}` instead")
        chosen = [t for t in chosen if t.state != "RESYNC"]
        for table in chosen:
            source.set_table_state(table.schema.table_id, state, reason)
    names = [table.schema.qualified for table in chosen]
    left = f"; left alone, run `venus resync`: {', '.join(missed)}" if missed else ""
    document = {"state": state, "tables": names, "left": missed}
    run.out.answer(document, f"{state.lower()} at the source: {', '.join(names) or 'nothing'}{left}")
    return 0


def choose(tables: list[RegisteredTable], name: str | None) -> list[RegisteredTable]:
    """Return the tables meant; refuse a name that means none, or more than one."""
    from venus.adapters.under.naming import is_heartbeat

    tables = [t for t in tables if not is_heartbeat(t.schema)]
    if not tables:
        raise ConfigError("no table is captured yet", hint="run `venus install-triggers` first")
    if name is None:
        return tables
    found = [t for t in tables if name in (t.schema.qualified, t.schema.name)]
    known = [t.schema.qualified for t in tables]
    if not found:
        hint = "captured: " + ", ".join(sorted(known)[:12])
        raise ConfigError(f"no captured table is named {name!r}{nearest(name, known)}", hint=hint)
    if len(found) > 1:
        named = " or ".join(t.schema.qualified for t in found)
        raise ConfigError(f"{name!r} means more than one table: write {named}")
    return found


def at_target(run: Invocation, what: str, target: str, name: str | None) -> int:
    """Do it at a target."""
    from venus.adapters.under import control
    from venus.config import require_target

    settings = run.settings
    require_target(settings, target)
    if lakes.is_lake(settings, target):
        states = lakes.command(settings, target, what, name)
        document = {"target": target, "asked": what, "table": name, "states": states}
        run.out.answer(document, f"target {target}: {name or 'every table'}: {DONE[what]}")
        return 0
    meant = [known_at_target(settings, target, name)] if name is not None else []
    if what == "pause":
        control.pause(settings, target, meant, reason="paused by an operator")
    elif what == "resume":
        control.resume(settings, target, meant)
    else:
        control.resync(settings, target, meant[0] if meant else "*")
    states = {t.source_name: t.state for t in control.table_states(settings, target)}
    document = {"target": target, "asked": what, "table": meant[0] if meant else None, "states": states}
    run.out.answer(document, f"target {target}: {meant[0] if meant else 'every table'}: {DONE[what]}")
    return 0


def known_at_target(settings: Settings, target: str, name: str) -> str:
    """Return the source name of the table meant; refuse a name that means none, or more than one."""
    from venus.adapters.under.control import table_states

    states = table_states(settings, target)
    found = [t.source_name for t in states if name in (t.source_name, f"{t.namespace}.{t.name}", t.name)]
    if len(found) == 1:
        return found[0]
    if found:
        raise ConfigError(f"{name!r} means more than one table: write {' or '.join(found)}")
    known = [t.source_name for t in states]
    hint = "its tables: " + ", ".join(sorted(known)[:12]) if known else f"run `venus migrate --target {target}`"
    raise ConfigError(f"target {target} has no table {name!r}{nearest(name, known)}", hint=hint)
