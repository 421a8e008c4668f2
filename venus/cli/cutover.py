"""`venus cutover`: makes a target the application's own database, with a certificate; rehearses or undoes that."""

from __future__ import annotations

import getpass
import os
import socket
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from venus.cli.invocation import ConfigOption, Invocation, JsonOption, TargetOption, choose_target, may_fall_back
from venus.errors import ConfigError

if TYPE_CHECKING:
    from venus.adapters.cutover.direction import FallBackPair
    from venus.adapters.cutover.run import CutoverOutcome
    from venus.config import Settings

REFUSED = 3


Rehearse = Annotated[
    bool, typer.Option("--rehearse", help="Do everything but the last step, and list everything that blocks it.")
]
FallBack = Annotated[
    bool,
    typer.Option("--fall-back", help="Let the source follow the target from then on, for `venus fallback`."),
]
Undo = Annotated[bool, typer.Option("--undo", help="Return the target to VENUS, if it has not been written to since.")]
LeaveInvalid = Annotated[
    bool, typer.Option("--leave-invalid", help="Enforce foreign keys that rows violate for new rows only.")
]
LeaveOut = Annotated[
    list[str] | None,
    typer.Option(
        "--leave-out",
        metavar="TABLE",
        help="Go without this table, which matches the patterns and is not captured; repeatable.",
    ),
]
LeaveDifferences = Annotated[
    bool,
    typer.Option("--leave-differences", help="Accept that the target lacks constraints or columns of the source."),
]
Wait = Annotated[
    float,
    typer.Option(
        "--wait", metavar="SECONDS", min=0, help="How long to wait for changes that have not arrived, and for locks."
    ),
]
Quiet = Annotated[
    float, typer.Option("--quiet", metavar="SECONDS", min=0, help="How long the source must have been without writes.")
]
CertificateFile = Annotated[
    Path | None,
    typer.Option("--certificate", metavar="FILE", help="Where to write the certificate; .json and .txt are added."),
]


