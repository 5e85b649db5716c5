"""The dashboard's views over HTTP: permissions, sign-in by a cookie, limits and refusals."""

from __future__ import annotations

import contextlib
import http.client
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

import tenure
from tenure import ManualClock, NewJob, Policy
from tenure.contract.queue_infos import all_queues
from tenure.protocol.identity import Identity
from tenure.server.dashboard.causes import causes_of, common_part, masked
from tenure.server.dashboard.history import History
from tenure.server.dashboard.session import cookie
from tenure.server.dashboard.views import VIEWS, Viewer, content, jobs, workers
from tenure.server.dashboard.views import queue as queue_view
from tenure.server.dashboard.views.viewer import NoQuery
from tenure.server_settings import Auth
from tests.dashboard.scene import furnish
from tests.server.running import Running, running, token

PAGE = {"Sec-Fetch-Site": "same-origin", "Tenure-Dashboard": "1"}


def ask(server: Running, target: str, headers: dict[str, str]) -> Any:
    answer = server.ask("GET", target, None, headers)
    assert answer.status == 200, answer
    return json.loads(answer.body)


def signed_in(server: Running, headers: dict[str, str]) -> dict[str, str]:
    """Headers with the cookie that a browser would send."""
    body = json.dumps({"token": headers["Authorization"].removeprefix("Bearer ")}).encode()
    answer = server.ask("POST", "/session", body, PAGE)
    assert answer.status == 200, answer
    return {"Cookie": answer.headers["set-cookie"].partition(";")[0]}


# ── signing in ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_cookie_signs_in_and_only_from_the_servers_own_page():
    with running() as server:
        server.store.queue("emails", tenant="acme").enqueue(b"x")
        mine = signed_in(server, token("acme", "admin"))
        assert ask(server, "/ui/me", mine)["tenant"] == "acme"
        assert server.ask("GET", "/v1/queues", None, mine).status == 200
        pause = ("POST", "/v1/queues/emails/pause", b"{}")
        assert server.ask(*pause, mine).status == 403  # no header that a page of ours sends
        for foreign in (
            {"Sec-Fetch-Site": "cross-site"},
            {"Sec-Fetch-Site": "same-site"},
            {"Origin": "http://evil.example"},
        ):
            assert server.ask(*pause, {**mine, **PAGE, **foreign}).status == 403
            assert server.ask("GET", "/ui/overview", None, {**mine, **foreign}).status == 403
        assert not server.store.queues("acme")[0].paused
        assert server.ask(*pause, {**mine, **PAGE}).status == 200
        assert server.store.queues("acme")[0].paused


def test_small_requests_with_a_cookie_take_the_same_way():
    """Requests that are answered inline, without ASGI, know no cookies: these go the other way."""
    with running() as server:
        server.store.queue("emails", tenant="acme").enqueue(b"x")
        mine = signed_in(server, token("acme", "consume"))
        for _ in range(3):
            assert server.ask("GET", "/v1/queues/emails/counts", None, mine).status == 200
            claim = server.ask("POST", "/v1/queues/emails/claims", b"{}", mine)
            assert claim.status == 403
        assert server.ask("GET", "/v1/queues/emails/counts", None, {}).status == 401


@pytest.mark.parametrize(
    "body", [b"", b"{}", b'{"token": ""}', b'{"token": "a b"}', b'{"token": "a;b"}', b'{"token": 1}', b"\xff"]
)
def test_what_is_no_token_is_refused(body: bytes):
    with running() as server:
        answer = server.ask("POST", "/session", body, PAGE)
        assert answer.status == 400
        assert "set-cookie" not in answer.headers


def test_a_token_of_another_key_gets_no_cookie():
    with running() as server:
        answer = server.ask("POST", "/session", b'{"token": "a.b.c"}', PAGE)
        assert answer.status == 401
        assert "set-cookie" not in answer.headers
        assert server.ask("POST", "/session", json.dumps({"token": "x" * 9000}).encode(), PAGE).status == 413
        assert server.ask("POST", "/session", b"x" * 40_000, PAGE).status == 413
        assert server.ask("GET", "/session", None, PAGE).status == 405


def test_signing_out_removes_the_cookie():
    with running() as server:
        answer = server.ask("DELETE", "/session", None, PAGE)
        assert "Max-Age=0" in answer.headers["set-cookie"]
    assert "; Secure" in cookie("t", secure=True)
    assert cookie("t", secure=True).startswith("__Host-")
    for secure in (True, False):
        assert "HttpOnly; SameSite=Strict" in cookie("t", secure)


