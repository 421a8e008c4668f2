"""`venus cluster accept-loss`: gives up, without a proof, what an unclean election or a promotion may have lost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from venus.cli.cluster import loss_document, open_coordinator
from venus.cli.invocation import ConfigOption, Invocation, JsonOption
from venus.cli.members import commands
from venus.errors import ConfigError, Refused, VenusError
from venus.text.hints import suggest_nearest

if TYPE_CHECKING:
    from venus.config import Settings
    from venus.replication.records import Leadership, LossWindow
    from venus.wire.broker_pb2 import LossWindow as Window

UNKNOWN = "changes that were acknowledged before it, not known which"
REST = "a target beyond the end keeps waiting: `venus forget --target NAME`, then `venus migrate` loads it again"


def accept_loss(
    ctx: typer.Context,
    business: Annotated[str, typer.Argument(metavar="BUSINESS", help="As `venus cluster status` shows it.")],
    confirm: Annotated[
        str, typer.Option("--confirm", metavar="BUSINESS", help="Its name once more: what is listed is given up.")
    ] = "",
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> int:
    """Give up what unclean elections and promotions may have lost, when the source is gone for good.

    Without --confirm it only lists what would be given up. As long as the source exists, use `venus verify --repair`:
    it finds what is missing and ships it again. This command brings nothing back and does not change the targets.
    """
    from venus.coordination import operator_changes

    run = Invocation.from_options(ctx, config, as_json)
    if confirm not in ("", business):
        raise ConfigError(f"--confirm {confirm}: that is not {business}", hint="give the name of the business twice")
    promotions = _read_promotion_windows(run.settings, business)
    if not run.settings.cluster.name:
        return _accept_without_cluster(run, business, confirm, promotions)
    with open_coordinator(run.settings) as coordinator:
        known = commands.read_record(coordinator, business)
        terms = known.unclean_terms
        if (terms or promotions) and not confirm:
            raise _missing_confirmation(business, [*_election_lines(known), *_promotion_lines(promotions)])
        _send_acceptance(run.settings, business, promotions)
        commands.change_record(coordinator, business, lambda now, _living: operator_changes.accept_losses(now, terms))
    lines = [f"{business}: given up: {line}" for line in (*_election_lines(known), *_promotion_lines(promotions))]
    unknown = [term for term in terms if term not in _measured_terms(known)]
    document: dict[str, Any] = {
        "business": business,
        "accepted": [loss_document(window) for window in known.losses],
        "terms": list(terms),
        "unknown_terms": unknown,
        "home_terms": [window.home_term for window in promotions],
    }
    run.out.answer(document, *(lines or [f"{business} has lost nothing that is known"]), *([REST] if unknown else []))
    return 0


def _accept_without_cluster(run: Invocation, business: str, confirm: str, promotions: list[Window]) -> int:
    """Give up what promotions may have lost at a broker without a cluster."""
    losses = _promotion_lines(promotions)
    if promotions and not confirm:
        raise _missing_confirmation(business, losses)
    _send_acceptance(run.settings, business, promotions)
    document: dict[str, Any] = {
        "business": business,
        "accepted": [],
        "terms": [],
        "unknown_terms": [],
        "home_terms": [window.home_term for window in promotions],
    }
    lines = [f"{business}: given up: {line}" for line in losses] or [f"{business} has lost nothing that is known"]
    run.out.answer(document, *lines)
    return 0


def _missing_confirmation(business: str, losses: list[str]) -> Refused:
    return Refused(
        f"{business} may have lost {'; '.join(losses)}",
        hint=f"`venus verify --repair` brings it back; if the source is gone for good: --confirm {business}",
    )


def _read_promotion_windows(settings: Settings, business: str) -> list[Window]:
    """Read the windows of promotions from the brokers; none if no broker of the cluster answers."""
    from venus.rpc.address import broker_address
    from venus.rpc.admin import AdminClient

    try:
        with AdminClient(broker_address(settings)) as admin:
            known = {entry.business: entry for entry in admin.status().businesses}
    except VenusError:  # etcd knows the losses of unclean elections, also for a user without a role at the brokers
        if not settings.cluster.name:
            raise
        return []
    if business not in known and not settings.cluster.name:
        hint = f"it has {', '.join(sorted(known)) or 'none'}"
        raise ConfigError(f"the broker knows no business {business!r}{suggest_nearest(business, known)}", hint=hint)
    return list(known[business].losses) if business in known else []


def _send_acceptance(settings: Settings, business: str, promotions: list[Window]) -> None:
    from venus.rpc.address import broker_address
    from venus.rpc.admin import AdminClient

    if promotions:
        with AdminClient(broker_address(settings)) as admin:
            admin.give_up(business, [window.home_term for window in promotions])


def _promotion_lines(windows: list[Window]) -> list[str]:
    found = []
    for window in windows:
        end = f"to {window.end_offset - 1}" if window.HasField("end_offset") else "on"
        found.append(f"offsets from {window.first_offset} {end} (promotion of home term {window.home_term})")
    return found


def _election_lines(known: Leadership) -> list[str]:
    windows = {window.term: window for window in known.losses}
    return [f"{_format_window(windows.get(term))} (unclean election of term {term})" for term in known.unclean_terms]


def _format_window(window: LossWindow | None) -> str:
    return UNKNOWN if window is None else str(window)


def _measured_terms(known: Leadership) -> set[int]:
    return {window.term for window in known.losses if window.is_measured}
