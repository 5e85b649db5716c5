"""The Cap'n Proto server, called by a real client over a real socket."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

import tenure
from tests.server.alone import ran_alone
from tests.server.running import Running, running, token

capnp = pytest.importorskip("capnp")

from tenure.server.capnp.interfaces import SCHEMA  # noqa: E402 - after the skip


@pytest.fixture(scope="module")
def served() -> Iterator[Running]:
    with running(capnp=True) as made:
        yield made


@pytest.fixture
def queue(served: Running, request: pytest.FixtureRequest) -> tenure.Queue:
    """Acme's, of the test's own."""
    return served.store.queue(request.node.name.replace("_", "-").lower()[:60], "acme")


def bearer(tenant: str | None, scopes: str, **more: Any) -> str:
    return token(tenant, scopes, **more)["Authorization"].removeprefix("Bearer ")


ACME = bearer("acme", "produce consume")


def talk(served: Running, conversation: Callable[[Any], Awaitable[None]]) -> None:
    """A connection, with the bytes that were sent and received on it."""

    async def connected() -> None:
        stream = await capnp.AsyncIoStream.create_connection("127.0.0.1", served.capnp_port)
        try:
            client = capnp.TwoPartyClient(stream)
            await conversation(client.bootstrap().cast_as(SCHEMA.Door))
        finally:
            stream.close()  # not when it happens to be collected: the server acts on it

    asyncio.run(asyncio.wait_for(capnp.run(connected()), 90))


async def entered(door: Any, queue: str, held: str = ACME, tenant: str = "") -> Any:
    session = await door.login(token=held, tenant=tenant)
    assert not session.problem.code, session.problem
    opened = await session.session.queue(queue)
    assert not opened.problem.code, opened.problem
    return opened.queue


def test_add_poll_remove(served: Running, queue: tenure.Queue):
    async def conversation(door: Any) -> None:
        here = await entered(door, queue.name.queue)
        added = await here.add(
            items=[
                {"contents": b"low", "group": "customer-17"},
                {"contents": b"high", "priority": 9, "key": "k", "headers": [{"name": "a", "value": "b"}], "maxAttempts": 2},
                {"contents": b"later", "visibilityTimeoutSecs": 3600},
                {"contents": b"a little later", "visibilityTimeoutMillis": 3_600_000, "ttlMillis": 7_200_000},
            ]
        )  # fmt: skip
        assert queue.counts().ready == queue.counts().scheduled == 2
        again = await here.add(items=[{"contents": b"high", "key": "k"}])
        assert again.ids[0] == added.ids[1]
        polled = await here.poll(leaseValiditySecs=60, numItems=10, worker="w1")
        high, low = polled.items
        assert (high.contents, high.id, high.attempt, high.maxAttempts, high.token) == (b"high", added.ids[1], 1, 2, 1)
        assert (high.priority, high.key, [(h.name, h.value) for h in high.headers]) == (9, "k", [("a", "b")])
        assert (low.contents, low.id) == (b"low", added.ids[0])
        job = queue.get(bytes(low.id).hex())
        assert job is not None
        assert (job.worker, job.lease_until_ms, job.group) == ("w1", polled.untilMillis, "customer-17")
        for item in polled.items:
            assert (await here.remove(id=item.id, lease=polled.lease)).removed
        assert queue.counts().leased == 0
        empty = await here.poll(leaseValiditySecs=60)
        assert (len(empty.items), bytes(empty.lease)) == (0, b"")

    talk(served, conversation)


def test_a_lost_lease(served: Running, queue: tenure.Queue):
    async def conversation(door: Any) -> None:
        here = await entered(door, queue.name.queue)
        await here.add(items=[{"contents": b"x"}])
        polled = await here.poll(leaseValidityMillis=50)
        (item,) = polled.items
        other = await here.poll(leaseValiditySecs=60, timeoutSecs=60)
        assert [one.id for one in other.items] == [item.id]
        for lost in (
            await here.remove(id=item.id, lease=polled.lease),
            await here.nack(id=item.id, lease=polled.lease, error="no"),
            await here.extend(lease=polled.lease, leaseValiditySecs=60),
        ):
            assert lost.problem.code == "lease_lost"
            assert not lost.to_dict().get("removed", lost.to_dict().get("returned", lost.to_dict().get("extended")))
        outcomes = (
            await here.settle(
                settlements=[
                    {"verb": "ack", "id": item.id, "lease": polled.lease, "token": item.token},
                    {"verb": "ack", "id": item.id, "lease": other.lease, "token": other.items[0].token},
                ]
            )
        ).outcomes
        assert [one.code for one in outcomes] == ["lease_lost", ""]

    talk(served, conversation)


def test_extend_nack_and_settle_many(served: Running, queue: tenure.Queue):
    queue.configure(tenure.Policy(max_attempts=2, retention=3600))

    async def conversation(door: Any) -> None:
        here = await entered(door, queue.name.queue)
        await here.add(items=[{"contents": str(n).encode()} for n in range(5)])
        polled = await here.poll(leaseValiditySecs=60, numItems=5)
        extended = await here.extend(lease=polled.lease, leaseValiditySecs=600)
        assert extended.extended
        assert extended.untilMillis >= polled.untilMillis + 500_000
        items = list(polled.items)
        assert (await here.nack(id=items[0].id, lease=polled.lease, error="soon", delayMillis=3_600_000)).returned
        settled = await here.settle(
            settlements=[
                {"verb": "ack", "id": items[1].id, "lease": polled.lease, "result": b"done"},
                {"verb": "nack", "id": items[2].id, "lease": polled.lease, "error": "later", "token": items[2].token, "delayMillis": 3_600_000},
                {"verb": "fail", "id": items[3].id, "lease": polled.lease, "error": "never"},
                {"verb": "release", "id": items[4].id, "lease": polled.lease},
            ]
        )  # fmt: skip
        assert [one.code for one in settled.outcomes] == [""] * 4
        states = {}
        for item in items:
            job = queue.get(bytes(item.id).hex())
            assert job is not None
            states[bytes(item.contents)] = (job.state, job.error, job.result)
        assert states == {
            b"0": ("scheduled", "soon", None),
            b"1": ("done", None, b"done"),
            b"2": ("scheduled", "later", None),
            b"3": ("dead", "never", None),
            b"4": ("ready", None, None),
        }

    talk(served, conversation)


def test_an_ack_adds_items_and_a_release_may_wait(served: Running, queue: tenure.Queue):
    async def conversation(door: Any) -> None:
        here = await entered(door, queue.name.queue)
        await here.add(items=[{"contents": b"parent"}, {"contents": b"later"}])
        polled = await here.poll(leaseValiditySecs=60, numItems=2)
        parent, later = polled.items
        settled = await here.settle(
            settlements=[
                {"verb": "ack", "id": parent.id, "lease": polled.lease, "then": [{"contents": b"child", "queue": "next"}]},
                {"verb": "release", "id": later.id, "lease": polled.lease, "delayMillis": 3_600_000},
            ]
        )  # fmt: skip
        assert [one.code for one in settled.outcomes] == [""] * 2

    talk(served, conversation)
    assert [job.payload for job in queue.list("scheduled")] == [b"later"]
    assert [job.payload for job in served.store.queue("next", tenant=queue.tenant).list("ready")] == [b"child"]


def test_items_wait_for_items(served: Running, queue: tenure.Queue):
    async def conversation(door: Any) -> None:
        here = await entered(door, queue.name.queue)
        (before,) = (await here.add(items=[{"contents": b"before"}])).ids
        added = await here.add(
            items=[
                {"contents": b"left", "name": "left"},
                {"contents": b"right", "name": "right", "queue": "aside"},
                {"contents": b"last", "after": ["#left", "#right", before.hex()], "onParentDead": "run"},
                {"contents": b"never", "after": ["#left"]},
            ]
        )
        assert not added.problem.code, added.problem.message
        assert {job.payload for job in queue.list("blocked")} == {b"last", b"never"}
        aside = await entered(door, "aside")
        polled = await aside.poll(leaseValiditySecs=60)
        ack = {"verb": "ack", "id": polled.items[0].id, "lease": polled.lease, "result": b"right's"}
        assert [one.code for one in (await aside.settle(settlements=[ack])).outcomes] == [""]
        polled = await here.poll(leaseValiditySecs=60, numItems=5)
        verdicts = {b"before": {"verb": "ack"}, b"left": {"verb": "fail", "error": "broken"}}
        settled = await here.settle(
            settlements=[{"id": i.id, "lease": polled.lease, **verdicts[bytes(i.contents)]} for i in polled.items]
        )
        assert [one.code for one in settled.outcomes] == ["", ""]
        polled = await here.poll(leaseValiditySecs=60, numItems=5)
        assert [bytes(item.contents) for item in polled.items] == [b"last"]
        found = (await here.parents(id=polled.items[0].id)).parents
        assert [(p.queue, p.state, p.hasResult, bytes(p.result), p.error) for p in found] == [
            (queue.name.queue, "dead", False, b"", "broken"),
            ("aside", "done", True, b"right's", ""),
            (queue.name.queue, "gone", False, b"", ""),
        ]
        rest = (await here.parents(id=polled.items[0].id, begin=2, limit=5)).parents
        assert [one.state for one in rest] == ["gone"]
        child = {"contents": b"child", "after": [polled.items[0].id.hex()]}
        ack = {"verb": "ack", "id": polled.items[0].id, "lease": polled.lease, "then": [child]}
        assert [one.code for one in (await here.settle(settlements=[ack])).outcomes] == [""]

    talk(served, conversation)
    assert [job.payload for job in queue.list("ready")] == [b"child"]


def test_steps_and_signals(served: Running, queue: tenure.Queue):
    async def conversation(door: Any) -> None:
        here = await entered(door, queue.name.queue)
        await here.add(items=[{"contents": b"job"}])
        polled = await here.poll(leaseValiditySecs=60)
        held = {"id": polled.items[0].id, "lease": polled.lease, "token": polled.items[0].token}
        assert bytes((await here.recordStep(**held, stepName="charge", value=b"1")).stored) == b"1"
        assert bytes((await here.recordStep(**held | {"token": 0}, stepName="charge", value=b"2")).stored) == b"1"
        release = {"verb": "release", **held, "delayMillis": 3_600_000, "untilSignal": "approval"}
        assert [one.code for one in (await here.settle(settlements=[release])).outcomes] == [""]
        late = await here.recordStep(**held, stepName="late", value=b"")
        assert late.problem.code == "already_settled"
        assert len((await here.poll(leaseValiditySecs=60)).items) == 0
        assert (await here.signal(id=held["id"], signalName="approval", payload=b"yes")).given
        again = await here.signal(id=held["id"], signalName="approval", payload=b"no")
        assert (again.given, again.problem.code) == (False, "")
        assert [item.id for item in (await here.poll(leaseValiditySecs=60)).items] == [held["id"]]
        found = (await here.steps(id=held["id"])).steps
        assert [(str(s.kind), s.name, bytes(s.value)) for s in found] == [
            ("step", "charge", b"1"),
            ("signal", "approval", b"yes"),
        ]
        assert all(step.storedMillis > 0 for step in found)

    talk(served, conversation)


def test_poll_waits_and_wakes(served: Running, queue: tenure.Queue):
    async def conversation(door: Any) -> None:
        here = await entered(door, queue.name.queue)
        waiting = here.poll(leaseValiditySecs=60, timeoutSecs=60)
        started = time.monotonic()
        threading.Timer(0.1, lambda: queue.enqueue(b"at last")).start()
        polled = await waiting
        assert [bytes(item.contents) for item in polled.items] == [b"at last"]
        assert time.monotonic() - started < 30
        empty = await here.poll(timeoutMillis=20)
        assert len(empty.items) == 0

    talk(served, conversation)


def test_a_caller_who_goes_leaves_nothing_leased(served: Running, queue: tenure.Queue):
    if ran_alone("tests/server/test_capnp.py::test_a_caller_who_goes_leaves_nothing_leased"):
        return

    async def dropped(door: Any) -> None:
        here = await entered(door, queue.name.queue)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(here.poll(leaseValiditySecs=600, timeoutSecs=60), 0.1)

    async def gone(door: Any) -> None:
        here = await entered(door, queue.name.queue)
        _ = here.poll(leaseValiditySecs=600, timeoutSecs=60)
        await asyncio.sleep(0.1)  # and the connection ends with the conversation

    talk(served, dropped)
    talk(served, gone)
    time.sleep(1)  # for the server to see that they went
    queue.enqueue(b"x")
    claim = queue.claim(wait=30)
    assert [delivery.payload for delivery in claim] == [b"x"]
    assert claim[0].attempt == 1
    queue.ack(claim[0])


def test_another_tenants_things_are_not_there(served: Running, queue: tenure.Queue):
    queue.enqueue(b"a secret")
    claim = queue.claim(lease=600)
    job, lease = claim[0].job, claim[0].lease

    async def conversation(door: Any) -> None:
        for held, tenant in ((bearer("globex", "produce consume admin"), ""), (bearer(None, "operator"), "globex")):
            here = await entered(door, queue.name.queue, held, tenant)
            assert len((await here.poll(leaseValiditySecs=60, numItems=100)).items) == 0
            for one, other in ((job, lease), (bytes(16), bytes(16))):
                assert (await here.remove(id=one, lease=other)).problem.code == "lease_lost"
                assert (await here.nack(id=one, lease=other)).problem.code == "lease_lost"
                assert (await here.extend(lease=other, leaseValiditySecs=60)).problem.code == "lease_lost"
                settled = await here.settle(settlements=[{"id": one, "lease": other, "token": 1}])
                assert [outcome.code for outcome in settled.outcomes] == ["lease_lost"]
        denied = await door.login(token=bearer("globex", "produce"), tenant="acme")
        assert denied.problem.code == "forbidden"

    talk(served, conversation)
    queue.ack(claim[0])


def test_who_may_what(served: Running, queue: tenure.Queue):
    async def conversation(door: Any) -> None:
        for bad in ("", "x.y.z", ACME[:-2]):
            assert (await door.login(token=bad)).problem.code == "unauthenticated"
        producer = await entered(door, queue.name.queue, bearer("acme", "produce"))
        assert (await producer.poll()).problem.code == "forbidden"
        assert (
            await producer.settle(settlements=[{"id": bytes(16), "lease": bytes(16), "token": 1}])
        ).problem.code == "forbidden"
        consumer = await entered(door, queue.name.queue, bearer("acme", "consume"))
        assert (await consumer.add(items=[{"contents": b"x"}])).problem.code == "forbidden"
        elsewhere = await door.login(token=bearer("acme", "produce", queues=["another"]))
        assert (await elsewhere.session.queue(queue.name.queue)).problem.code in ("forbidden", "not_found")

    talk(served, conversation)
    assert queue.counts().enqueued == 0


def test_a_session_ends_with_its_token(served: Running, queue: tenure.Queue):
    async def conversation(door: Any) -> None:
        # Tokens count whole seconds, and the server allows the clocks five: this one has between one and two left.
        # Where it took longer than that to come in, with another one.
        until = time.monotonic() + 60
        while True:
            session = await door.login(token=bearer("acme", "produce", lifetime=-3), tenant="")
            if not session.problem.code and not (opened := await session.session.queue(queue.name.queue)).problem.code:
                break
            assert time.monotonic() < until
        here = opened.queue
        while not (code := (await here.add(items=[{"contents": b"x"}])).problem.code):
            assert time.monotonic() < until
            await asyncio.sleep(0.05)
        assert code == "unauthenticated"

    talk(served, conversation)


def test_impossible_arguments_are_errors_without_a_traceback(served: Running, queue: tenure.Queue):
    async def conversation(door: Any) -> None:
        here = await entered(door, queue.name.queue)
        session = (await door.login(token=ACME)).session
        for answer in (
            await here.add(items=[{"contents": b"x", "priority": 10}]),
            await here.add(items=[{"contents": b"x", "key": "k" * 600}]),
            await here.poll(numItems=1_000_000),
            await here.remove(id=b"short", lease=b""),
            await here.extend(lease=bytes(16)),
            await here.settle(settlements=[]),
            await session.queue("NOT A NAME"),
        ):
            assert answer.problem.code == "invalid_argument", answer
            assert "Traceback" not in answer.problem.message
        large = await here.add(items=[{"contents": bytes(9 * 1024**2)}])
        assert large.problem.code == "too_large"

    talk(served, conversation)
    assert queue.counts().enqueued == 0