def test_the_token_is_in_no_log_line(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.DEBUG)
    with running() as server:
        held = token("acme", "admin")
        mine = signed_in(server, held)
        ask(server, "/ui/overview", mine)
        server.ask("POST", "/v1/queues/emails/pause", b"{}", {**mine, **PAGE})
        server.ask("POST", "/session", json.dumps({"token": held["Authorization"][7:] + "x"}).encode(), PAGE)
    assert any("/ui/overview" in str(record.msg) for record in caplog.records)
    signature = held["Authorization"].rpartition(".")[2]
    assert not any(signature in f"{record.msg} {record.__dict__}" for record in caplog.records)


def test_an_authorization_header_goes_before_a_cookie():
    with running() as server:
        mine = signed_in(server, token("acme", "admin"))
        assert ask(server, "/ui/me", {**mine, **token("other", "consume")})["tenant"] == "other"


def test_without_tokens_the_loopback_rules_hold():
    with running(auth=Auth()) as server:
        assert ask(server, "/ui/me", {})["operator"]
        assert not ask(server, "/ui/me", {})["signed_in"]
        assert server.ask("GET", "/ui/me", None, {"Origin": "http://evil.example"}).status == 403
        assert server.ask("GET", "/", None, {"Host": "evil.example"}).status == 403
        assert server.ask("POST", "/session", b'{"token": "a.b.c"}', PAGE).status == 404


# ── the page itself ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_page_and_its_files_load_nothing_from_elsewhere():
    with running() as server:
        page = server.ask("GET", "/", None, {})
        assert page.status == 200
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "http" not in policy
        for name in ("app.js", "app.css", "icon.svg"):
            asset = server.ask("GET", f"/assets/{name}", None, {})
            assert asset.status == 200
            assert server.ask("GET", f"/assets/{name}", None, {"If-None-Match": asset.headers["etag"]}).status == 304
        for path in ("/assets/../views.py", "/assets/%2e%2e/views.py", "/assets/nothing.js", "/ui/nothing"):
            assert server.ask("GET", path, None, {}).status == 404


def test_no_file_makes_html_from_text_or_names_another_host():
    from tenure.server.dashboard.assets import read_assets

    for name, asset in read_assets("static").items():
        text = asset.body.decode()
        for word in (
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "localStorage",
            "sessionStorage",
        ):
            assert word not in text, (name, word)
        assert [
            line for line in text.splitlines() if "://" in line and "http://www.w3.org/2000/svg" not in line
        ] == [], name


# ── views ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", VIEWS)
def test_every_view_takes_a_token_and_shows_nothing_of_another_tenant(name: str):
    with running() as server:
        jobs = furnish(server.store, "acme")
        query = {
            "queue": "?queue=emails", "jobs": "?queue=emails&state=dead", "job": f"?queue=emails&id={jobs['dead']}",
            "dead": "?queue=emails", "groups": "?queue=exports", "flow": f"?queue=site&id={jobs['crawl']}",
        }.get(name, "")  # fmt: skip
        assert server.ask("GET", f"/ui/{name}{query}", None, {}).status == 401
        mine = server.ask("GET", f"/ui/{name}{query}", None, token("acme", "consume"))
        assert mine.status == 200
        other = server.ask("GET", f"/ui/{name}{query}", None, token("other", "admin"))
        assert b"acme" not in other.body
        assert b"mailer" not in other.body
        assert b"customer-17" not in other.body
        assert jobs["dead"].encode() not in other.body
        if query:
            assert other.status == 404
            named = server.ask("GET", f"/ui/{name}{query}&tenant=acme", None, token("other", "admin"))
            assert named.status == 404
        only = server.ask("GET", f"/ui/{name}{query}", None, token("acme", "consume", queues=["images"]))
        assert b"emails" not in only.body or only.status == 404
        operator = server.ask(
            "GET", f"/ui/{name}{query}{'&' if query else '?'}tenant=acme", None, token(None, "operator")
        )
        assert operator.status == (200 if query or name == "overview" else 400)


def test_unknown_and_wrong_fields_are_refused():
    with running() as server:
        for target in (
            "/ui/overview?page=-1",
            "/ui/overview?x=1",
            "/ui/jobs?queue=emails&state=asleep",
            "/ui/queue",
            "/ui/jobs?queue=a/b",
        ):
            assert server.ask("GET", target, None, token("acme", "admin")).status in (400, 404), target


