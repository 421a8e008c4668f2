"""Health facts have a reason and a time, expire after half an hour, and are sorted by severity."""

from __future__ import annotations

from venus.flow.degradation import HealthMonitor, HealthRule

CRASH = HealthRule(fact="crash", limit=1, text="ended without a stop")
CPU = HealthRule(
    fact="cpu", limit=95, text="the machine's CPU is at {value:.0f} %, {limit:.0f} % is the limit", sustain_s=60
)


def test_a_fact_is_kept_for_half_an_hour_after_its_last_observation() -> None:
    health = HealthMonitor((CRASH, CPU), keep_s=1800)
    assert health.evaluate({"crash": 1}, 0) == ["ended without a stop"]
    assert health.evaluate({"crash": 1}, 10) == []
    assert health.evaluate({}, 1810) == []
    assert [(f.fact, f.since, f.seen) for f in health.facts] == [("crash", 0, 10)]
    health.evaluate({}, 1811)
    assert health.facts == []


def test_only_a_lasting_problem_is_a_fact() -> None:
    health = HealthMonitor((CRASH, CPU), keep_s=1800)
    for second in range(59):
        assert health.evaluate({"cpu": 97}, second) == []
    assert health.evaluate({"cpu": 94}, 59) == []
    for second in range(60, 120):
        assert health.evaluate({"cpu": 97}, second) == []
    assert health.evaluate({"cpu": 98}, 120) == ["the machine's CPU is at 98 %, 95 % is the limit"]
    assert health.facts[0].since == 60


def test_a_new_episode_is_reported_again_and_facts_have_the_order_of_the_rules() -> None:
    health = HealthMonitor((CRASH, CPU), keep_s=1800)
    for second in range(61):
        health.evaluate({"cpu": 97}, second)
    health.evaluate({"crash": 1}, 100)
    assert [fact.fact for fact in health.facts] == ["crash", "cpu"]
    assert health.evaluate({"crash": 1}, 200) == []
    health.evaluate({}, 300)
    assert health.evaluate({"crash": 1}, 400) == ["ended without a stop"]
    assert health.facts[0].since == 400


def test_a_limit_of_zero_is_no_rule() -> None:
    health = HealthMonitor((HealthRule(fact="clients", limit=0, text="x"),), keep_s=1800)
    assert health.evaluate({"clients": 10**6}, 0) == []
    assert health.facts == []
