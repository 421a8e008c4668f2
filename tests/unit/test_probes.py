"""What `venus status` asks, and in which order answers may be believed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.test_overview import BROKER, CONSUMER, SOURCE, TARGET
from venus.cli import probes
from venus.cli.overview import BrokerView
from venus.config import Settings

SETTINGS = Settings.model_validate({"targets": {"a": {"url": "postgresql://h/d"}}})


def looked(monkeypatch: pytest.MonkeyPatch, *brokers: BrokerView) -> tuple[str, ...]:
    answers = list(brokers)
    monkeypatch.setattr(probes, "look_at_source", lambda settings: SOURCE)
    monkeypatch.setattr(probes, "target_look", lambda settings, name: lambda: replace(TARGET, offset=82))
    monkeypatch.setattr(probes, "look_at_broker", lambda settings: answers.pop(0))
    found = probes.look(SETTINGS).problems
    assert answers == []
    return found


def broker(offset: int) -> BrokerView:
    return replace(BROKER, next_offset=offset, consumers=(replace(CONSUMER, acknowledged=81),))


def test_a_target_that_was_asked_later_than_the_broker_is_not_ahead_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert looked(monkeypatch, broker(81), broker(83)) == ()
    assert looked(monkeypatch, broker(82)) == ()


def test_a_broker_that_has_lost_its_data_still_is_behind_when_it_is_asked_once_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (problem,) = looked(monkeypatch, broker(81), broker(81))
    assert "the broker has lost its data, or another one answers" in problem


def test_a_broker_that_is_away_is_not_asked_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    (problem,) = looked(monkeypatch, BrokerView(error="broker b cannot be reached"))
    assert problem == "broker: b cannot be reached"