def test_jobs_are_searched_by_id_key_error_and_time():
    with running() as server:
        jobs = furnish(server.store)
        who = token("acme", "consume")

        def found(query: str) -> list[str]:
            return [job["id"] for job in ask(server, f"/ui/jobs?queue=emails&{query}", who)["jobs"]]

        assert found(f"id={jobs['scheduled']}") == [jobs["scheduled"]]
        assert found("state=scheduled&key=order-18") == [jobs["scheduled"]]
        assert found("state=dead&error=no+such+ADDRESS") == [jobs["failed"]]
        assert len(found("state=dead&error=ConnectionError")) == 7
        assert found("state=dead&before_ms=1000") == []
        assert len(found("state=dead&since_ms=1000")) == 8
        assert found("id=nonsense") == []


def test_lists_continue_by_cursor_and_searches_are_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(jobs, "SEARCHED", 200)
    with running() as server:
        queue = server.store.queue("emails", tenant="acme")
        queue.enqueue_many([b"x"] * 1000)
        who, seen, pages = token("acme", "consume"), set(), 0
        cursor: str | None = ""
        while cursor is not None:
            page = ask(server, f"/ui/jobs?queue=emails&cursor={cursor}", who)
            seen |= {job["id"] for job in page["jobs"]}
            cursor, pages = page["cursor"], pages + 1
        assert len(seen) == 1000
        assert pages == 20
        page = ask(server, "/ui/jobs?queue=emails&key=none", who)
        assert page["looked_at"] == 200
        assert page["cursor"]


