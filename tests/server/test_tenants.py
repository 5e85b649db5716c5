"""What is another tenant's is not there: each route, each scope, asked about another tenant's jobs, leases, queues and cursors.

Two servers are asked the same: one that has the other tenant's things, one where that tenant never was. Whatever the
answer is, it has to be the same to the byte, so that nobody can tell the one from the other; and the other tenant's things have
to be as they were.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

import msgspec
import pytest

import tenure
from tenure import ManualClock, Policy
from tenure.model.schedule import Schedule
from tests.server.foreign import Probe, Things, probes
from tests.server.running import Running, running, token

ACME, GLOBEX = "acme", "globex"
QUEUE = "emails"
STATES = ("ready", "scheduled", "leased", "done", "dead")
SCOPES = {
    "no scope": "",
    "produce": "produce",
    "consume": "consume",
    "admin": "admin",
    "all but operator": "produce consume admin",
}
#: What a server makes up, differently each time: ids, and cursors, which have them in them.
MADE_UP = re.compile(rb'[0-9a-f]{32}|"cursor":"[^"]*"')


def furnish(store: tenure.Store, tenant: str) -> Things:
    """A job in every state, and all that can be named."""
    queue = store.queue(QUEUE, tenant)
    queue.configure(Policy(retention=86_400, max_attempts=1))
    queue.enqueue_many([b"a secret", b"another"])
    claim = queue.claim(limit=2, lease=3600)
    done, dead = claim
    queue.ack(done, result=b"a result")
    queue.nack(dead, error="an error")
    queue.enqueue(b"leased", key="a-key")
    held = queue.claim(lease=3600, id="a-claim")
    queue.enqueue_many([b"ready", b"ready too"])
    queue.enqueue(b"scheduled", delay=3600)
    jobs = [queue.list(state).jobs[0].id for state in STATES]
    page = queue.list("ready", limit=1)
    events = store.events(limit=3, consumer="a-consumer")
    store.add_schedule(Schedule(name="a-schedule", tenant=tenant, queue=QUEUE, payload=b"a secret", cron="@daily"))
    store._backend.begin_write(f"{tenant}/a-write", b"a manifest", 3_600_000)
    receipts = [held.deliveries[0].receipt, dead.receipt, done.receipt]
    assert page.cursor
    assert held.id
    return Things(
        tenant, QUEUE, jobs, held.id, receipts, [page.cursor], events.cursor, "a-claim", "a-key", "a-consumer"
    )


@pytest.fixture(scope="module")
def twins() -> Iterator[tuple[Running, Running, Things]]:
    """The server with acme's things, and one where somebody else did as much under another name."""
    clock = ManualClock()
    with running(clock) as here, running(clock) as elsewhere:
        things = furnish(here.store, ACME)
        furnish(elsewhere.store, "other")
        yield here, elsewhere, things


def plain(body: bytes, probe: Probe) -> bytes:
    """Without the ids that the server made up; those that were sent stay."""
    sent = repr(probe).encode()
    return MADE_UP.sub(lambda found: found[0] if found[0] in sent else b"*", body)


def everything(store: tenure.Store, tenant: str) -> bytes:
    queue = store.queue(QUEUE, tenant)
    found = [queue.list(state).jobs for state in STATES]
    lives = [queue.timeline(job.id) for jobs in found for job in jobs]
    return msgspec.json.encode([found, lives, queue.counts(), queue.policy()])


def compare(twins: tuple[Running, Running, Things], headers: dict[str, str]) -> Counter[int]:
    here, elsewhere, things = twins
    before = everything(here.store, ACME)
    answers: Counter[int] = Counter()
    for probe in probes(things):
        one, other = here.ask(*probe.wire, headers), elsewhere.ask(*probe.wire, headers)
        assert (one.status, plain(one.body, probe)) == (other.status, plain(other.body, probe)), probe
        assert one.headers == other.headers, probe
        assert b"secret" not in one.body
        assert one.status < 500, (probe, one.body)
        answers[one.status] += 1
    assert everything(here.store, ACME) == before
    return answers


def shown(what: str, answers: Counter[int]) -> None:
    by_status = ", ".join(f"{count} × {status}" for status, count in sorted(answers.items()))
    print(
        f"{what}: {sum(answers.values())} requests about another tenant's things, the same as for nothing: {by_status}"
    )


@pytest.mark.parametrize("scopes", SCOPES)
def test_another_tenants_things_are_not_there(scopes: str, twins: tuple[Running, Running, Things]):
    answers = compare(twins, token(GLOBEX, SCOPES[scopes]))
    assert set(answers) == {403} if scopes == "no scope" else answers[404]
    shown(scopes, answers)


def test_an_operator_at_another_tenant(twins: tuple[Running, Running, Things]):
    here, elsewhere, things = twins
    answers: Counter[int] = Counter()
    for probe in probes(things):
        if probe.operation.scope == "operator":
            continue  # of the whole store, which is an operator's to see
        if f"{ACME}/" in repr(probe.body):
            continue  # names acme: an operator may
        headers = {**token(None, "operator"), "Tenure-Tenant": GLOBEX}
        one, other = here.ask(*probe.wire, headers), elsewhere.ask(*probe.wire, headers)
        assert (one.status, plain(one.body, probe)) == (other.status, plain(other.body, probe)), probe
        answers[one.status] += 1
    assert answers[404]
    shown("operator", answers)


def test_without_a_token_every_route_is_closed(twins: tuple[Running, Running, Things]):
    for headers in ({}, {"Authorization": "Bearer x.y.z"}, {"Tenure-Tenant": ACME}):
        assert set(compare(twins, headers)) == {401}


def test_a_tenant_cannot_name_another(twins: tuple[Running, Running, Things]):
    answers = compare(twins, {**token(GLOBEX, "produce consume admin"), "Tenure-Tenant": ACME})
    assert set(answers) == {403}


@pytest.mark.parametrize("scopes", ["produce", "consume", "admin"])
def test_a_queue_that_a_token_does_not_list_is_not_there(scopes: str, twins: tuple[Running, Running, Things]):
    """Now of one's own tenant: the queue is there, for others."""
    headers = token(ACME, scopes, queues=["other"])
    answers = compare(twins, headers)
    shown(f"{scopes}, for another queue", answers)
    here, _, things = twins
    for probe in probes(things):
        if probe.operation.path.startswith("/v1/queues/{queue}"):
            asked = here.ask(*probe.wire, headers)
            assert asked.status in (400, 403, 404), (probe, asked.body)
        found = here.ask(*probe.wire, headers)
        assert QUEUE.encode() not in plain(found.body, probe) or found.status >= 400, (probe, found.body)
