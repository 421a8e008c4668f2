"""What a puller refuses of what a set above says, and when it has nothing to pull."""

from __future__ import annotations

from venus.broker.machine.business import Business
from venus.errors import NotLeader, Refused, Unavailable
from venus.wire import broker_pb2


def check_filters(*, is_filtered: bool, above: str) -> None:
    """Refuse what nobody has judged by the predicates that were asked for."""
    if not is_filtered:
        raise Refused(
            f"set {above} is of a version that chooses no rows by [cluster.where]: update it, or remove the predicates"
        )


def check_home(said: broker_pb2.Home, home_term: int, above: str) -> None:
    """Take nothing that comes from an older home than the one that is known. Raises Unavailable."""
    if said.home_term < home_term:
        raise Unavailable(
            f"set {above} follows an older home, which was replaced (home term {said.home_term}, here {home_term})",
            hint="name brokers of the new home, or of sets below it, in [cluster] upstream",
        )


def check_mirror(business: Business) -> None:
    """Pull nothing once this set was promoted. Raises NotLeader."""
    home = business.proposed.home
    if home is not None and home.here:
        raise NotLeader(f"{business.name}: this set has become the home")
