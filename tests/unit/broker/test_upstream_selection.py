"""Selection of an upstream among several sets: scripted cases, and random histories of simulated time."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest

from venus.broker.mirrors.upstream_selection import TIMES, Fitness, FitnessKind, UpstreamSelection

NAMES = ("north", "south", "east")
FIT = Fitness(FitnessKind.FIT)


class WatchedChoice:
    """A choice that the test checks each second."""

    def __init__(self, *names: str) -> None:
        self.now = 1000.0
        self.uppers = UpstreamSelection(names or NAMES, self.now)
        self.kinds = dict.fromkeys(names or NAMES, FitnessKind.FIT)
        self.look()
        self.uppers.choose_first(self.now)
        self.uppers.record_success()

    def look(self) -> None:
        for name, kind in self.kinds.items():
            self.uppers.record_check(name, Fitness(kind, f"it is {kind}"), self.now)
            self.uppers.move_if_due(self.now)

    def wait(self, seconds: int) -> list[str]:
        """Check each second; return the upstream after each check."""
        found = []
        for _ in range(seconds):
            self.now += 1.0
            self.look()
            found.append(self.uppers.in_use)
        return found

    def lose(self, name: str) -> None:
        """Report the end of a session with a set."""
        self.kinds[name] = FitnessKind.SILENT
        if self.uppers.in_use == name:
            self.uppers.record_failure(self.now, "gone", for_good=False)


def test_after_the_loss_of_the_nearest_the_next_is_used_at_once_and_the_nearest_after_a_minute() -> None:
    watched = WatchedChoice()
    watched.lose("north")
    assert watched.wait(1) == ["south"]
    watched.uppers.record_success()
    assert set(watched.wait(100)) == {"south"}
    away = watched.uppers.absence()
    assert away is not None
    assert (away.nearest, away.kind, away.why, away.left_s) == ("north", FitnessKind.SILENT, "it is silent", None)

    watched.kinds["north"] = FitnessKind.FIT
    assert set(watched.wait(20)) == {"south"}
    away = watched.uppers.absence()
    assert away is not None
    assert (away.kind, away.left_s) == (FitnessKind.FIT, 41.0)
    found = watched.wait(42)
    assert found.index("north") == 40, "after a minute and no earlier"
    assert watched.uppers.absence() is None


def test_the_minute_of_a_flapping_nearest_set_starts_over() -> None:
    watched = WatchedChoice()
    watched.lose("north")
    watched.wait(1)
    watched.uppers.record_success()
    for _ in range(10):
        watched.kinds["north"] = FitnessKind.FIT
        assert set(watched.wait(59)) == {"south"}
        watched.kinds["north"] = FitnessKind.SILENT
        assert set(watched.wait(1)) == {"south"}


def test_a_minute_without_a_check_does_not_count() -> None:
    watched = WatchedChoice()
    watched.lose("north")
    watched.wait(1)
    watched.uppers.record_success()
    watched.kinds["north"] = FitnessKind.FIT
    watched.wait(30)
    watched.now += TIMES.looks_apart_s + 1
    assert set(watched.wait(59)) == {"south"}


@pytest.mark.parametrize(
    "kind", [FitnessKind.LATE, FitnessKind.CUT_OFF, FitnessKind.APART, FitnessKind.SILENT, FitnessKind.UNKNOWN]
)
def test_no_consumer_returns_to_an_unhealthy_set(kind: FitnessKind) -> None:
    watched = WatchedChoice()
    watched.lose("north")
    watched.wait(1)
    watched.uppers.record_success()
    watched.kinds["north"] = kind
    assert set(watched.wait(600)) == {"south"}


def test_a_set_that_is_cut_off_itself_is_replaced_by_the_nearest_that_is_not() -> None:
    watched = WatchedChoice()
    watched.kinds |= {"north": FitnessKind.CUT_OFF, "south": FitnessKind.CUT_OFF}
    found = watched.wait(30)
    assert set(found) == {"north", "east"}
    assert found.index("east") == TIMES.stale_s
    watched.uppers.record_success()
    watched.kinds["south"] = FitnessKind.FIT
    assert set(watched.wait(60)) == {"east"}
    assert watched.wait(2)[-1] == "south"


def test_a_short_cut_off_moves_no_consumer_and_neither_does_one_of_all_sets() -> None:
    watched = WatchedChoice()
    for _ in range(5):
        watched.kinds["north"] = FitnessKind.CUT_OFF
        assert set(watched.wait(9)) == {"north"}
        watched.kinds["north"] = FitnessKind.FIT
        assert set(watched.wait(1)) == {"north"}
    watched.kinds = dict.fromkeys(NAMES, FitnessKind.CUT_OFF)
    assert set(watched.wait(100)) == {"north"}


def test_a_set_that_has_just_returned_is_not_chosen_over_one_that_answers() -> None:
    watched = WatchedChoice()
    watched.kinds = dict.fromkeys(NAMES, FitnessKind.CUT_OFF)
    watched.wait(30)
    for _ in range(5):
        watched.kinds["south"] = FitnessKind.FIT
        assert set(watched.wait(5)) == {"north"}
        watched.kinds["south"] = FitnessKind.CUT_OFF
        watched.wait(1)
    watched.kinds["south"] = FitnessKind.FIT
    assert watched.wait(6)[-1] == "south"


def test_alternating_failures_do_not_move_a_consumer_back_and_forth() -> None:
    watched = WatchedChoice("north", "south")
    found = []
    for n in range(120):
        lost, there = ("north", "south") if n % 2 else ("south", "north")
        watched.kinds[there] = FitnessKind.FIT
        watched.lose(lost)
        found += watched.wait(1)
    moves = sum(one != other for one, other in pairwise(found))
    assert 12 <= moves <= 120 / TIMES.moves_apart_s


def test_a_silent_set_that_still_sends_changes_is_kept() -> None:
    watched = WatchedChoice()
    watched.kinds["north"] = FitnessKind.SILENT
    assert set(watched.wait(100)) == {"north"}


def test_a_set_with_another_history_is_left_at_once_and_not_tried_for_two_minutes() -> None:
    watched = WatchedChoice()
    watched.lose("north")
    watched.wait(1)
    watched.uppers.record_success()
    away = watched.uppers.absence()
    watched.kinds["north"] = FitnessKind.FIT
    assert watched.wait(61)[-1] == "north"
    assert watched.uppers.record_failure(watched.now, "another history", for_good=True)
    assert watched.uppers.in_use == "south"
    now = watched.uppers.absence()
    assert now is not None
    assert away is not None
    assert (now.since, now.why) == (away.since, "another history")
    watched.uppers.record_success()
    assert set(watched.wait(118)) == {"south"}
    assert watched.wait(4)[-1] == "north"


def test_at_a_set_with_other_rows_the_next_one_is_tried_until_one_fits() -> None:
    watched = WatchedChoice()
    watched.wait(10)
    found = []
    for _ in range(20):
        if watched.uppers.in_use != "east":
            watched.uppers.record_other_rows(watched.now, "other rows")
        else:
            watched.uppers.record_success()
        found += watched.wait(1)
    assert list(dict.fromkeys(found)) == ["north", "south", "east"], "no set is tried twice"
    assert found.index("east") == 9, "after five seconds at each"
    assert not watched.uppers.is_trial, "there is no set to go back to"
    away = watched.uppers.absence()
    assert away is not None
    assert (away.nearest, away.kind, away.why) == ("north", FitnessKind.APART, "other rows")
    assert set(watched.wait(100)) == {"east"}
    assert watched.wait(30)[-1] == "north", "it may have them by now"


def test_the_only_set_is_kept_although_it_has_other_rows() -> None:
    watched = WatchedChoice("north")
    for _ in range(100):
        watched.uppers.record_other_rows(watched.now, "other rows")
        assert watched.wait(1) == ["north"]


def test_a_probe_of_a_set_may_need_a_moment() -> None:
    watched = WatchedChoice()
    watched.lose("north")
    watched.wait(1)
    watched.uppers.record_success()
    watched.kinds["north"] = FitnessKind.FIT
    watched.wait(61)
    assert not watched.uppers.record_failure(watched.now + 1, "not here yet", for_good=False)
    assert watched.uppers.in_use == "north"
    watched.uppers.record_success()
    assert not watched.uppers.record_failure(watched.now + 9, "another history", for_good=True), (
        "it has served meanwhile"
    )


def test_full_data_in_transfer_is_not_given_up_for_a_nearer_set() -> None:
    watched = WatchedChoice()
    watched.lose("north")
    watched.wait(1)
    watched.uppers.record_success()
    watched.kinds["north"] = FitnessKind.FIT
    for _ in range(100):
        watched.now += 1.0
        watched.uppers.record_check("north", FIT, watched.now)
        assert not watched.uppers.move_if_due(watched.now, busy=True)


def test_sets_keep_their_state_when_their_names_become_known() -> None:
    uppers = UpstreamSelection(("a:1", "b:1", "a:2"), 0.0)
    uppers.record_check("a:1", Fitness(FitnessKind.SILENT), 1.0)
    uppers.record_check("b:1", FIT, 1.0)
    uppers.choose_first(1.0)
    assert uppers.in_use == "b:1"
    uppers.update_names(("north", "south"), {"a:1": "north", "a:2": "north", "b:1": "south"}, 2.0)
    assert uppers.names == ("north", "south")
    away = uppers.absence()
    assert away is not None
    assert (away.at, away.nearest, away.kind) == ("south", "north", FitnessKind.SILENT)
    uppers.update_names(("west",), {}, 3.0)
    assert uppers.in_use == "west"


# -- random histories --------------------------------------------------------------------------------------------------


class History:
    """Sets whose state changes at random, checked as the product does, and a replicator that fails with them."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.now = 0.0
        self.names = NAMES[: self.random.randint(2, 3)]
        self.uppers = UpstreamSelection(self.names, 0.0)
        self.kind = dict.fromkeys(self.names, FitnessKind.FIT)
        self.calm = self.random.choice((3.0, 20.0, 90.0, 300.0))
        self.until = {name: self.random.expovariate(1 / self.calm) for name in self.names}
        self.due = dict.fromkeys(self.names, 0.0)
        self.fit_since = dict.fromkeys(self.names, 0.0)
        self.wrong = {
            name for name in self.names if self.random.random() < 0.15
        }  # another history, which no check shows
        self.seen: dict[str, FitnessKind] = {}
        self.moves: list[float] = []
        self.tries = 0
        self.ready_at = 0.0

    def run(self, seconds: float) -> None:
        for name in self.names:
            self._look(name)
        self.uppers.choose_first(self.now)
        while self.now < seconds:
            self.now += 0.5
            for name in self.names:
                self._change(name)
            for name in self.names:
                if self.now >= self.due[name]:
                    self._look(name)
                    self.due[name] = self.now + (1.0 if name == self.uppers.in_use or not self.uppers.is_well else 5.0)
                    self._step()
            self._pull()
            self._judge()

    def _change(self, name: str) -> None:
        if self.now < self.until[name]:
            return
        self.until[name] = self.now + self.random.expovariate(1 / self.calm)
        kind = self.random.choice(
            (
                FitnessKind.FIT,
                FitnessKind.FIT,
                FitnessKind.FIT,
                FitnessKind.SILENT,
                FitnessKind.LATE,
                FitnessKind.CUT_OFF,
                FitnessKind.APART,
            )
        )
        if kind is FitnessKind.FIT and self.kind[name] is not FitnessKind.FIT:
            self.fit_since[name] = self.now
        self.kind[name] = kind

    def _look(self, name: str) -> None:
        self.seen[name] = self.kind[name]
        self.uppers.record_check(name, Fitness(self.kind[name]), self.now)

    def _step(self) -> None:
        before = self.uppers.in_use
        if not self.uppers.move_if_due(self.now):
            return
        self.moves.append(self.now)
        self.ready_at = self.now + 0.5 * self.random.random()
        now_at = self.uppers.in_use
        assert now_at != before
        assert self.seen[now_at] not in (FitnessKind.LATE, FitnessKind.APART, FitnessKind.SILENT), (
            "it goes to the set that was fit when seen last"
        )
        if self.seen[before] is not FitnessKind.SILENT:
            assert self.seen[now_at] is FitnessKind.FIT

    def _pull(self) -> None:
        """Act as the replicator: it meets the current state, observed or not."""
        if self.now < self.ready_at:
            return
        name = self.uppers.in_use
        kind = self.kind[name]
        if name in self.wrong and self.uppers.is_trial and kind is not FitnessKind.SILENT:
            self.tries += 1
            assert self.uppers.record_failure(self.now, "another history", for_good=True)
            assert self.uppers.in_use != name
            self.moves.append(self.now)
        elif kind in (FitnessKind.SILENT, FitnessKind.APART):
            if self.uppers.record_failure(self.now, "gone", for_good=False):
                self.tries += 1
                self.moves.append(self.now)
        else:
            self.uppers.record_success()

    def _judge(self) -> None:
        nearest = self.names[0]
        unbroken = self.now - self.fit_since[nearest] if self.kind[nearest] is FitnessKind.FIT else 0.0
        look_s, retry_s = 5.5, 6.0  # a move is not followed by another one at once
        others_fail = self.uppers.in_use != nearest and self.kind[self.uppers.in_use] is not FitnessKind.FIT
        if nearest not in self.wrong and unbroken > TIMES.back_after_s + look_s + retry_s and not others_fail:
            assert self.uppers.in_use == nearest, f"{self.now}: it was fit for {unbroken} s"
        recent = [at for at in self.moves if at > self.now - 60]
        assert len(recent) <= 60 / TIMES.moves_apart_s + 1 + 2 * len(self.names), "no set moves back and forth"


def test_random_histories_return_in_time_and_never_move_back_and_forth() -> None:
    moves = tries = 0
    for seed in range(60):
        history = History(seed)
        history.run(900.0)
        moves += len(history.moves)
        tries += history.tries
    assert moves > 200
    assert tries > 8
