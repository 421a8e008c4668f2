"""Facts come with their reason and their time, last half an hour, and the most dangerous comes first."""

from __future__ import annotations

from venus.flow.degradation import Health, Rule

CRASH = Rule(fact="crash", limit=1, text="ended without a stop")
CPU = Rule(fact="cpu", limit=95, text="the machine's CPU is at {value:.0f} %, {limit:.0f} % is the limit", sustain_s=60)


def test_a_fact_is_kept_for_half_an_hour_after_it_was_last_seen() -> None:
    health = Health((CRASH, CPU), keep_s=1800)
    assert health.look({"crash": 1}, 0) == ["ended without a stop"]
    assert health.look({"crash": 1}, 10) == []
    assert health.look({}, 1810) == []
    assert [(f.fact, f.since, f.seen) for f in health.facts] == [("crash", 0, 10)]
    health.look({}, 1811)
    assert health.facts == []


def test_only_what_lasts_is_a_fact() -> None:
    health = Health((CRASH, CPU), keep_s=1800)
    for second in range(59):
        assert health.look({"cpu": 97}, second) == []
    assert health.look({"cpu": 94}, 59) == []
    for second in range(60, 120):
        assert health.look({"cpu": 97}, second) == []
    assert health.look({"cpu": 98}, 120) == ["the machine's CPU is at 98 %, 95 % is the limit"]
    assert health.facts[0].since == 60


def test_a_new_episode_is_told_again_and_the_order_is_that_of_the_rules() -> None:
    health = Health((CRASH, CPU), keep_s=1800)
    for second in range(61):
        health.look({"cpu": 97}, second)
    health.look({"crash": 1}, 100)
    assert [fact.fact for fact in health.facts] == ["crash", "cpu"]
    assert health.look({"crash": 1}, 200) == []
    health.look({}, 300)
    assert health.look({"crash": 1}, 400) == ["ended without a stop"]
    assert health.facts[0].since == 400


def test_a_limit_of_nothing_is_no_rule() -> None:
    health = Health((Rule(fact="clients", limit=0, text="x"),), keep_s=1800)
    assert health.look({"clients": 10**6}, 0) == []
    assert health.facts == []
