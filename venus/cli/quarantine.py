"""`venus quarantine`: lists, retries and skips changes that a target refused.

A HALTED change stops its whole table. A PARKED one (`on_error = "quarantine"`) delays only later changes of the same
key.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from venus.cli.invocation import CommandSet, ConfigOption, Invocation, JsonOption, TargetOption, choose_target
from venus.cli.output import build_table
from venus.errors import VenusError

if TYPE_CHECKING:
    from venus.adapters.targets.contract import Quarantine, QuarantineRow, RetryReport
    from venus.config import Settings

app = CommandSet(help="Rows that a target refused: list, retry, skip.")


@app.command("list")
def list_(
    ctx: typer.Context,
    target: Annotated[str | None, typer.Option("--target", metavar="NAME", help="Of this target only.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Include the decided ones.")] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> int:
    """List refused changes with key, SQLSTATE, message and values. Exit code 1 if changes are in quarantine."""
    from venus.adapters.targets.registry import open_target

    run = Invocation.from_options(ctx, config, as_json)
    names = [target] if target is not None else list(run.directed_settings.targets)
    if target is None and len(names) > 1:  # only targets that have a quarantine
        names = [name for name in names if open_target(run.directed_settings, name).capabilities.quarantines] or names
    kept = {name: open_quarantine(run.directed_settings, name) for name in names}
    found = {name: quarantine.list(everything=everything) for name, quarantine in kept.items()}
    values = {name: decode_payloads(name, kept[name], rows) for name, rows in found.items()}
    rows: list[tuple[object, ...]] = [
        (
            row.id,
            name,
            row.table,
            row.key,
            row.state,
            row.sqlstate or None,
            row.message,
            format_values(values[name][row.id]),
        )
        for name, waiting in found.items()
        for row in waiting
    ]
    document = {
        name: [change_document(row, values[name][row.id]) for row in waiting] for name, waiting in found.items()
    }
    columns = ("id", "target", "table", "key", "state", "SQLSTATE", "message", "row")
    run.out.answer({"quarantine": document}, build_table(*columns, rows=rows) if rows else "no refused change")
    return 1 if any(row.decided_at is None for waiting in found.values() for row in waiting) else 0


@app.command()
def retry(
    ctx: typer.Context,
    ids: Annotated[list[int] | None, typer.Argument(metavar="ID", help="The ids; none = all.")] = None,
    name: Annotated[
        list[str] | None, typer.Option("--table", metavar="TABLE", help="All changes of this table.")
    ] = None,
    target: TargetOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> int:
    """Retry after the target has been fixed; a halted table resumes. Exit code 1 if a change is refused again."""
    run = Invocation.from_options(ctx, config, as_json)
    chosen = choose_target(run.directed_settings, target)
    return print_result(run, chosen, open_quarantine(run.directed_settings, chosen).retry(ids or (), name or ()))


@app.command()
def skip(
    ctx: typer.Context,
    ids: Annotated[list[int], typer.Argument(metavar="ID", help="The ids, as `venus quarantine list` shows them.")],
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="The reason; it is stored with the change.")],
    target: TargetOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> int:
    """Skip changes permanently: they are counted as skipped and kept with the reason."""
    run = Invocation.from_options(ctx, config, as_json)
    chosen = choose_target(run.directed_settings, target)
    return print_result(run, chosen, open_quarantine(run.directed_settings, chosen).skip(ids, reason=reason))


def open_quarantine(settings: Settings, name: str) -> Quarantine:
    """Open the quarantine of a target. Raises ConfigError if this kind of target has none."""
    from venus.adapters.targets.contract import require_capability
    from venus.adapters.targets.registry import open_target

    target = open_target(settings, name)
    require_capability(target, "quarantines")
    return target.open_quarantine()


def print_result(run: Invocation, target: str, report: RetryReport) -> int:
    """Print the outcome of a retry or skip."""
    line = f"target {target}: {report.applied:,} applied, {report.still_refused:,} refused again"
    if report.resumed:
        line += f"; resumed: {', '.join(report.resumed)}"
    run.out.answer({"target": target, "report": report}, *(f"! {message}" for message in report.messages), line)
    return 1 if report.still_refused else 0


def change_document(row: QuarantineRow, values: dict[str, str | None]) -> dict[str, object]:
    """Return the JSON document of a refused change."""
    return {
        "id": row.id,
        "table": row.table,
        "key": row.key,
        "state": row.state,
        "sqlstate": row.sqlstate,
        "message": row.message,
        "offset": row.offset,
        "sequence": row.sequence,
        "is_deleted": row.is_deleted,
        "values": values,
        "reason": row.reason,
        "created_at": row.created_at,
        "decided_at": row.decided_at,
    }


def decode_payloads(target: str, quarantine: Quarantine, rows: list[QuarantineRow]) -> dict[int, dict[str, str | None]]:
    """Decode the refused rows with the table versions that the target keeps."""
    from venus.codec.columns import row_as_dict
    from venus.codec.row_bytes import Layout

    if not rows:
        return {}
    layouts = {(s.table_id, s.version): Layout.of(s) for s in quarantine.schemas()}
    found: dict[int, dict[str, str | None]] = {}
    for row in rows:
        layout = layouts.get((row.table_id, row.schema_version))
        if layout is None:
            raise VenusError(f"target {target} does not know version {row.schema_version} of {row.table}")
        whole = row_as_dict(row.record_id, row.row_message[len(row.record_id) :], layout)
        found[row.id] = {name: value.hex() if isinstance(value, bytes) else value for name, value in whole.items()}
    return found


def format_values(values: dict[str, str | None]) -> str:
    """Format a row in one line, with long values cut."""
    return ", ".join(f"{name}={'NULL' if value is None else value[:40]}" for name, value in values.items())
