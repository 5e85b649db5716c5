"""A large store: every view within a second, and live pages at a few percent of one core.

DASHBOARD_JOBS and DASHBOARD_QUEUES set the size; `make test-crash` takes 1,000,000 jobs in 500 queues.
"""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path

import pytest

import tenure
from tenure.server.service import Bind, Service, listening
from tenure.server_settings import Auth, Secret, Server
from tests.dashboard.conftest import DESKTOP, Visit, chromium
from tests.dashboard.test_views import ask, stream
from tests.server.running import SECRET, Running, token

JOBS, QUEUES = int(os.environ.get("DASHBOARD_JOBS", "20000")), int(os.environ.get("DASHBOARD_QUEUES", "50"))
FULL = JOBS >= 1_000_000


def _fill(store: tenure.Store) -> str:
    """Most jobs are ready; some are scheduled, leased and dead. Returns a dead job's id."""
    each, dead = JOBS // QUEUES, ""
    for n in range(QUEUES):
        queue = store.queue(f"queue-{n:03}", tenant=f"tenant-{n % 20:02}")
        for begin in range(0, each, 1000):
            queue.enqueue_many([b'{"n": %d, "to": "ada@example.org"}' % k for k in range(min(1000, each - begin))])
        if n % 5 == 0:
            queue.enqueue_many([tenure.NewJob(b"later", delay=3600 + k) for k in range(20)])
            claim = queue.claim(limit=30, worker=f"worker-{n}", lease=600)
            for place, delivery in enumerate(claim):
                if place < 20:
                    queue.fail(delivery, error=f"Timeout: host 10.0.0.{place} after {n} s")
                    dead = delivery.id
    big = store.queue("queue-000", tenant="tenant-00")
    big.enqueue_many([b"bad"] * 1000)
    for delivery in big.claim(limit=1000):
        big.fail(delivery, error="ValueError: no such address")
    return dead


@pytest.mark.crash
def test_every_view_of_a_large_store_is_quick_and_live_pages_are_cheap(tmp_path: Path):
    served = Server(auth=Auth(secret=Secret(SECRET.decode())))
    bind = Bind("127.0.0.1", 0)
    with tenure.open(f"rocksdb:{tmp_path / 'data'}", durability="os", sweep=False) as store, listening(bind) as sock:
        dead = _fill(store)
        last = f"queue-{(QUEUES - 1) // 5 * 5:03}", f"tenant-{(QUEUES - 1) // 5 * 5 % 20:02}"
        where = f"queue={last[0]}&tenant={last[1]}"
        targets = {
            "overview": "/ui/overview", "filter": "/ui/overview?filter=queue-01", "queue": f"/ui/queue?{where}",
            "jobs": f"/ui/jobs?{where}&state=ready", "search": f"/ui/jobs?{where}&state=ready&key=none",
            "job": f"/ui/job?{where}&id={dead}", "dead": "/ui/dead?queue=queue-000&tenant=tenant-00", "workers": "/ui/workers",
            "upcoming": "/ui/upcoming", "schedules": "/ui/schedules", "groups": f"/ui/groups?{where}",
            "flow": f"/ui/flow?{where}&id={dead}", "explain": f"/v1/queues/{last[0]}/jobs/{dead}/explain",
        }  # fmt: skip
        who = {**token(None, "operator")}
        with Service(store, bind, served).running(sock):
            server = Running(store, sock.getsockname()[1])
            for name, target in targets.items():
                extra = {"Tenure-Tenant": last[1]} if name == "explain" else {}
                took = []
                for _ in range(5 if FULL else 1):
                    time.sleep(0.2 if FULL else 0)
                    began = time.perf_counter()
                    ask(server, target, {**who, **extra})
                    took.append(time.perf_counter() - began)
                print(f"{name}: {statistics.median(took) * 1000:.0f} ms, at most {max(took) * 1000:.0f} ms")
                if FULL:
                    assert statistics.median(took) < 1.0, name
            _measure_live(server, who)
            _measure_pages(server, last, dead)
            server.close()


def _measure_pages(server: Running, last: tuple[str, str], dead: str) -> None:
    """From following a link to seeing what it leads to, in a browser."""
    queue, tenant = last
    pages = {
        "queues": ("#/", "table"), "queue": (f"#/queue/{tenant}/{queue}", "table"), "job": (f"#/job/{tenant}/{queue}/{dead}", "[data-state]"),
        "flow": (f"#/flow/{tenant}/{queue}/{dead}", "svg.flow"), "dead": ("#/dead/tenant-00/queue-000", "table"),
        "dead, queues": ("#/dead", "table"), "workers": ("#/workers", "table"), "schedules": ("#/schedules", "table"),
    }  # fmt: skip
    with chromium() as browser:
        page = Visit(browser.new_page(viewport=DESKTOP), server).sign_in(token(None, "operator"))
        for name, (route, seen) in pages.items():
            took = []
            for _ in range(5 if FULL else 1):
                page.goto(f"{server.url}/#/nowhere")
                page.get_by_role("heading", name="Not found").wait_for()
                began = time.perf_counter()
                page.evaluate("route => { location.hash = route }", route)
                page.locator(f"main {seen}").first.wait_for()
                took.append(time.perf_counter() - began)
            print(f"page {name}: {statistics.median(took) * 1000:.0f} ms, at most {max(took) * 1000:.0f} ms")
            if FULL:
                assert statistics.median(took) < 1.0, name


def _measure_live(server: Running, who: dict[str, str]) -> None:
    """One page that is open for some seconds, beside a job a tenth of a second; without it, the same again."""
    queue = server.store.queue("queue-001", tenant="tenant-01")

    def used(seconds: float) -> float:
        began, until = time.process_time(), time.perf_counter() + seconds
        while time.perf_counter() < until:
            queue.enqueue(b"x")
            time.sleep(0.1)
        return (time.process_time() - began) / seconds

    seconds = 20.0 if FULL else 1.0
    without = used(seconds)
    with stream(server, "/ui/overview", who) as events:
        assert next(events)[0] == "now"
        share = used(seconds) - without
        views = [kind for kind, _ in (next(events) for _ in range(2))]
    assert "view" in views
    print(f"live: {share:.1%} of one core with a page open (without: {without:.1%})")
    if FULL:
        assert share < 0.05
