"""`venus alarms`: lists the kinds of alarms, and tests whether messages arrive."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from venus.cli.invocation import CommandSet, ConfigOption, Invocation, JsonOption
from venus.cli.output import build_table
from venus.errors import ConfigError
from venus.text.formatting import format_duration, suggest_nearest

if TYPE_CHECKING:
    from venus.alarms.recipients import AlarmRecipient

app = CommandSet(help="List the kinds of alarms; send a test message to their recipients.")


@app.command("rules")
def rules(ctx: typer.Context, config: ConfigOption = None, as_json: JsonOption = False) -> int:
    """List the kinds of alarms, when each is sent and to which recipients."""
    from venus.alarms.recipients import build_recipients
    from venus.text.alarm_rules import RULES, UNKNOWN

    run = Invocation.from_options(ctx, config, as_json)
    run.needs_passwords = False
    alarms = run.settings.alarms
    recipients = build_recipients(alarms)
    found = []
    for rule in (*RULES, UNKNOWN):
        chosen = alarms.rule_settings(rule.name)
        after_s = chosen.after_s or rule.min_duration_s
        names = [each.name for each in recipients if each.should_receive_kind(rule.name)]
        found.append(
            {
                "rule": rule.name,
                "says": rule.description,
                "after_s": after_s,
                "repeat_s": chosen.repeat_s or alarms.repeat_s,
                "to": names,
            }
        )
    rows: list[tuple[object, ...]] = [
        (
            each["rule"],
            each["says"],
            format_delay(float(str(each["after_s"]))),
            ", ".join(recipients_of(each)) or "no recipient",
        )
        for each in found
    ]
    run.out.answer({"rules": found}, build_table("kind", "when", "sent after", "sent to", rows=rows))
    return 0


def format_delay(seconds: float) -> str:
    """Format the delay before an alarm is sent."""
    return format_duration(seconds) if seconds else "at once"


def recipients_of(found: dict[str, object]) -> list[str]:
    """Return the names of the recipients that get a kind of alarm, from its entry in the list."""
    names = found["to"]
    return [str(name) for name in names] if isinstance(names, list) else []


@app.command("test")
def send_test(
    ctx: typer.Context,
    to: Annotated[str, typer.Option("--to", metavar="NAME", help="Only this [alarms.to.NAME]; default all.")] = "",
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> int:
    """Send a test message to every recipient of alarms, from this machine. Exit code 1 if a message fails."""
    from venus.alarms.recipients import build_recipients

    run = Invocation.from_options(ctx, config, as_json)
    run.needs_passwords = False
    recipients = build_recipients(run.settings.alarms)
    if not recipients:
        raise ConfigError(
            "there is no recipient of alarms: no [alarms.to.NAME] section",
            hint="add one with a webhook, mail or command, as in venus.example.toml",
        )
    names = [each.name for each in recipients]
    if to and to not in names:
        raise ConfigError(f"no recipient named {to!r}{suggest_nearest(to, names)}", hint="known: " + ", ".join(names))
    found = [send_test_to(each) for each in recipients if to in ("", each.name)]
    lines = [f"{each['to']}: {each['error'] or 'accepted by ' + str(each['where'])}" for each in found]
    run.out.answer({"sent": found}, *lines)
    return int(any(each["error"] for each in found))


def send_test_to(addressee: AlarmRecipient) -> dict[str, str]:
    """Send a test message to one recipient; return the outcome."""
    from venus.alarms.alarm_state import Alarm, AlarmEvent, Message, Notification

    now_s = time.time()
    alarm = Alarm(
        business="", rule="other", subject="test", hop="broker", text="this is a test, nothing is wrong", since_s=now_s
    )
    error = ""
    try:
        addressee.channel.send(Message("test", [Notification(event=AlarmEvent.RAISED, alarm=alarm, at_s=now_s)]))
    except OSError as failure:
        error = str(failure)
    return {"to": addressee.name, "where": addressee.channel.destination, "error": error}
