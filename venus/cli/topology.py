"""`venus cluster topology`: the broker sets of the network, who pulls from whom, and how far each hop is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from venus.cli.invocation import ConfigOption, Invocation, JsonOption
from venus.errors import ConfigError, Unavailable

if TYPE_CHECKING:
    from venus.network.drawing import Hop, SetView


def topology(
    ctx: typer.Context,
    addresses: Annotated[
        list[str] | None,
        typer.Argument(metavar="HOST:PORT", help="More brokers to ask, one of each set; separated by spaces."),
    ] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> int:
    """Draw the broker sets, who pulls from whom, offsets and lag. Exit code 1 if something needs attention.

    It asks the brokers of `[broker] addresses` and `further`, and all sets above them. A set below that is not asked
    is shown as the set above sees it.
    """
    from venus.cli.topology_seen import look
    from venus.model import PORT_MAX, is_address
    from venus.network.drawing import drawn
    from venus.rpc.address import broker_of, proof_of

    run = Invocation.of(ctx, config, as_json)
    for address in addresses or ():
        if not is_address(address):
            raise ConfigError(
                f"{address} should be HOST:PORT, with a port up to {PORT_MAX}",
                hint="name brokers of more sets, separated by spaces",
            )
    reach = broker_of(run.settings)
    starts = [tuple(one.split(",")) for one in reach.split(";")] + [(address,) for address in addresses or ()]
    view = look(starts, proof_of(reach))
    if not any(one.asked for one in view.sets):
        raise Unavailable("; ".join(view.complaints), hint="check [broker] address and addresses")
    document = {
        "healthy": not view.complaints,
        "problems": list(view.complaints),
        "sets": [_set(one) for one in view.sets],
    }
    lines = drawn(view, run.out.console.width)
    run.out.answer(document, *lines, *([""] if view.complaints else []), *(f"! {line}" for line in view.complaints))
    return 1 if view.complaints else 0


def _set(one: SetView) -> dict[str, Any]:
    return {
        "set": one.set.name, "asked": one.asked, "tier": one.set.tier.value if one.asked else None,
        "level": one.set.level, "addresses": list(one.set.addresses), "upstream": list(one.set.upstream),
        "labels": sorted(one.set.labels), "where": sorted(one.set.where),
        "pulls_from": one.pulls_from or None, "trouble": one.trouble,
        "businesses": [_hop(hop) for hop in one.businesses],
    }  # fmt: skip


def _hop(hop: Hop) -> dict[str, Any]:
    return {
        "business": hop.business, "offset": hop.offset, "behind": hop.behind, "behind_s": hop.behind_s,
        "from_home_s": hop.hop_s, "state": hop.state, "reason": hop.reason,
        "nearest": hop.nearest or None, "away_s": hop.away_s, "not_back": hop.not_back,
    }  # fmt: skip