def test_leases_are_shown_however_long_the_queues_took_to_read(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tenure.server.dashboard.views.workers.SEARCH_S", 0.0)
    with tenure.open("memory:", sweep=False) as store:
        for name in ("a", "b"):
            store.queue(name).enqueue(b"x")
            store.queue(name).claim(worker=name)
        viewer = Viewer(
            store.backend, History(store.backend), Identity("x", "default", frozenset({"admin"})), signed_in=True
        )
        view = workers.show(viewer, NoQuery())
        assert (len(view.leases), view.more) == (1, True)


def test_a_large_payload_is_cut():
    with running() as server:
        queue = server.store.queue("emails", tenant="acme")
        job = queue.enqueue("é".encode() * 200_000)
        shown = ask(server, f"/ui/job?queue=emails&id={job.id}", token("acme", "consume"))["payload"]
        assert shown["bytes"] == 400_000
        assert len(shown["text"]) == content.TEXT_BYTES // 2
        assert shown["text_cut"]
        binary = queue.enqueue(b"\xff" * 10_000)
        shown = ask(server, f"/ui/job?queue=emails&id={binary.id}", token("acme", "consume"))["payload"]
        assert shown["text"] is None
        assert len(shown["hex"]) == 2 * content.HEX_BYTES


def test_text_that_is_cut_within_a_character_stays_text():
    for extra in range(4):
        shown = content.content(b"a" * extra + "𝄞".encode() * 40_000)
        assert shown.text is not None
        assert shown.text.strip("a𝄞") == ""


def test_errors_that_differ_in_numbers_are_one_cause():
    assert masked("Timeout: host 10.0.0.7 after 30 s") == "Timeout: host #.#.#.# after # s"
    assert masked("KeyError: 'ada'") == "KeyError: #"
    assert common_part("Timeout: host #.#.#.# after # s") == "Timeout: host"
    clock = ManualClock()
    with tenure.open("memory:", clock=clock, sweep=False) as store:
        queue = store.queue("emails")
        for n in range(5):
            queue.enqueue(b"x")
            queue.fail(queue.claim()[0], error=f"Timeout: after {n} s")
            clock.advance(10)
        queue.enqueue(b"x")
        queue.fail(queue.claim()[0])
        causes = causes_of(queue.list("dead").jobs)
        assert [(cause.cause, cause.jobs) for cause in causes] == [
            ("Timeout: after # s", 5),
            ("(no error was given)", 1),
        ]
        assert causes[0].last_ms - causes[0].first_ms == 40_000
        assert queue.replay(where=tenure.Where(error=causes[0].part), dry_run=True).count == 5


def test_groups_are_shown_with_their_shares():
    with running() as server:
        furnish(server.store)
        found = ask(server, "/ui/groups?queue=exports", token("acme", "consume"))
        rows = {row["group"]: row for row in found["groups"]}
        assert rows["customer-17"]["at_limit"]
        assert rows["customer-17"]["share"] is None
        assert (rows["customer-17"]["leased"], rows["customer-17"]["waiting"]) == (2, 4)
        assert (rows["globex"]["weight"], rows["globex"]["share"]) == (3, 0.75)
        assert (rows[None]["waiting"], rows[None]["share"]) == (1, 0.25)
        assert ask(server, "/ui/groups?queue=emails", token("acme", "consume"))["groups"] == []


def test_blocked_jobs_are_counted_and_listed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(History, "infos", lambda self, after=None: all_queues(self._backend, None))  # a reading now
    with running() as server:
        jobs = furnish(server.store)
        who = token("acme", "consume")
        assert ask(server, "/ui/overview", who)["totals"]["blocked"] == 2
        assert ask(server, "/ui/queue?queue=site", who)["row"]["blocked"] == 1
        assert [job["id"] for job in ask(server, "/ui/jobs?queue=site&state=blocked", who)["jobs"]] == [jobs["index"]]


def test_schedules_are_shown_with_their_next_runs():
    clock = ManualClock()
    with running(clock) as server:
        furnish(server.store)
        found = ask(server, "/ui/schedules", token("acme", "consume"))["schedules"]
        assert [row["name"] for row in found] == ["poll", "nightly-report", "weekly"]
        assert found[0]["next_ms"][0] - server.store.backend.now_ms() <= 90_000
        assert found[1]["next_ms"][1] - found[1]["next_ms"][0] == 86_400_000
        assert (found[2]["paused"], found[2]["next_ms"], found[2]["cron"]) == (True, [], "0 0 * * 0")


def test_a_jobs_steps_and_signals_are_shown():
    with running() as server:
        jobs = furnish(server.store)
        steps = ask(server, f"/ui/job?queue=emails&id={jobs['leased']}", token("acme", "consume"))["steps"]
        assert [(step["kind"], step["name"], step["preview"]) for step in steps] == [
            ("step", "charge", '{"paid": true}'), ("signal", "approval", "yes"),
        ]  # fmt: skip


# ── flows ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_flow_is_laid_out_from_any_of_its_jobs():
    with running() as server:
        jobs, who = furnish(server.store), token("acme", "consume")
        for name, queue in (("crawl", "site"), ("index", "site"), ("report", "site-reports")):
            view = ask(server, f"/ui/flow?queue={queue}&id={jobs[name]}", who)
            layers: dict[int, list[str]] = {}
            for node in view["nodes"]:
                layers.setdefault(node["layer"], []).append(node["state"])
            assert [sorted(states) for states in layers.values()] == [
                ["done"], ["dead", "done", "leased", "ready", "ready"], ["blocked"], ["blocked"],
            ]  # fmt: skip
            assert (view["jobs"], view["more"]) == (8, False)
        around = ask(server, f"/ui/job?queue=site&id={jobs['index']}", who)
        assert len(around["parents"]) == 5
        assert [child["id"] for child in around["children"]] == [jobs["report"]]
        # A token for one queue sees that there are others, and nothing of what is in them.
        narrow = ask(
            server,
            f"/ui/flow?queue=site-reports&id={jobs['report']}",
            token("acme", "consume", queues=["site-reports"]),
        )
        assert [node["queue"] for node in narrow["nodes"] if node.get("linked")] == ["site-reports"]
        assert b"ConnectionError" not in json.dumps(narrow).encode()
        for id in ("0" * 32, "x"):
            assert server.ask("GET", f"/ui/flow?queue=site&id={id}", None, who).status == 404


def test_a_large_flow_is_shown_as_numbers():
    with running() as server:
        queue = server.store.queue("work", tenant="acme")
        names = [f"p{n}" for n in range(400)]
        made = queue.enqueue_many(
            [*(NewJob(b"p", name=name) for name in names), NewJob(b"c", after=[f"#{name}" for name in names])]
        )
        view = ask(server, f"/ui/flow?queue=work&id={made[-1].id}", token("acme", "consume"))
        assert (view["nodes"], view["more"], view["jobs"]) == ([], True, 300)
        assert {(row["state"], row["jobs"]) for row in view["counts"]} == {("blocked", 1), ("ready", 299)}


# ── the last hour ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_last_hour_is_told_in_minutes():
    clock = ManualClock()
    with tenure.open("memory:", clock=clock, sweep=False) as store:
        queue = store.queue("emails")
        queue.configure(Policy(retention=3600))
        queue.enqueue_many([b"before"] * 5)
        history = History(store.backend, clock)
        history.tick()
        viewer = Viewer(store.backend, history, Identity("x", "default", frozenset({"admin"})), signed_in=True)
        for _ in range(3):
            clock.advance(30)
            queue.enqueue_many([b"x"] * 4)
            claim = queue.claim(limit=2, worker="w1", lease=60)
            clock.advance(30)
            queue.ack_many(claim)
            history.tick()
        view = queue_view.show(viewer, queue_view.QueueQuery(queue="emails"))
        assert view.charts.ins[-3:] == [4, 4, 4]
        assert view.charts.outs[-3:] == [2, 2, 2]
        assert sum(view.charts.ins) == 12  # not the five that were there before
        assert view.charts.run_ms[-1] == 30_000
        assert view.charts.longest_wait_ms[-3] == 30_000
        assert view.row.rate_in == pytest.approx(4 / 60, abs=0.02)
        assert view.charts.waiting[-1] == 11
        assert [seen.worker for seen in history.workers()] == ["w1"]
        clock.advance(7200)
        history.tick()
        assert sum(queue_view.show(viewer, queue_view.QueueQuery(queue="emails")).charts.ins) == 0


def test_a_busy_journal_is_sampled(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tenure.server.dashboard.history.EVENTS", 10)
    clock = ManualClock()
    with tenure.open("memory:", clock=clock, sweep=False) as store:
        history = History(store.backend, clock)
        history.tick()
        queue = store.queue("emails")
        queue.enqueue_many([b"x"] * 500)
        clock.advance(5)
        queue.claim(limit=3, worker="w9")
        history.tick()
        assert [seen.worker for seen in history.workers()] == ["w9"]
        assert history._new_events() == []


# ── live ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@contextlib.contextmanager
def stream(server: Running, target: str, headers: dict[str, str]) -> Iterator[Iterator[tuple[str, Any]]]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    connection.request("GET", target, None, {"Accept": "text/event-stream", **headers})
    answer = connection.getresponse()
    assert answer.status == 200
    assert answer.getheader("content-type") == "text/event-stream"

    def events() -> Iterator[tuple[str, Any]]:
        kind = ""
        while line := answer.readline().decode().rstrip("\n"):
            if line.startswith("event: "):
                kind = line[7:]
            elif line.startswith("data: "):
                yield kind, json.loads(line[6:])
                answer.readline()

    try:
        yield events()
    finally:
        connection.close()


def test_a_view_is_sent_again_when_it_changes_and_ends_with_its_job():
    with running() as server:
        queue = server.store.queue("emails", tenant="acme")
        job = queue.enqueue(b"x")
        with stream(server, f"/ui/job?queue=emails&id={job.id}", token("acme", "consume")) as events:
            assert next(events)[0] == "now"
            states = [next(view for kind, view in events if kind == "view")["explanation"]["state"]]
            claim = queue.claim(worker="w1")
            states.append(
                next(
                    v["explanation"]["state"]
                    for k, v in events
                    if k == "view" and v["explanation"]["state"] != states[-1]
                )
            )
            queue.ack(claim[0])
            states.append(
                next(
                    v["explanation"]["state"]
                    for k, v in events
                    if k == "view" and v["explanation"]["state"] != states[-1]
                )
            )
        assert states == ["ready", "leased", "gone"]


def test_a_stream_ends_with_its_token():
    with running() as server:
        server.store.queue("emails", tenant="acme").enqueue(b"x")
        # Tokens are taken for five seconds more than they say: clocks differ.
        with stream(server, "/ui/overview", token("acme", "consume", lifetime=-3)) as events:
            last = list(events)[-1]
        assert last[0] == "ended"
        assert last[1]["why"] == "unauthenticated"


def test_nothing_is_logged_of_a_token(caplog: pytest.LogCaptureFixture):
    with running() as server:
        secret = token("acme", "admin")["Authorization"].removeprefix("Bearer ")
        signed_in(server, {"Authorization": f"Bearer {secret}"})
        server.ask("GET", f"/ui/me?token={secret}", None, {})
    assert secret not in caplog.text
