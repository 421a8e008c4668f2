"""`venus cluster accept-loss`: what an unclean election may have lost is given up, without a proof."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from venus.cli.cluster import coordinator_of, loss
from venus.cli.invocation import ConfigOption, Invocation, JsonOption
from venus.cli.members import changing
from venus.errors import ConfigError, Refused

if TYPE_CHECKING:
    from venus.replication.records import Leadership, LossWindow

UNKNOWN = "changes that were acknowledged before it, nobody has said which"
REST = "a target that waits beyond the end waits on: `venus forget --target NAME`, then `venus migrate` loads it again"


def accept_loss(
    ctx: typer.Context,
    business: Annotated[str, typer.Argument(metavar="BUSINESS", help="As `venus cluster status` shows it.")],
    confirm: Annotated[
        str, typer.Option("--confirm", metavar="BUSINESS", help="Its name once more: what is listed is given up.")
    ] = "",
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> int:
    """Give up what unclean elections may have lost, when the source is gone and nothing can be compared any more.

    Without --confirm it only says what that is. While the source is there, `venus verify --repair` finds what is
    missing, ships it again and closes it. Nothing is brought back by this command, and the targets stay as they are.
    """
    from venus.coordination import changes

    run = Invocation.of(ctx, config, as_json)
    if confirm not in ("", business):
        raise ConfigError(f"--confirm {confirm}: that is not {business}", hint="give the name of the business twice")
    with coordinator_of(run.settings) as coordinator:
        known = changing.business(coordinator, business)
        terms = known.unclean_terms
        if terms and not confirm:
            raise Refused(
                f"{business} may have lost {'; '.join(_sentences(known))}",
                hint=f"`venus verify --repair` brings it back; if the source is gone for good: --confirm {business}",
            )
        changing.change(coordinator, business, lambda now, _living: changes.accepted(now, terms))
    lines = [f"{business}: given up: {line}" for line in _sentences(known)]
    unknown = [term for term in terms if term not in _measured(known)]
    document: dict[str, Any] = {
        "business": business,
        "accepted": [loss(window) for window in known.losses],
        "terms": list(terms),
        "unknown_terms": unknown,
    }
    run.out.answer(document, *(lines or [f"{business} has lost nothing that is known"]), *([REST] if unknown else []))
    return 0


def _sentences(known: Leadership) -> list[str]:
    windows = {window.term: window for window in known.losses}
    return [f"{_shown(windows.get(term))} (unclean election of term {term})" for term in known.unclean_terms]


def _shown(window: LossWindow | None) -> str:
    return UNKNOWN if window is None else str(window)


def _measured(known: Leadership) -> set[int]:
    return {window.term for window in known.losses if window.measured}
