"""A real Chromium, driven by Playwright, on a server of the test.

Debian's Chromium is used (`make setup` installs it where it may); without one the browser tests are skipped, and say so.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, ViewportSize, expect, sync_playwright

from tests.server.running import Running, running

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
#: Where screenshots are put; of `make test`, nowhere but the test's own folder.
SCREENSHOTS = os.environ.get("DASHBOARD_SCREENSHOTS")
DESKTOP: ViewportSize = {"width": 1280, "height": 900}
PHONE: ViewportSize = {"width": 390, "height": 844}
expect.set_options(timeout=30_000)  # a busy machine is slow, which is no failure of a page
_FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
]  # fmt: skip


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("there is no Chromium: apt-get install chromium (make setup does, where it may)")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, headless=True, args=_FLAGS)
        yield browser
        browser.close()


# Not of the session: Playwright keeps an event loop running, and no other test of the process could call asyncio.run.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def server() -> Iterator[Running]:
    with running() as made:
        yield made


class Visit:
    """A page of one visitor. What the browser complains about fails the test."""

    def __init__(self, page: Page, server: Running) -> None:
        self.page, self.server = page, server
        self.complaints: list[str] = []
        page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))
        page.on("console", self._console)
        page.set_default_timeout(30_000)

    def _console(self, message: object) -> None:
        text = getattr(message, "text", "")
        expected = "Failed to load resource" in text or "net::ERR" in text  # a refusal that the test asks for
        if getattr(message, "type", "") in ("error", "warning") and not expected:
            self.complaints.append(text)

    def open(self, route: str = "#/") -> Page:
        self.page.goto(f"{self.server.url}/{route}")
        return self.page

    def sign_in(self, headers: dict[str, str], route: str = "#/") -> Page:
        page = self.open(route)
        page.get_by_label("Token").fill(headers["Authorization"].removeprefix("Bearer "))
        page.get_by_role("button", name="Sign in").click()
        page.get_by_role("button", name="Sign out").wait_for()
        return page


@pytest.fixture
def visit(browser: Browser, server: Running) -> Iterator[Callable[..., Visit]]:
    """`visit()` is a new visitor, with cookies of its own."""
    made: list[Visit] = []
    contexts = []

    def new() -> Visit:
        context = browser.new_context(viewport=DESKTOP, reduced_motion="reduce", timezone_id="UTC")
        contexts.append(context)
        made.append(Visit(context.new_page(), server))
        return made[-1]

    yield new
    for context in contexts:
        context.close()
    assert [complaint for one in made for complaint in one.complaints] == []


@pytest.fixture
def screenshots(tmp_path: Path) -> Path:
    place = Path(SCREENSHOTS) if SCREENSHOTS else tmp_path / "screenshots"
    place.mkdir(parents=True, exist_ok=True)
    return place
