"""The error for two databases whose records of switches contradict each other."""

from __future__ import annotations

import pytest

from venus.adapters.targets.switching import SideRecord, SideState, find_step
from venus.errors import Refused


def record(name: str, state: SideState, switch: int) -> SideRecord:
    peer = {"app": "main", "main": "app"}[name]
    return SideRecord(business="shop", name=name, peer=peer, state=state, switch=switch)


@pytest.mark.parametrize(
    ("owner", "follower", "message"),
    [
        (("CLOSED", 3), ("FOLLOWING", 3), "app is CLOSED and main is FOLLOWING, both after switch 3"),
        (("OPEN", 2), ("OPEN", 2), "app is OPEN and main is OPEN, both after switch 2"),
        (("OPEN", 5), ("FOLLOWING", 3), "main does not know of switch 5, which app has recorded"),
        (("OPEN", 3), ("FOLLOWING", 5), "app does not know of switch 5, which main has recorded"),
    ],
)
def test_a_contradiction_names_the_state_of_each_database(
    owner: tuple[str, int], follower: tuple[str, int], message: str
) -> None:
    with pytest.raises(Refused, match="a database was restored from a backup or replaced") as refused:
        find_step(record("app", SideState(owner[0]), owner[1]), record("main", SideState(follower[0]), follower[1]))
    assert str(refused.value).startswith(f"{message}: ")
