"""A real browser: Debian's Chromium, driven by Playwright's driver from its wheel."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from playwright.sync_api import Browser, ConsoleMessage, Error, Page, Request, sync_playwright

from tests.support.programs import reject_missing
from tests.support.waiting import TIMEOUT_S

NAMES = ("chromium", "chromium-browser", "google-chrome")
_NOTHING = "about:blank"


@dataclass
class WatchedPage:
    """A page with its errors and all its requests."""

    page: Page
    complaints: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def on_console(self, message: ConsoleMessage) -> None:
        """Record an error or warning in the browser's console."""
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def on_error(self, error: Error) -> None:
        """Record an uncaught error of the page's scripts."""
        self.complaints.append(str(error))

    def on_request(self, request: Request) -> None:
        """Record a request."""
        self.asked.append(request.url)

    def alarms(self) -> list[str]:
        """Return the texts of the visible alarms."""
        return self.page.locator(".alarms .text").all_inner_texts()


def executable() -> str:
    """Return the path of the browser."""
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        reject_missing("Chromium")
    return found


@contextmanager
def run_browser() -> Iterator[Browser]:
    """Start a browser, which takes a second or two, so that all tests of a file share one."""
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=executable(), args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


def _take_free_page(browser: Browser) -> Page:
    """Return an unused page; a new one takes half a second, mostly for a process of its own."""
    pages = [page for context in browser.contexts for page in context.pages]
    return next((page for page in pages if page.url == _NOTHING), None) or browser.new_page()


@contextmanager
def open_page(browser: Browser, url: str, *, width: int = 1280, dark: bool = False) -> Iterator[WatchedPage]:
    """Open a page, 900 pixels high."""
    page = _take_free_page(browser)
    page.set_default_timeout(1000 * TIMEOUT_S)
    page.set_viewport_size({"width": width, "height": 900})
    page.emulate_media(color_scheme="dark" if dark else "light")
    watched = WatchedPage(page)
    page.on("console", watched.on_console)
    page.on("pageerror", watched.on_error)
    page.on("request", watched.on_request)
    try:
        page.goto(url)
        page.wait_for_selector("main > *")
        yield watched
    finally:
        page.unroute_all(behavior="ignoreErrors")
        page.remove_listener("console", watched.on_console)
        page.remove_listener("pageerror", watched.on_error)
        page.remove_listener("request", watched.on_request)
        page.goto(_NOTHING)


#: Texts with less contrast than WCAG AA requires (4.5 to 1); translucent colours are blended with these.
_LOW_CONTRASTS = """() => {
  const parse = text => { const found = text.match(/[\\d.]+/g).map(Number); return found.length < 4 ? [...found, 1] : found; };
  const mix = (top, below) => [0, 1, 2].map(i => top[i] * top[3] + below[i] * (1 - top[3]));
  const light = colour => colour.map(v => v / 255).map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const low = [];
  for (const node of document.querySelectorAll("body *")) {
    const own = [...node.childNodes].some(child => child.nodeType === 3 && child.data.trim());
    if (!own || node.closest("svg, .skip, noscript")) continue;
    let behind = [255, 255, 255], seen = 1;
    const all = []; for (let n = node; n; n = n.parentElement) all.unshift(getComputedStyle(n));
    for (const style of all) { behind = mix(parse(style.backgroundColor), behind); seen *= Number(style.opacity); }
    const [r, g, b, alpha] = parse(getComputedStyle(node).color);
    const [brighter, darker] = [light(mix([r, g, b, alpha * seen], behind)), light(behind)].sort((x, y) => y - x);
    if ((brighter + 0.05) / (darker + 0.05) < 4.5) low.push(node.outerHTML.slice(0, 80));
  }
  return low;
}"""  # noqa: E501


def find_low_contrasts(page: Page) -> list[str]:
    """Return the elements whose text has too little contrast."""
    found: list[str] = page.evaluate(_LOW_CONTRASTS)
    return found


def is_wider_than_screen(page: Page) -> bool:
    """Return whether a reader must scroll the page sideways."""
    return bool(page.evaluate("document.documentElement.scrollWidth > innerWidth"))
