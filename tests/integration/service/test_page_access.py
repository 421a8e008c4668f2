"""The status page on a phone, in dark mode, with a keyboard, without its broker; and its content security policy."""

from __future__ import annotations

import re
from urllib.request import urlopen

import pytest
from playwright.sync_api import Browser

from tests.support.brokers.page_brokers import HALTED, PageBroker
from tests.support.browsers import find_low_contrasts, open_page
from tests.support.waiting import eventually
from venus.rpc.conditions import AdapterCondition, TableCondition

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


@pytest.mark.parametrize("width", [400, 768, 1280])
def test_no_element_is_wider_than_the_screen(place: PageBroker, browser: Browser, width: int) -> None:
    name = "a_schema_of_users_with_long_names." + "x" * 200
    tables = [TableCondition(table_id=n, name=name + str(n), state="HALTED", reason="r" * 400) for n in range(5)]
    place.target.report(AdapterCondition.of(tables, quarantined=10**9))
    with open_page(browser, place.url, width=width) as seen:
        seen.page.wait_for_selector("[role=alert]")
        assert seen.page.evaluate("document.documentElement.scrollWidth") <= width
        assert len(seen.alarms()) == 6


def test_text_is_readable_in_dark_and_light_mode(place: PageBroker, browser: Browser) -> None:
    """Every text has at least the contrast of WCAG level AA in both colour schemes."""
    place.target.report(HALTED)
    for dark in (False, True):
        with open_page(browser, place.url, dark=dark) as seen:
            seen.page.wait_for_selector("[role=alert]")
            assert find_low_contrasts(seen.page) == []
            background = seen.page.evaluate("getComputedStyle(document.body).backgroundColor")
            assert (sum(map(int, re.findall(r"\d+", background)[:3])) < 200) is dark


def test_a_keyboard_reaches_every_element_and_a_refresh_keeps_the_focus(place: PageBroker, browser: Browser) -> None:
    with open_page(browser, place.url) as seen:
        page = seen.page
        page.wait_for_selector(".verdict")
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
        page.locator("summary").first.focus()
        page.keyboard.press("Enter")
        assert page.locator("details[open]").count() == 1
        before = page.locator("#state").inner_text()
        eventually(lambda: page.locator("#state").inner_text() != before)
        assert page.locator("details[open]").count() == 1
        assert page.evaluate("document.activeElement.tagName") == "SUMMARY"
        unnamed = page.evaluate(
            "[...document.querySelectorAll('a, table, section, figure svg')].filter(n => "
            "!(n.getAttribute('aria-label') || n.textContent.trim())).length"
        )
        assert unnamed == 0


def test_a_lost_broker_is_reported_and_the_last_state_stays_visible(place: PageBroker, browser: Browser) -> None:
    with open_page(browser, place.url) as seen:
        page = seen.page
        page.wait_for_selector(".verdict")
        place.broker.stop()
        page.wait_for_selector("#state.bad")
        assert re.match(r"no answer for [\d.]+ m?s, this page is that old", page.locator("#state").inner_text())
        assert page.title() == "(!) VENUS broker"
        assert page.locator(".hop").count() >= 3
        assert page.evaluate("getComputedStyle(document.querySelector('main')).filter") == "grayscale(1)"


def test_the_content_security_policy_is_strict(place: PageBroker, browser: Browser) -> None:
    with urlopen(place.url) as answer:
        policy = answer.headers["Content-Security-Policy"]
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy
    with open_page(browser, place.url) as seen:
        seen.page.evaluate(
            "() => { const s = document.createElement('script'); s.textContent = 'window.broken = 1';"
            " document.body.append(s); const i = new Image(); i.src = 'http://127.0.0.1:9/x';"
            " document.body.append(i); }"
        )
        assert seen.page.evaluate("window.broken") is None
        eventually(lambda: len(seen.complaints) >= 2)
        assert all("Content Security Policy" in text for text in seen.complaints)
