"""The report in a real browser, at the width of a desk and of a phone."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser, ViewportSize

import tenure
from tenure import ManualClock, Policy
from tenure.analysis.report import job
from tests.dashboard.conftest import DESKTOP, PHONE

#: What sticks out of its place: the page itself, the names beside the heat map, names of errors cut in two, ids cut off.
_FAULTS = """() => {
  const found = [];
  if (document.documentElement.scrollWidth > innerWidth) found.push('the page is wider than the window');
  for (const label of document.querySelectorAll('.wide text[text-anchor=end]'))
    if (label.getBoundingClientRect().left < label.closest('.scroll').getBoundingClientRect().left)
      found.push('cut off: ' + label.textContent);
  for (const name of document.querySelectorAll('.bars td.name')) {
    const text = document.createRange();
    text.selectNodeContents(name);
    if (text.getClientRects().length > 1) found.push('in two lines: ' + name.textContent);
  }
  for (const id of document.querySelectorAll('.slow code'))
    if (id.getBoundingClientRect().right > id.parentElement.getBoundingClientRect().right) found.push('an id is cut off');
  for (const error of document.querySelectorAll('.slow .error'))
    if (innerWidth < 560 && error.textContent === '–' && error.getClientRects().length) found.push('a line for no error');
  return found;
}"""


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_nothing_sticks_out(browser: Browser, screenshots: Path, tmp_path: Path, size: ViewportSize) -> None:
    clock = ManualClock()
    url, target = f"rocksdb:{tmp_path / 'data'}", tmp_path / "report.html"
    with tenure.open(url, clock=clock, sweep=False, durability="os") as store:
        queue = store.queue("image-resizing-with-a-long-name", tenant="globex-corporation")
        queue.configure(Policy(retention=86_400))
        for _ in range(8):
            queue.enqueue_many([b"x"] * 4)
            clock.advance(3600)
            first, *others = queue.claim(limit=4, worker="w1")
            queue.fail(first, error="ConnectionError: refused")
            queue.ack_many(others)
    job.report(url, str(target))
    page = browser.new_page(viewport=size)
    page.goto(target.as_uri())
    page.screenshot(path=screenshots / f"report-{size['width']}.png", full_page=True)
    assert page.evaluate(_FAULTS) == []
    page.close()
