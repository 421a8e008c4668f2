"""Load rates, and when a load is a reason to prefer another broker."""

from __future__ import annotations

import pytest

from venus.network.scheduling import CRITICAL, Load, grade_loads, load_rate, rank_brokers

NAMES = [f"b{n}" for n in range(16)]


def even_load(used: float) -> Load:
    return Load(memory=used, cpu=used, disk=used, network=used)


def test_each_resource_counts_relative_to_its_capacity_with_its_weight() -> None:
    assert Load(memory=1.0).used == pytest.approx(0.1)
    assert Load(cpu=1.0).used == pytest.approx(0.1)
    assert Load(disk=1.0).used == pytest.approx(0.5)
    assert Load(network=1.0).used == pytest.approx(0.3)
    assert even_load(0.4).used == pytest.approx(0.4)
    assert (even_load(7.0).used, even_load(-1.0).used) == (1.0, 0.0)


def test_above_the_critical_point_the_rate_jumps_and_never_falls() -> None:
    assert load_rate(0.8) == pytest.approx(0.8)
    assert load_rate(0.81) == pytest.approx(0.905)
    assert load_rate(1.0) == load_rate(5.0) == 1.0
    rates = [load_rate(n / 1000) for n in range(1001)]
    assert rates == sorted(rates)


def test_an_added_or_removed_broker_moves_only_what_it_must() -> None:
    before = {f"x{n}": rank_brokers(f"x{n}", NAMES)[0] for n in range(2000)}
    moved = [x for x, owner in before.items() if rank_brokers(x, NAMES[1:])[0] != owner]
    assert {before[x] for x in moved} == {"b0"}
    assert 80 < len(moved) < 175


@pytest.mark.parametrize("resource", ["memory", "disk", "network"])
def test_a_broker_at_a_resource_limit_comes_last_if_another_has_room(resource: str) -> None:
    assert grade_loads({"a": Load(**{resource: CRITICAL}), "b": Load(), "c": Load()}) == {"a": 2, "b": 0, "c": 0}
    assert grade_loads({"a": Load(**{resource: 0.85}), "b": Load(**{resource: 0.8})}) == {"a": 0, "b": 0}


def test_a_busy_processor_alone_is_no_reason() -> None:
    assert grade_loads({"a": Load(cpu=1.0), "b": Load()}) == {"a": 0, "b": 0}


def test_a_load_far_above_the_mean_is_a_reason_once_it_is_high() -> None:
    assert grade_loads({"a": even_load(0.7), "b": even_load(0.3), "c": even_load(0.3)}) == {"a": 1, "b": 0, "c": 0}
    assert grade_loads({"a": even_load(0.45), "b": even_load(0.1), "c": even_load(0.1)}) == {"a": 0, "b": 0, "c": 0}
    assert grade_loads({"a": even_load(0.7), "b": even_load(0.6), "c": even_load(0.6)}) == {"a": 0, "b": 0, "c": 0}


def test_a_broker_without_a_report_counts_as_an_average_one() -> None:
    assert grade_loads({"a": None, "b": even_load(0.7), "c": even_load(0.2)}) == {"a": 0, "b": 1, "c": 0}
    assert grade_loads({"a": None, "b": None}) == {"a": 0, "b": 0}
    assert grade_loads({}) == {}
