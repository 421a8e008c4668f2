"""The page of a broker in a network of sets: its set, the set above, the sets below; red while it is cut off."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from tests.support.brokers import networks
from tests.support.brokers.servers import BUSINESS, commit, take
from tests.support.browsers import find_low_contrasts, open_page
from tests.support.engines.batches import half, other_table
from tests.support.waiting import eventually
from venus.broker.service.process import RunningBroker
from venus.rpc.producer import Producer
from venus.rpc.subscriber import Subscriber
from venus.text.alarm_rules import RULES

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]
ROWS = 20
LABELS = {"eu": ("items",)}


class Sets:
    """A home with a producer, a tandem set, and a labelled access set with a target."""

    def __init__(self, folder: Path) -> None:
        self.hq = networks.start(folder / "hq")
        self.producer = Producer(self.hq.address, BUSINESS, "shop-db", window_bytes_max=1 << 20)
        self.producer.connect(0, 0)
        commit(self.producer, [half(1, rows=ROWS), half(2, rows=ROWS, table=other_table(2))])
        self.europe = networks.start(folder / "europe", self.hq.address, tier="tandem")
        self.lyon = networks.start(folder / "lyon", self.europe.address, level=2, labels=["eu"], known_labels=LABELS)
        networks.has(self.lyon.address, 2 * ROWS)
        self.target = Subscriber(self.lyon.address, BUSINESS, f"{BUSINESS}/shop", credit_bytes=1 << 20)
        self.target.open(2 * ROWS, 0)
        commit(self.producer, [half(3, rows=ROWS)])
        take(self.target, 3 * ROWS)
        self.target.acknowledge(3 * ROWS)

    def close(self) -> None:
        self.target.close()
        self.producer.close()
        for broker in (self.lyon, self.europe, self.hq):
            broker.stop()


@pytest.fixture
def sets(tmp_path: Path) -> Iterator[Sets]:
    made = Sets(tmp_path)
    yield made
    made.close()


def url(broker: RunningBroker) -> str:
    return f"http://{broker.http_address}/"


def facts(page: Page) -> dict[str, str]:
    """Return the texts in the boxes of the network."""
    found = page.locator("section[aria-label=Network] .facts div").all_inner_texts()
    return dict(text.split("\n", 1) for text in found)


def rows(page: Page, table: str) -> list[list[str]]:
    return [line.split("\t") for line in page.locator(f"table[aria-label='{table}'] tbody tr").all_inner_texts()]


def hops(page: Page) -> list[str]:
    found = page.locator(f"[aria-label='Business {BUSINESS}'] .hop h3").all_inner_texts()
    return [" ".join(hop.split()) for hop in found]


def test_each_set_shows_its_position_the_set_above_and_those_below(sets: Sets, browser: Browser) -> None:
    with open_page(browser, url(sets.europe)) as seen:
        page = seen.page
        page.wait_for_selector(".verdict.is-good")
        assert page.locator(".way").inner_text() == "hq → europe"
        eventually(lambda: facts(page)["Sets known"] == "3")
        assert facts(page) == {
            "Sets known": "3",
            "This set": "europe",
            "Tier": "tandem, level 1",
            "Set above": "hq: answers",
            "Its brokers": sets.hq.address,
            "Sets below": "lyon",
        }
        eventually(lambda: rows(page, "Mirrored from the set above")[0][2:5] == ["60", "60", "level"])
        (mirror,) = rows(page, "Mirrored from the set above")
        assert mirror[0] == BUSINESS
        assert mirror[1].startswith("following for ")
        assert mirror[-1] == "all"
        eventually(lambda: rows(page, "Sets that pull from here") == [["lyon", BUSINESS, "level", "60", "level"]])
        eventually(lambda: hops(page) == ["Set hq following", "Broker serves", "Set lyon level"])
        assert "set europe" in page.locator("#who").inner_text()
        assert seen.complaints == []
    with open_page(browser, url(sets.lyon), width=400) as seen:
        page = seen.page
        page.wait_for_selector(".verdict.is-good")
        assert page.locator(".way").inner_text() == "hq → europe → lyon"
        assert facts(page)["Labels"] == "eu"
        assert page.locator("td[data-head=Tables]").inner_text() == "items"
        eventually(lambda: hops(page) == ["Set europe following", "Broker serves", "Target shop up to date"])
        assert page.evaluate("document.documentElement.scrollWidth") <= 400
        assert seen.complaints == []
    with open_page(browser, url(sets.hq)) as seen:
        seen.page.wait_for_selector(".verdict.is-good")
        assert facts(seen.page)["Set above"] == "none: this is the home"
        eventually(lambda: hops(seen.page)[-1] == "Set europe level")


def test_a_set_that_is_cut_off_is_red_with_the_reason(sets: Sets, browser: Browser) -> None:
    sets.europe.stop()
    networks.wait_for_state(sets.lyon.address, "cut off")
    for dark in (False, True):
        with open_page(browser, url(sets.lyon), width=400, dark=dark) as seen:
            page = seen.page
            page.wait_for_selector("[role=alert]")
            assert any("set europe does not answer" in text for text in seen.alarms())
            assert page.locator("section[aria-label=Network] dd.bad").all_inner_texts() == ["europe: cut off"]
            state = page.locator("td[data-head=State] .bad").first.inner_text()
            assert state.startswith("cut off for ")
            assert f"broker at {sets.europe.address} cannot be reached" in state
            assert page.locator(".hop.is-bad h3").all_inner_texts()[0].startswith("Set europe")
            assert page.locator(".hop.is-good h3").all_inner_texts()[0].startswith("Broker"), "what it has is served"
            assert page.evaluate("document.documentElement.scrollWidth") <= 400
            assert find_low_contrasts(page) == []
            assert seen.complaints == []


def _names_silent_upstream(page: Page) -> bool:
    return "; it does not answer: " in facts(page)["Nearest set"]


def test_a_set_that_pulls_from_a_farther_set_shows_that_and_the_reason(tmp_path: Path, browser: Browser) -> None:
    hq = networks.start(tmp_path / "hq")
    with Producer(hq.address, BUSINESS, "shop-db", window_bytes_max=1 << 20) as producer:
        producer.connect(0, 0)
        commit(producer, [half(1, rows=ROWS)])
    tandems = [networks.start(tmp_path / name, hq.address, tier="tandem") for name in ("north", "south")]
    lyon = networks.start(tmp_path / "lyon", *(tandem.address for tandem in tandems), level=2)
    try:
        networks.has(lyon.address, ROWS)
        tandems[0].stop()
        eventually(lambda: networks.wait_for_state(lyon.address, "following").set == "south")
        for dark in (False, True):
            with open_page(browser, url(lyon), width=400, dark=dark) as seen:
                page = seen.page
                page.locator("section[aria-label=Network] dd.warn").wait_for()
                eventually(partial(_names_silent_upstream, page))  # at the next check
                assert facts(page)["Nearest set"].startswith("north: not used for ")
                assert tandems[0].address in facts(page)["Nearest set"]
                assert facts(page)["Set above"] == "south: answers"
                assert page.evaluate("document.documentElement.scrollWidth") <= 400
                assert find_low_contrasts(page) == []
                assert seen.complaints == []
    finally:
        for broker in (lyon, *tandems, hq):
            broker.stop()


def test_a_set_below_that_is_away_is_listed_as_a_set(
    sets: Sets, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("venus.text.alarm_rules._LASTS_S", {rule.name: 0.0 for rule in RULES})
    sets.europe.stop()
    with open_page(browser, url(sets.hq)) as seen:
        page = seen.page
        page.get_by_text("broker -> set europe: it does not pull; the queue is kept for it").wait_for()
        page.locator("table[aria-label='Sets that pull from here'] .bad").wait_for()
        assert hops(page)[-1].startswith("Set europe away for ")
        assert page.locator(".hop.is-bad h3").last.inner_text().startswith("Set europe")
        assert "apply is not connected" not in page.locator("main").inner_text(), "it is no target"