def cutover(
    ctx: typer.Context,
    named: TargetOption = None,
    rehearse: Rehearse = False,
    fall_back: FallBack = False,
    undo: Undo = False,
    leave_invalid: LeaveInvalid = False,
    leave_out: LeaveOut = None,
    leave_differences: LeaveDifferences = False,
    wait: Wait = 60.0,
    quiet: Quiet = 5.0,
    certificate: CertificateFile = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> int:
    """Make a target the application's own: drain, compare every row, set counters, enforce foreign keys.

    Stop the application's writes at the source first; `venus sync` continues meanwhile. If anything blocks the
    cut-over, the command lists it with the remedy and changes nothing. After the last step VENUS writes no more rows at
    this target.
    """
    from venus.adapters.targets.contract import require_capability
    from venus.adapters.targets.registry import open_target

    run = Invocation.from_options(ctx, config, as_json)
    settings = run.settings
    target = choose_target(settings, named)
    require_capability(open_target(settings, target), "cuts_over", hint="a PostgreSQL target can be: --target NAME")
    if rehearse and undo:
        raise ConfigError("--rehearse and --undo cannot be combined")
    pair = find_pair(settings, target, fall_back=fall_back)
    if undo and pair is None:
        return undo_cutover(run, settings, target)
    options = SwitchOptions(
        rehearse=rehearse,
        undo=undo,
        wait_s=wait,
        quiet_s=quiet,
        leave_invalid=leave_invalid,
        leave_differences=leave_differences,
        leave_out=tuple(leave_out or ()),
        certificate=certificate,
    )
    return switch_to(run, settings, target, pair, options)


def fallback(
    ctx: typer.Context,
    rehearse: Rehearse = False,
    undo: Annotated[
        bool, typer.Option("--undo", help="Let the new database accept writes again, if a switch was interrupted.")
    ] = False,
    leave_invalid: LeaveInvalid = False,
    leave_out: LeaveOut = None,
    leave_differences: LeaveDifferences = False,
    wait: Wait = 60.0,
    quiet: Quiet = 5.0,
    certificate: CertificateFile = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> int:
    """Make the old database the application's again, with every write since `venus cutover --fall-back`.

    Stop the application's writes at the new database first; `venus sync` continues meanwhile. Afterwards the new
    database follows the old one, without a load, so `venus cutover --fall-back` can be repeated.
    """
    from venus.adapters.cutover.direction import require_state
    from venus.adapters.targets.switching import OLD

    run = Invocation.from_options(ctx, config, as_json)
    state = require_state(run.settings)
    options = SwitchOptions(
        rehearse=rehearse,
        undo=undo,
        wait_s=wait,
        quiet_s=quiet,
        leave_invalid=leave_invalid,
        leave_differences=leave_differences,
        leave_out=tuple(leave_out or ()),
        certificate=certificate,
    )
    return switch_to(run, state.pair.settings_to(OLD), OLD, state.pair, options)


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchOptions:
    """Options of a cut-over or of a fall-back."""

    rehearse: bool
    undo: bool
    wait_s: float
    quiet_s: float
    leave_invalid: bool
    leave_differences: bool
    leave_out: tuple[str, ...]
    certificate: Path | None


def find_pair(settings: Settings, target: str, *, fall_back: bool) -> FallBackPair | None:
    """Return the databases between which the application can switch; None without a way back."""
    from venus.adapters.cutover.direction import check_pair, read_state

    pair = check_pair(settings, target) if fall_back else None
    state = read_state(settings) if may_fall_back(settings) else None
    if state is not None:
        state.check()
    if pair is not None:
        return pair
    return state.pair if state is not None and state.pair.main == target else None


def switch_to(
    run: Invocation, settings: Settings, target: str, pair: FallBackPair | None, options: SwitchOptions
) -> int:
    """Make a target the application's database, rehearse that, or undo an interrupted switch."""
    from venus.adapters.cutover import run as cutting

    if options.undo and pair is not None:
        cutting.undo_switch(pair, target)
        line = f"{pair.other(target)} accepts writes again, and {target} follows it as before"
        run.out.answer({"target": target, "undone": True}, line)
        return 0
    stem = "fallback" if run.command == "venus fallback" else f"cutover-{target}"
    base = check_certificate_path(options.certificate or Path(f"{stem}{'-rehearsal' if options.rehearse else ''}"))
    with run.out.progress("cut-over") as steps:
        request = cutting.CutoverRequest(
            rehearse=options.rehearse,
            wait_s=options.wait_s,
            quiet_s=options.quiet_s,
            leave_invalid=options.leave_invalid,
            leave_differences=options.leave_differences,
            leave_out=options.leave_out,
            pair=pair,
            head=certificate_head(settings, target),
        )
        outcome = cutting.run_cutover(settings, target, request, steps.update)
    return print_result(run, settings, target, pair, outcome, base)


def check_certificate_path(base: Path) -> Path:
    """Return the base path of the certificate. Raises ConfigError at once if the path is not writable."""
    base = base.with_suffix("") if base.suffix in (".json", ".txt") else base
    if not base.parent.is_dir() or not os.access(base.parent, os.W_OK):
        raise ConfigError(
            f"the certificate cannot be written to {base.parent}", hint="name another file: --certificate FILE"
        )
    return base


def certificate_head(settings: Settings, target: str) -> dict[str, Any]:
    """Return the head of the certificate: user, time and databases, with masked passwords."""
    from venus import __version__
    from venus.text.formatting import mask_url

    return {
        "venus": __version__,
        "made_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "made_by": f"{getpass.getuser()}@{socket.gethostname()}",
        "source_url": mask_url(settings.source.url.get_secret_value()),
        "target_url": mask_url(settings.targets[target].url.get_secret_value()),
    }


def print_result(
    run: Invocation,
    settings: Settings,
    target: str,
    pair: FallBackPair | None,
    outcome: CutoverOutcome,
    base: Path,
) -> int:
    """Write the certificate to its files, and print it with the next steps; return the exit code."""
    import json

    from venus.adapters.cutover.certificate import to_text
    from venus.adapters.targets.switching import switch_command

    found = outcome.certificate
    shown = to_text(found)
    files = [base.with_name(f"{base.name}{suffix}") for suffix in (".json", ".txt")]
    files[0].write_text(run.redactor(json.dumps(found, indent=2, ensure_ascii=False)) + "\n", encoding="utf-8")
    files[1].write_text(run.redactor(shown), encoding="utf-8")
    blocked = [block.line for block in outcome.blocks]
    document = {
        "target": target,
        "rehearsal": found["kind"] == "rehearsal",
        "already": outcome.already,
        "resumed": outcome.resumed,
        "blocks": blocked,
        "files": [str(file) for file in files],
        "certificate": found,
    }
    lines = [shown, f"written to {files[0]} and {files[1]}"]
    if found["kind"] == "rehearsal":
        lines += [f"! blocks the cut-over: {line}" for line in blocked]
        command = f"venus cutover --target {target}" if pair is None else switch_command(target)
        lines.append("not ready" if blocked else f"ready: `{command}` would go through")
    elif pair is None:
        lines += next_steps(settings, target, already=outcome.already)
    else:
        lines += steps_with_way_back(settings, target, pair.other(target), already=outcome.already)
    run.out.answer(document, *lines)
    return REFUSED if blocked else 0


def next_steps(settings: Settings, target: str, *, already: bool) -> list[str]:
    """Return the operator's next steps after a cut-over without a way back, as lines of output."""
    from venus.text.formatting import mask_url

    url = mask_url(settings.targets[target].url.get_secret_value())
    done = "was already cut over; nothing was done" if already else "is cut over: VENUS writes no row there any more"
    return [
        f"target {target} {done}. Next:",
        f"  1. point the application at {url} and let it write",
        "  2. watch `venus status`: it names late writes at the source, which are no longer carried over",
        f"  3. back, as long as the target has not been written to: `venus cutover --target {target} --undo`",
        "  4. to finish: stop `venus sync`, `venus uninstall-triggers`, "
        f"`venus forget --target {target} --yes`, stop the broker",
    ]


def steps_with_way_back(settings: Settings, target: str, other: str, *, already: bool) -> list[str]:
    """Return the operator's next steps after a switch that has a way back, as lines of output."""
    from venus.adapters.targets.switching import switch_command
    from venus.text.formatting import mask_url

    url = mask_url(settings.targets[target].url.get_secret_value())
    done = "is the application's database already" if already else "is the application's database now"
    return [
        f"{target} {done}, and {other} follows it and rejects writes. Next:",
        f"  1. point the application at {url}; `venus sync` has changed its direction by itself",
        "  2. watch `venus status`, and compare at any time: `venus verify`",
        f"  3. back, with every write: `{switch_command(other)}`",
    ]


def undo_cutover(run: Invocation, settings: Settings, target: str) -> int:
    """Undo a cut-over: VENUS applies the source's changes to the target again."""
    with run.out.progress("taking back") as steps:
        from venus.adapters.cutover.run import undo_target_cutover

        mark = undo_target_cutover(settings, target, steps.update)
    document = {"target": target, "undone": True, "was_cut_over_at": mark.marked_at.isoformat()}
    line = (
        f"target {target} is VENUS's again: changes of the source since {mark.marked_at:%Y-%m-%d %H:%M:%S} UTC follow"
    )
    run.out.answer(document, line)
    return 0
