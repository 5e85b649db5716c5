"""The dashboard in a real Chromium: signing in, a job's life, dead letters, and that text stays text."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]  # it carries none
from playwright.sync_api import Browser, Page, expect

from tenure import ManualClock, Policy
from tenure.model.schedule import Schedule
from tenure.protocol.operations import OPERATIONS
from tests.dashboard.conftest import DESKTOP, PHONE, Visit
from tests.dashboard.scene import a_flow, an_hour, furnish
from tests.server.running import Running, running, token

NewVisit = Callable[..., Visit]
#: One worker runs them all: they share the browser.
pytestmark = pytest.mark.xdist_group("chromium")

#: By how many pixels the page is wider than its window.
WIDER = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
HOSTILE = b"<img src=x onerror=\"document.title='run'\"><script>document.title='run'</script>"


def test_signing_in_and_out(server: Running, visit: NewVisit):
    server.store.queue("emails", tenant="acme").enqueue(b"x")
    one = visit()
    page = one.open()
    page.get_by_label("Token").fill("not.a.token")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_be_visible()
    one.sign_in(token("acme", "consume"))
    expect(page.get_by_role("link", name="emails")).to_be_visible()
    # The token is where no script can read it.
    seen = page.evaluate(
        "[document.cookie, JSON.stringify(localStorage), JSON.stringify(sessionStorage), location.href].join()"
    )
    assert "ey" not in seen
    (cookie,) = page.context.cookies()
    assert cookie["httpOnly"]
    assert cookie["sameSite"] == "Strict"
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    page.goto(f"{server.url}/#/queue/acme/emails")
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()


def test_a_jobs_life_is_seen_as_it_happens(server: Running, visit: NewVisit):
    queue = server.store.queue("emails", tenant="acme")
    queue.configure(Policy(retention=3600))
    job = queue.enqueue(b'{"to": "ada"}')
    page = visit().sign_in(token("acme", "consume"), f"#/job/acme/emails/{job.id}")
    where = page.locator("[data-state]")
    expect(where).to_have_attribute("data-state", "ready")
    claim = queue.claim(worker="w1", lease=60)
    expect(where).to_have_attribute("data-state", "leased")
    expect(where).to_contain_text("Worker w1 has held it")
    queue.progress(claim[0], 0.4, "half way")
    expect(page.get_by_text("40 % half way")).to_be_visible()
    queue.nack(claim[0], error="ConnectionError: refused", delay=0)
    expect(where).to_have_attribute("data-state", "ready")
    expect(where).to_contain_text("attempt 2 of 5, after ConnectionError: refused")
    queue.ack(queue.claim(worker="w2")[0], result=b"sent")
    expect(where).to_have_attribute("data-state", "done")
    expect(page.locator("[data-content=result]")).to_have_text("sent")
    expect(page.get_by_text("Attempt 2 of 5", exact=True)).to_be_visible()


def test_a_dead_job_is_found_by_its_error_and_replayed(server: Running, visit: NewVisit):
    queue = server.store.queue("emails", tenant="acme")
    queue.configure(Policy(retention=3600))
    ids = []
    for error in ("ValueError: no such address", "Timeout: after 30 s", "Timeout: after 31 s"):
        ids.append(queue.enqueue(error.encode()).id)
        queue.fail(queue.claim(worker="w1")[0], error=error)
    page = visit().sign_in(token("acme", "admin"), "#/dead/acme/emails")
    causes = page.get_by_role("table", name="Causes")
    expect(causes.get_by_role("row", name=re.compile("Timeout: after # s.*2"))).to_be_visible()
    page.get_by_role("search").get_by_label("Error contains").fill("no such address")
    page.get_by_role("button", name="Search").click()
    jobs = page.get_by_role("table", name="Dead jobs")
    expect(jobs.locator("tbody tr")).to_have_count(1)
    expect(jobs).to_contain_text(ids[0])
    # By cause: dry run first, then for real.
    page.get_by_role("button", name="Choose cause Timeout").click()
    replay = page.get_by_role("button", name="Replay 2 jobs")
    expect(page.get_by_text("2 jobs would come back")).to_be_visible()
    assert queue.counts().dead == 3
    replay.click()
    expect(page.get_by_text("2 jobs replayed; 1 of 3 still dead.")).to_be_visible()
    assert queue.counts().ready == 2
    # A worker does one of them: its page says so.
    queue.ack(queue.claim(worker="w1")[0])
    page.goto(f"{server.url}/#/job/acme/emails/{ids[1]}")
    expect(page.locator("[data-state]")).to_have_attribute("data-state", "done")


def test_a_purge_names_the_number_and_asks(server: Running, visit: NewVisit):
    queue = server.store.queue("emails", tenant="acme")
    for _ in range(3):
        queue.enqueue(b"x")
        queue.fail(queue.claim()[0], error="Oops")
    page = visit().sign_in(token("acme", "admin"), "#/dead/acme/emails")
    page.get_by_role("button", name="Purge…").click()
    expect(page.get_by_role("dialog")).to_contain_text("All 3 dead jobs of acme / emails are removed for good")
    assert Axe().run(page).response["violations"] == []
    page.get_by_role("button", name="No", exact=True).click()
    assert queue.counts().dead == 3
    page.get_by_role("button", name="Purge…").click()
    page.get_by_role("button", name="Purge 3 jobs").click()
    expect(page.get_by_text("3 jobs purged.")).to_be_visible()
    assert queue.counts().dead == 0


def test_a_queue_is_paused_and_resumed_by_those_who_may(server: Running, visit: NewVisit):
    queue = server.store.queue("emails", tenant="acme")
    queue.enqueue(b"x")
    queue.fail(queue.claim()[0], error="Oops")
    page = visit().sign_in(token("acme", "admin"), "#/queue/acme/emails")
    page.get_by_role("button", name="Pause").click()
    expect(page.get_by_text("paused: claims return nothing")).to_be_visible()
    page.get_by_role("button", name="Resume").click()
    expect(page.get_by_text("paused: claims return nothing")).to_have_count(0)
    # A consumer sees no such button, and the server refuses it anyway.
    other = visit()
    page = other.sign_in(token("acme", "consume"), "#/dead/acme/emails")
    expect(page.get_by_role("table", name="Causes")).to_be_visible()
    for name in ("Purge…", "Replay", "Choose"):
        expect(page.get_by_role("button", name=name)).to_have_count(0)
    status = page.evaluate(
        "fetch('/v1/queues/emails/purge', {method: 'POST', headers: {'Tenure-Dashboard': '1', 'Content-Type': 'application/json'}, body: '{\"state\": \"dead\"}'}).then(answer => answer.status)"
    )
    assert status == 403
    assert queue.counts().dead == 1


def test_a_payload_stays_text(server: Running, visit: NewVisit):
    queue = server.store.queue("emails", tenant="acme")
    job = queue.enqueue(HOSTILE, key=HOSTILE.decode(), headers={"<b>bold": HOSTILE.decode()})
    queue.fail(queue.claim(worker=HOSTILE.decode()[:60])[0], error=HOSTILE.decode())
    page = visit().sign_in(token("acme", "admin"), f"#/job/acme/emails/{job.id}")
    expect(page.locator("[data-content=payload]")).to_have_text(HOSTILE.decode())
    for route in (f"#/job/acme/emails/{job.id}", "#/dead/acme/emails", "#/queue/acme/emails", "#/workers"):
        page.goto(f"{server.url}/{route}")
        expect(page.locator("#connection")).to_contain_text("Live")
        assert page.locator("main img, main script, main b").filter(has_text="bold").count() == 0
        assert page.locator("main img, main script").count() == 0
        assert page.title() != "run"


def test_the_longest_names_fit_a_phone(server: Running, visit: NewVisit):
    tenant, name, group = "T" * 128, "q" * 64, "g" * 128
    queue = server.store.queue(name, tenant=tenant)
    queue.configure(Policy(max_attempts=1))
    long = "W" * 3000
    for _ in range(2):
        queue.enqueue(long.encode(), headers={long[:500]: long[:500]}, group=group)
    failed, held = queue.claim(limit=2, worker="w" * 64)
    for delivery in (failed, held):
        queue.progress(delivery, 0.5, note=long[:500])
    queue.fail(failed, error=long)
    page = visit().sign_in(token(None, "operator"))
    page.set_viewport_size(PHONE)
    at = f"{tenant}/{name}"
    for route in ("#/", f"#/queue/{at}", "#/dead", f"#/dead/{at}", "#/workers", f"#/job/{at}/{held.id}"):
        page.goto(f"{server.url}/{route}")
        page.locator("main section, main .tile").first.wait_for()
        expect(page.locator("main")).to_contain_text("qqqqqqqq" if "job" not in route else held.id)
        assert page.evaluate(WIDER) == 0, route
    page.set_viewport_size(DESKTOP)
    page.goto(f"{server.url}/#/dead/{at}")
    choose = page.get_by_role("button", name="Choose").first
    choose.wait_for()
    box = choose.bounding_box()
    assert box is not None
    assert box["height"] < 50, "the button's word is broken into two lines"


def test_another_tenants_job_is_not_found(server: Running, visit: NewVisit):
    job = server.store.queue("emails", tenant="acme").enqueue(b"secret")
    server.store.queue("emails", tenant="other").enqueue(b"own")
    page = visit().sign_in(token("other", "admin"))
    for route in (f"#/job/acme/emails/{job.id}", f"#/job/other/emails/{job.id}", "#/queue/acme/emails"):
        page.goto(f"{server.url}/{route}")
        expect(page.get_by_role("heading", name="Not found")).to_be_visible()
    expect(page.locator("body")).not_to_contain_text("secret")


def test_an_address_without_a_page_says_so(server: Running, visit: NewVisit):
    page = visit().sign_in(token("acme", "consume"))
    for address in ("#/nowhere", "#/queue/%ff", "#/constructor", "#/workers"):
        page.goto(f"{server.url}/{address}")
        title = "Workers and leases" if address == "#/workers" else "Not found"
        expect(page.get_by_role("heading", level=1)).to_have_text(title)
        # Focus follows the page, and its outline would be a line across it.
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "none"


def test_a_lost_connection_is_told_and_found_again(server: Running, visit: NewVisit):
    queue = server.store.queue("emails", tenant="acme")
    queue.enqueue(b"x")
    page = visit().sign_in(token("acme", "consume"))
    expect(page.locator("#connection")).to_have_text("Live")
    page.context.set_offline(True)
    # A stream that is open goes on: it is cut as a network would cut it.
    page.evaluate("import('/assets/net.js').then(net => net.connection.streams.forEach(stream => stream.fail()))")
    expect(page.locator("#connection")).to_contain_text("Connection lost. What you see is from")
    queue.enqueue(b"y")
    page.context.set_offline(False)
    expect(page.locator("#connection")).to_have_text("Live")
    expect(page.locator(".tile", has_text="ready")).to_contain_text("2")


def test_numbers_that_grow_do_not_move_the_page(server: Running, visit: NewVisit):
    queues = [server.store.queue(f"queue-{n}", tenant="acme") for n in range(5)]
    for queue in queues:
        queue.enqueue(b"x")
    page = visit().sign_in(token("acme", "consume"))
    expect(page.get_by_role("table", name="Queues").locator("tbody tr")).to_have_count(5)
    page.evaluate(
        "window.moved = 0; new PerformanceObserver(list => list.getEntries().forEach(entry => window.moved += entry.value))"
        ".observe({type: 'layout-shift'})"
    )
    for queue in queues[:3]:
        queue.enqueue_many([b"x"] * 499)
        queue.claim(limit=120)
    expect(page.locator(".tile", has_text="ready")).to_contain_text("1,142")
    page.wait_for_timeout(500)
    assert page.evaluate("window.moved") < 0.02


def test_it_works_by_the_keyboard(server: Running, visit: NewVisit):
    server.store.queue("emails", tenant="acme").enqueue(b"x")
    page = visit().open()
    page.get_by_label("Token").focus()
    page.keyboard.insert_text(token("acme", "admin")["Authorization"].removeprefix("Bearer "))
    page.keyboard.press("Enter")
    page.get_by_role("link", name="emails").wait_for()
    page.get_by_role("link", name="emails").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("emails")
    page.get_by_role("button", name="Pause").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Resume")).to_be_focused()  # a button that changes keeps the focus


def test_a_flow_is_drawn_and_changes_as_it_happens(server: Running, visit: NewVisit):
    jobs = a_flow(server.store, "acme")
    site = server.store.queue("site", tenant="acme")
    page = visit().sign_in(token("acme", "consume"), f"#/job/acme/site/{jobs['index']}")
    expect(page.locator("[data-state]")).to_have_attribute("data-state", "blocked")
    page.get_by_role("link", name="Draw its graph").click()
    graph = page.get_by_role("group", name="Jobs, and which waits for which")
    expect(graph.get_by_role("link")).to_have_count(8)
    expect(graph.locator(".is-blocked")).to_have_count(2)
    expect(graph.locator(".is-dead")).to_have_count(1)
    expect(graph.locator(".line")).to_have_count(11)
    site.replay()
    for delivery in site.claim(limit=10, worker="crawler-2"):
        site.ack(delivery)
    expect(graph.locator(".is-dead")).to_have_count(0)
    graph.get_by_role("link", name=re.compile(f"^Job {jobs['report']}")).click()
    expect(page.get_by_role("heading", level=1)).to_contain_text(jobs["report"])


def test_a_large_flow_is_squares_and_a_larger_one_numbers(server: Running, visit: NewVisit, screenshots: Path):
    page = visit().sign_in(token("acme", "consume"))
    for pages, name in ((80, "flow-80"), (400, "flow-400")):
        jobs = a_flow(server.store, "acme", pages)
        page.goto(f"{server.url}/#/flow/acme/site/{jobs['index']}")
        if pages < 300:
            expect(page.locator("svg.flow rect")).to_have_count(pages + 3)
        else:
            expect(page.get_by_text("This flow is too large to draw")).to_be_visible()
            expect(page.get_by_role("table", name="Jobs by queue and state")).to_be_visible()
        page.screenshot(path=screenshots / f"{name}.png", full_page=True)
        assert page.evaluate(WIDER) <= 0


def test_a_schedule_is_run_now_paused_and_resumed(server: Running, visit: NewVisit):
    server.store.add_schedule(
        Schedule(name="nightly", tenant="acme", queue="reports", payload=b"all", cron="0 2 * * *")
    )
    reports = server.store.queue("reports", tenant="acme")
    page = visit().sign_in(token("acme", "admin"), "#/schedules")
    row = page.get_by_role("table", name="Schedules").get_by_role("row", name=re.compile("^nightly"))
    expect(row).to_contain_text("0 2 * * * UTC")
    page.get_by_role("button", name="Run nightly now").click()
    expect(page.get_by_role("status").filter(has_text="for nightly")).to_be_visible()
    assert [job.payload for job in reports.list("ready")] == [b"all"]
    page.get_by_role("button", name="Pause nightly").click()
    expect(row).to_contain_text("not while paused")
    assert server.store.schedules("acme")[0].paused
    page.get_by_role("button", name="Resume nightly").click()
    expect(row).not_to_contain_text("paused")
    # A consumer sees it, and no button.
    page = visit().sign_in(token("acme", "consume"), "#/schedules")
    expect(page.get_by_role("table", name="Schedules")).to_contain_text("nightly")
    expect(page.get_by_role("button", name=re.compile("nightly"))).to_have_count(0)


def test_groups_are_shown_with_their_shares(server: Running, visit: NewVisit):
    furnish(server.store)
    page = visit().sign_in(token("acme", "consume"), "#/queue/acme/exports")
    groups = page.get_by_role("table", name="Groups")
    expect(groups.get_by_role("row", name=re.compile("customer-17 at its limit 4 2"))).to_be_visible()
    expect(groups.get_by_role("row", name=re.compile("globex .* 75 %"))).to_be_visible()


def test_the_api_reference_shows_each_route_and_tries_one(server: Running, visit: NewVisit):
    one = visit()
    page = one.sign_in(token("acme", "produce"))
    page.goto(f"{server.url}/docs")
    routes = [operation for operation in OPERATIONS.values() if not operation.local]
    expect(page.locator(".opblock")).to_have_count(len(routes))
    route = page.locator("#operations-produce-enqueue")
    route.locator(".opblock-summary-control").click()
    expect(route.locator(".opblock-description")).to_contain_text("curl localhost:8400/v1/queues/emails/jobs -d")
    # Who is signed in to the dashboard is signed in here.
    route.get_by_role("button", name="Try it out").click()
    route.get_by_placeholder("queue").fill("emails")
    route.get_by_role("button", name="Execute").click()
    expect(route.locator(".live-responses-table .response-col_status").nth(1)).to_contain_text("200")
    assert server.store.queue("emails", tenant="acme").counts().waiting == 1
    assert page.evaluate("JSON.stringify(localStorage) + JSON.stringify(sessionStorage)") == "{}{}"


PAGES = {
    "queues": "#/", "queue": "#/queue/acme/emails", "job-leased": "#/job/acme/emails/{leased}",
    "job-dead": "#/job/acme/emails/{dead}", "dead": "#/dead/acme/emails", "dead-queues": "#/dead",
    "workers": "#/workers", "schedules": "#/schedules", "queue-groups": "#/queue/acme/exports",
    "job-blocked": "#/job/acme/site/{index}", "flow": "#/flow/acme/site/{index}",
}  # fmt: skip


@pytest.mark.parametrize("name", PAGES)
def test_every_page_is_accessible_and_fits(server: Running, visit: NewVisit, screenshots: Path, name: str):
    """At a desk and on a phone, in light and dark colours."""
    jobs = furnish(server.store)
    page = visit().sign_in(token("acme", "admin"))
    page.goto(f"{server.url}/{PAGES[name].format(**jobs)}")
    page.locator("main section, main .tile").first.wait_for()
    expect(page.locator("#connection")).to_have_text("Live")
    _check(page, name, screenshots)


def test_signing_in_is_accessible_and_fits(visit: NewVisit, screenshots: Path):
    page = visit().open()
    page.get_by_role("heading", name="Sign in").wait_for()
    _check(page, "sign-in", screenshots)


def test_the_api_reference_is_accessible_and_fits(server: Running, visit: NewVisit, screenshots: Path):
    page = visit().page
    page.goto(f"{server.url}/docs")
    page.locator("#operations-produce-enqueue .opblock-summary-control").click()
    page.locator(".opblock-body .responses-table").wait_for()
    # The routes of the other tags look like those of the first, and there are many.
    _check(
        page,
        "docs",
        screenshots,
        {"exclude": [".opblock-tag-section ~ .opblock-tag-section, span:has(.opblock-tag-section) ~ span"]},
    )


COLOURS: list[Literal["light", "dark"]] = ["light", "dark"]


TRANSITIONS_ENDED = """
    Promise.all(document.getAnimations().filter(a => a instanceof CSSTransition).map(a => a.finished.catch(() => {})))
