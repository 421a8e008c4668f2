"""`venus half`: undecided half messages, and the operator's decision on them (VENUS 3.3, message review).

The broker never discards a half message by itself. A live producer answers the review. If a producer will not come
back, the operator reads the source's batch table and decides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from venus.cli.invocation import CommandSet, ConfigOption, Invocation, JsonOption
from venus.cli.output import build_table
from venus.errors import ConfigError
from venus.model import Verdict, count_phrase
from venus.text.formatting import format_bytes, format_duration

if TYPE_CHECKING:
    from venus.wire.broker_pb2 import BusinessStatus

app = CommandSet(help="Undecided half messages: list, commit, rollback.")
BatchArgument = Annotated[int, typer.Argument(metavar="BATCH", help="The batch number, as `venus half list` shows it.")]
YesOption = Annotated[
    bool,
    typer.Option(
        "--yes", help="Confirm that the producer will not come back and that you have looked at its batch table."
    ),
]


def read_business(run: Invocation) -> BusinessStatus:
    """Read the status of the configured business; of an unknown one, return an empty status."""
    return read_business_at(run)[0]


def read_business_at(run: Invocation) -> tuple[BusinessStatus, int]:
    """Read the status of the configured business, and the time of the status by the broker's clock."""
    from venus.cli.probes import status_time_us
    from venus.rpc.address import PRODUCER, broker_address
    from venus.rpc.admin import AdminClient
    from venus.wire.broker_pb2 import BusinessStatus

    name = run.settings.business.name
    with AdminClient(broker_address(run.settings, PRODUCER)) as admin:
        status = admin.status(name)
    found = [b for b in status.businesses if b.business == name]
    return found[0] if found else BusinessStatus(business=name), status_time_us(status)


@app.command("list")
def list_(ctx: typer.Context, config: ConfigOption = None, as_json: JsonOption = False) -> int:
    """List the half messages without a decision, oldest first. Exit code 1 if an alarm is raised."""
    from venus.cli.probes import half_age_s

    run = Invocation.from_options(ctx, config, as_json)
    found, now_us = read_business_at(run)
    halves = [
        {
            "batch_no": half.batch_no,
            "rows": half.count,
            "bytes": half.bytes,
            "first_sequence": half.first_sequence,
            "age_s": half_age_s(half, now_us),
            "reviews": half.reviews,
        }
        for half in found.halves
    ]
    document = {
        "business": found.business,
        "producer": found.producer,
        "halves": halves,
        "alarms": list(found.alarms),
        "halves_total": max(found.halves_total, len(halves)),
    }
    rows: list[tuple[object, ...]] = [
        (h["batch_no"], h["rows"], format_bytes(int(h["bytes"])), format_duration(h["age_s"]), h["reviews"])
        for h in halves
    ]
    shown = (
        [build_table("batch", "rows", "size", "age", "reviews", rows=rows)] if rows else ["no undecided half message"]
    )
    more = found.halves_total - len(halves)
    behind = [f"and {count_phrase(more, 'half message')} after these"] if more > 0 else []
    run.out.answer(document, *shown, *behind, *[f"ALARM {alarm}" for alarm in found.alarms])
    return 1 if found.alarms else 0


@app.command()
def commit(
    ctx: typer.Context,
    batch: BatchArgument,
    yes: YesOption = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> int:
    """Commit every undecided half message up to BATCH, instead of the producer."""
    return decide(Invocation.from_options(ctx, config, as_json), batch, Verdict.COMMIT, yes)


@app.command()
def rollback(
    ctx: typer.Context,
    batch: BatchArgument,
    yes: YesOption = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> int:
    """Roll back every undecided half message from BATCH on, instead of the producer; the source loses nothing."""
    return decide(Invocation.from_options(ctx, config, as_json), batch, Verdict.ROLLBACK, yes)


def decide(run: Invocation, batch: int, verdict: Verdict, yes: bool) -> int:
    """Send the verdict on half messages. The broker refuses verdicts while a producer that can answer is connected."""
    from venus.errors import Refused
    from venus.rpc.address import PRODUCER, broker_address
    from venus.rpc.admin import AdminClient

    found = read_business(run)
    undecided = [half.batch_no for half in found.halves]
    if batch not in undecided and found.halves_total <= len(undecided):  # only the broker knows further reasons
        named = ", ".join(map(str, undecided)) or "none"
        raise ConfigError(f"batch {batch} is not undecided", hint=f"undecided: {named}")
    if not yes:
        where = f"SELECT * FROM venus_batch WHERE batch_no = {batch}, at PostgreSQL FROM venus.batch"
        raise Refused(
            f"{verdict.name} of batch {batch} cannot be undone",
            hint=f"look at the source first ({where}: a row = COMMIT, none = ROLLBACK), then repeat with --yes",
        )
    with AdminClient(broker_address(run.settings, PRODUCER)) as admin:
        decided = admin.decide(found.business, batch, verdict)
    document = {"verdict": verdict.name, "batch_no": decided.batch_no, "next_offset": decided.next_offset}
    run.out.answer(document, f"{verdict.name.lower()} of batch {decided.batch_no}; next offset {decided.next_offset}")
    return 0
