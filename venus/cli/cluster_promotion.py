"""`venus cluster promote` and `dissolve`: a core set becomes the home; a cluster becomes a single broker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from venus.cli.cluster import loss_document, open_coordinator
from venus.cli.cluster_members import BusinessesOption, change_record, read_record
from venus.cli.invocation import ConfigOption, Invocation, JsonOption
from venus.errors import ConfigError, Refused, VenusError
from venus.text.formatting import format_duration, suggest_nearest

if TYPE_CHECKING:
    from venus.config import Settings
    from venus.replication.records import Leadership, LossWindow
    from venus.rpc.admin import AdminClient
    from venus.wire.broker_pb2 import BrokerStatus, Promoted
    from venus.wire.broker_pb2 import LossWindow as Window

UNKNOWN = "changes that were acknowledged before it, not known which"
REST = "a target beyond the end keeps waiting: `venus forget --target NAME`, then `venus migrate` loads it again"


def dissolve(
    ctx: typer.Context,
    accept_loss: Annotated[
        bool,
        typer.Option("--accept-loss", help="Do not ask etcd: changes that this broker lacks are lost permanently."),
    ] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> int:
    """Turn a broker of a cluster into one that runs alone, with its data. Run it on the broker's machine.

    Stop every broker of the cluster first, and use this broker's configuration. The command is refused unless this
    replica is known to be complete. Afterwards remove [cluster] from the configuration and start the broker. The other
    brokers delete their copies if they later join a cluster with this broker.
    """
    from venus.broker.replicas.store_identity import dissolve as dissolve_at

    run = Invocation.from_options(ctx, config, as_json)
    cluster, data_dir = run.settings.cluster, run.settings.broker.data_dir.resolve()
    if not cluster.name:
        raise ConfigError(
            "there is no cluster: [cluster] name is not set",
            hint="leave [cluster] in the configuration until this command has ended",
        )
    if accept_loss:
        done = dissolve_at(data_dir, cluster.broker_id, None)
    else:
        with open_coordinator(run.settings) as coordinator:
            done = dissolve_at(data_dir, cluster.broker_id, coordinator)
    already = "was in no cluster" if done.member is None else "belongs to no cluster any more"
    line = f"{data_dir} {already}: remove [cluster] from the configuration and start the broker"
    document = {"data_dir": data_dir, "businesses": list(done.businesses), "checked": not accept_loss}
    run.out.answer(document, line)
    return 0


NEXT = (
    "capture continues here by itself where [broker] addresses or further name this set; then `venus status` says what "
    "may be missing, and `venus verify --repair` for each target closes it"
)


def promote(
    ctx: typer.Context,
    business: BusinessesOption = None,
    yes: Annotated[bool, typer.Option("--yes", help="Promote; without it, only print what would be done.")] = False,
    force: Annotated[
        bool,
        typer.Option("--force", help="Promote even if the home answers or cannot be asked: two sets may take writes."),
    ] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> int:
    """Make this core set the home, when the home that it mirrors is lost permanently.

    From then on this set takes the changes from capture. Once capture has connected, changes that only the old home had
    are listed; `venus verify --repair` ships them again from the source. If the old home comes back, it steps down. Use
    a configuration whose [broker] addresses are those of this set.
    """
    from venus.cli.probes import status_time_us
    from venus.rpc.address import broker_address
    from venus.rpc.admin import AdminClient

    run = Invocation.from_options(ctx, config, as_json)
    with AdminClient(broker_address(run.settings)) as admin:
        status = admin.status()
        names = _choose_businesses(status, business)
        looked = [admin.promote(name, only_look=True, force=force) for name in names]
        if not yes:
            would = "; ".join(_describe_promotion(found, status_time_us(status)) for found in looked)
            raise Refused(f"nothing was done: {would}", hint="repeat with --yes to confirm")
        done = [_promote_business(admin, name, force=force) for name in names]
    document = {"set": done[0].set, "businesses": [_promotion_document(found) for found in done], "next": NEXT}
    lines = [
        f"{found.business}: set {found.set} is the home now, no longer {found.old_set} (home term {found.home_term}); "
        f"its queue continues at offset {found.next_offset:,}, behind batch {found.last_batch:,}"
        for found in done
    ]
    run.out.answer(document, *lines, NEXT)
    return 0


def _promote_business(admin: AdminClient, name: str, *, force: bool) -> Promoted:
    """Make the set of the broker the home of a business."""
    return admin.promote(name, only_look=False, force=force)


def _choose_businesses(status: BrokerStatus, chosen: list[str] | None) -> list[str]:
    """Return the named businesses, or all that are mirrored. Raises ConfigError or Refused."""
    known = {entry.business: entry for entry in status.businesses}
    for name in chosen or ():
        if name not in known:
            raise ConfigError(
                f"set {status.network.set} has no business {name!r}{suggest_nearest(name, known)}",
                hint=f"it has {', '.join(sorted(known)) or 'none'}",
            )
    if chosen:
        return list(dict.fromkeys(chosen))
    mirrored = sorted(name for name, entry in known.items() if entry.HasField("mirror"))
    if not mirrored:
        has = f"it is the home of {', '.join(sorted(known))}" if known else "it has no business yet"
        raise Refused(
            f"set {status.network.set} mirrors nothing: {has}",
            hint="run it at a core set that mirrors the home: [broker] addresses; `venus cluster topology` draws them",
        )
    return mirrored


def _describe_promotion(found: Promoted, now_us: int) -> str:
    """Return a sentence on what the promotion of a business would do."""
    newest = ""
    if found.last_committed_at_us:
        newest = f", the newest of {format_duration(max(0, now_us - found.last_committed_at_us) / 1e6)} ago"
    return (
        f"set {found.set} would become the home of {found.business} in place of {found.old_set}, with everything below "
        f"offset {found.next_offset:,}{newest}"
    )


def _promotion_document(found: Promoted) -> dict[str, Any]:
    """Return the JSON object of a promotion."""
    return {
        "business": found.business,
        "set": found.set,
        "old_home": found.old_set,
        "home_term": found.home_term,
        "next_offset": found.next_offset,
        "last_batch": found.last_batch,
        "old_home_says": found.trouble or None,
    }


def accept_loss(
    ctx: typer.Context,
    business: Annotated[str, typer.Argument(metavar="BUSINESS", help="As `venus cluster status` shows it.")],
    confirm: Annotated[
        str, typer.Option("--confirm", metavar="BUSINESS", help="Its name again: the listed losses are given up.")
    ] = "",
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> int:
    """Give up what unclean elections and promotions may have lost, when the source is lost permanently.

    Without --confirm, the command only lists the losses. As long as the source exists, use `venus verify --repair`,
    which finds missing changes and ships them again. This command brings nothing back and does not change the targets.
    """
    run = Invocation.from_options(ctx, config, as_json)
    if confirm not in ("", business):
        raise ConfigError(f"--confirm {confirm}: that is not {business}", hint="give the name of the business twice")
    promotions = _read_promotion_windows(run.settings, business)
    if not run.settings.cluster.name:
        return _accept_without_cluster(run, business, confirm, promotions)
    with open_coordinator(run.settings) as coordinator:
        known = read_record(coordinator, business)
        terms = known.unclean_terms
        if (terms or promotions) and not confirm:
            raise _missing_confirmation(business, [*_election_lines(known), *_promotion_lines(promotions)])
        _send_acceptance(run.settings, business, promotions)
        change_record(coordinator, business, lambda now, _living: now.without_losses(terms))
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
    """Return the error for a missing --confirm, which lists what may be lost."""
    return Refused(
        f"{business} may have lost {'; '.join(losses)}",
        hint=f"`venus verify --repair` brings it back; if the source is lost permanently: --confirm {business}",
    )


def _read_promotion_windows(settings: Settings, business: str) -> list[Window]:
    """Read the loss windows of promotions from the brokers; none if no broker of the cluster answers."""
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
    """Accept the possible losses of these promotions at the broker."""
    from venus.rpc.address import broker_address
    from venus.rpc.admin import AdminClient

    if promotions:
        with AdminClient(broker_address(settings)) as admin:
            admin.give_up(business, [window.home_term for window in promotions])


def _promotion_lines(windows: list[Window]) -> list[str]:
    """Format the loss window of each promotion."""
    found = []
    for window in windows:
        end = f"to {window.end_offset - 1}" if window.HasField("end_offset") else "on"
        found.append(f"offsets from {window.first_offset} {end} (promotion of home term {window.home_term})")
    return found


def _election_lines(known: Leadership) -> list[str]:
    """Format the loss window of each unclean election."""
    windows = {window.term: window for window in known.losses}
    return [f"{_format_window(windows.get(term))} (unclean election of term {term})" for term in known.unclean_terms]


def _format_window(window: LossWindow | None) -> str:
    """Format a loss window; None = its offsets are not known."""
    return UNKNOWN if window is None else str(window)


def _measured_terms(known: Leadership) -> set[int]:
    """Return the terms of unclean elections whose loss windows have a known end."""
    return {window.term for window in known.losses if window.is_measured}