"""


def _check(page: Page, name: str, screenshots: Path, looked_at: dict[str, list[str]] | None = None) -> None:
    """Pictures in each width and colour. Dark colours change colours only, so that of axe's rules only that one is run."""
    for size, width in ((DESKTOP, "desktop"), (PHONE, "phone")):
        page.set_viewport_size(size)
        wide = page.evaluate(WIDER)
        assert wide <= 0, f"{name} is wider than the {width}'s window by {wide} pixels"
        for colours in COLOURS:
            options = {"runOnly": ["color-contrast"]} if colours == "dark" else {}
            page.emulate_media(color_scheme=colours)
            # A button that still fades to its new colours has a contrast in between.
            page.evaluate(TRANSITIONS_ENDED)
            page.screenshot(path=screenshots / f"{name}-{width}-{colours}.png", full_page=name != "docs")
            found = (
                Axe().run(page, looked_at, options={"resultTypes": ["violations"], **options}).response["violations"]
            )
            wrong = [(v["id"], [n["html"] for n in v["nodes"]][:3]) for v in found]
            assert wrong == [], f"{name}, {width}, {colours}"
    page.set_viewport_size(DESKTOP)
    page.emulate_media(color_scheme="light")


def test_charts_show_the_last_hour(browser: Browser, screenshots: Path):
    """Also the picture in the README."""
    clock = ManualClock()
    with running(clock) as server:
        assert server.service is not None
        an_hour(server.store, clock, server.service.dashboard.history)
        context = browser.new_context(
            viewport={"width": 1120, "height": 590}, reduced_motion="reduce", timezone_id="UTC"
        )
        page = Visit(context.new_page(), server).sign_in(token(None, "operator"))
        expect(page.get_by_role("table", name="Queues").locator("tbody tr")).to_have_count(5)
        page.screenshot(path=screenshots / "readme.png")
        page.get_by_role("link", name="globex / imports").click()
        expect(page.get_by_role("img", name=re.compile("^Jobs a minute, last hour"))).to_be_visible()
        expect(page.get_by_role("img", name=re.compile("^Wait, last hour. Latest: mean [0-9]"))).to_be_visible()
        expect(page.get_by_role("img", name=re.compile("^Run time, last hour. Latest: mean [0-9]"))).to_be_visible()
        page.screenshot(path=screenshots / "queue-hour.png", full_page=True)
        context.close()
