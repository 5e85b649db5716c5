"""A request's id belongs to the caller that chose it, and to what it asked for."""

from __future__ import annotations

import json
import threading
import time

import pytest

from tenure.server.auth.issue import mint
from tests.server.running import RULES, SECRET, Running, running, token

ID = {"Tenure-Request": "0" * 32}
CLAIM = b'{"limit": 1, "lease_ms": 60000}'


def token_of(subject: str, scopes: str, tenant: str = "acme") -> dict[str, str]:
    made = mint(
        SECRET, RULES, subject=subject, tenant=tenant, scopes=scopes.split(), queues=None, now=time.time(), lifetime=600
    )
    return {"Authorization": f"Bearer {made}"}


def claim(server: Running, queue: str, who: dict[str, str]) -> dict[str, object]:
    answer = server.ask("POST", f"/v1/queues/{queue}/claims", CLAIM, {**who, **ID})
    assert answer.status == 200, answer.body
    found: dict[str, object] = json.loads(answer.body)
    return found


def test_a_known_request_id_does_not_return_another_operations_response():
    """At e286b7d a produce-only token that knew the id of a claim got its payload and receipt."""
    with running() as server:
        server.store.queue("secrets", tenant="acme").enqueue(b"a secret")
        assert len(claim(server, "secrets", token("acme", "consume"))["jobs"]) == 1  # type: ignore[arg-type]
        asked = server.ask("POST", "/v1/queues/other/jobs", b'{"text": "x"}', {**token("acme", "produce"), **ID})
        assert asked.status == 200
        assert b"receipt" not in asked.body
        assert json.loads(asked.body)["id"]


def test_a_known_request_id_does_not_return_another_queues_response():
    with running() as server:
        server.store.queue("secrets", tenant="acme").enqueue(b"a secret")
        server.store.queue("other", tenant="acme").enqueue(b"other")
        first = claim(server, "secrets", token("acme", "consume"))
        second = claim(server, "other", token("acme", "consume", ["other"]))
        assert (first["queue"], second["queue"]) == ("secrets", "other")


def test_another_subject_of_the_tenant_gets_its_own_answer():
    with running() as server:
        server.store.queue("work", tenant="acme").enqueue_many([b"one", b"two"])
        ada, eve = claim(server, "work", token_of("ada", "consume")), claim(server, "work", token_of("eve", "consume"))
        assert ada["lease"] != eve["lease"]


def test_the_same_caller_gets_the_same_answer():
    with running() as server:
        server.store.queue("work", tenant="acme").enqueue_many([b"one", b"two"])
        first = claim(server, "work", token_of("ada", "consume"))
        assert claim(server, "work", token_of("ada", "consume")) == first


@pytest.mark.parametrize(
    ("who", "status"),
    [
        (("ada", "produce"), 404),
        (("eve", "consume"), 404),
        (("ada", "consume"), 200),
        (("ada", "admin"), 200),
    ],
)
def test_only_its_caller_calls_a_waiting_claim_off(who: tuple[str, str], status: int):
    with running() as server:
        answered: list[float] = []

        def wait() -> None:
            from http.client import HTTPConnection

            connection = HTTPConnection("127.0.0.1", server.port, timeout=30)
            body = b'{"limit": 1, "lease_ms": 1000, "wait_ms": 2000}'
            headers = {**token_of("ada", "consume"), **ID, "Content-Type": "application/json"}
            began = time.monotonic()
            connection.request("POST", "/v1/queues/work/claims", body, headers)
            connection.getresponse().read()
            answered.append(time.monotonic() - began)
            connection.close()

        waiting = threading.Thread(target=wait)
        waiting.start()
        time.sleep(0.5)
        answer = server.ask("DELETE", f"/v1/requests/{'0' * 32}", None, token_of(*who))
        waiting.join()
        assert answer.status == status
        assert (answered[0] < 1.9) == (status == 200)
