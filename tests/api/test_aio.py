"""The asyncio adapter: the same verbs, and nothing left leased by a cancelled one."""

import asyncio
import contextlib
import inspect
import threading
import time

import pytest
import structlog

import tenure
from tenure import aio
from tenure.api.queue import Queue
from tenure.api.store import Store
from tenure.errors import InvalidArgument, LeaseLost, OpenError, StoreClosed, WaitTimeout


def run(story, **options):
    """Tell a story on a fresh store, and check it at the end."""

    async def told():
        async with aio.open("memory:", sweep=False, **options) as store:
            await story(store)
            report = await store.check()
            assert report.clean, report.findings

    asyncio.run(told(), debug=True)


def verbs(kind):
    return {
        name: thing
        for name, thing in vars(kind).items()
        if not name.startswith("_") and not isinstance(thing, property)
    }


@pytest.mark.parametrize(("sync", "adapted"), [(Queue, aio.AsyncQueue), (Store, aio.AsyncStore)])
def test_every_verb_is_there_with_its_arguments(sync, adapted):
    for name, verb in verbs(sync).items():
        mirrored = getattr(adapted, name, None)
        assert mirrored is not None, f"{adapted.__name__} has no {name}"
        ours, theirs = inspect.signature(mirrored).parameters, inspect.signature(verb).parameters
        assert list(ours) == list(theirs), name
        assert [p.default for p in ours.values()] == [p.default for p in theirs.values()], name
    extra = set(verbs(adapted)) - set(verbs(sync))
    assert extra <= {"follow"}


def test_a_job_from_end_to_end():
    async def story(store):
        queue = store.queue("emails", tenant="acme")
        assert queue.tenant == "acme"
        job = await queue.enqueue(b"hello", priority=3)
        await queue.enqueue_many([b"a", b"b"])
        async with queue.claim(limit=2, lease=30, worker="w1") as claim:
            assert isinstance(claim, tenure.Claim)
            assert len(claim) == 2
            first, second = claim
            assert first.id == job.id
            await queue.extend(claim, 60)
            await queue.progress(first, 0.5)
            await queue.ack(first, result=b"done")
            with pytest.raises(LeaseLost):
                await queue.ack(first)
        counts = await queue.counts()
        assert (counts.ready, counts.done, counts.leased) == (2, 1, 0)  # the second was given back
        found = await queue.get(second.id)
        assert found.attempt == 0
        done = await queue.wait_for(job.id)
        assert done.result == b"done"
        page = await queue.list("ready")
        assert len(page) == 2
        assert [info.queue for info in await store.queues()] == ["emails"]

    run(story)


def test_a_claim_may_be_awaited_then_entered():
    async def story(store):
        queue = store.queue("emails")
        await queue.enqueue(b"hello")
        async with await queue.claim() as claim:
            assert len(claim) == 1
        assert (await queue.counts()).ready == 1
        task = asyncio.create_task(queue.claim())  # it is a coroutine too
        assert len(await task) == 1
        claim = await queue.claim()
        assert not claim
        async with claim:
            pass
        with pytest.raises(TypeError, match="async with"), claim:
            pass

    run(story)


def test_several_queues_in_turn():
    async def story(store):
        for name in ("a", "b"):
            await store.queue(name).enqueue_many([b"1", b"2"])
        seen = [(await store.claim([store.queue("a"), "b"]))[0].queue for _ in range(4)]
        assert sorted(seen) == ["a", "a", "b", "b"]
        assert seen[0] != seen[1]
        with pytest.raises(InvalidArgument):
            store.claim([])

    run(story)


def test_bad_arguments_are_refused():
    async def story(store):
        with pytest.raises(InvalidArgument):
            store.queue("No Such Name")
        with pytest.raises(InvalidArgument):
            await store.queue("a").claim(limit=0)
        with pytest.raises(InvalidArgument):
            await store.queue("a").enqueue("text")

    run(story)


def test_a_waiting_claim_wakes():
    async def story(store):
        queue = store.queue("emails")
        waiting = asyncio.create_task(queue.claim(wait=30))
        await asyncio.sleep(0.05)
        began = time.monotonic()
        await queue.enqueue(b"hello")
        assert len(await waiting) == 1
        assert time.monotonic() - began < 25

    run(story)


def test_more_waiters_than_threads_keep_no_verb_from_its_turn():
    async def told():
        async with aio.AsyncStore(tenure.open("memory:", sweep=False), threads=2, waiters=4) as store:
            queue = store.queue("emails")
            waiting = [asyncio.create_task(queue.claim(wait=30)) for _ in range(20)]
            await asyncio.sleep(0.05)
            for _ in range(20):
                await asyncio.wait_for(queue.enqueue(b"hello"), 25)
            claims = await asyncio.wait_for(asyncio.gather(*waiting), 30)
            assert len({claim[0].id for claim in claims}) == 20
            ours = [thread for thread in threading.enumerate() if thread.name.startswith("tenure-aio")]
            assert len(ours) < 20
            assert (await store.check()).clean

    asyncio.run(told())


def test_the_time_spent_in_line_counts_as_waiting():
    async def told():
        async with aio.AsyncStore(tenure.open("memory:", sweep=False), waiters=1) as store:
            began = time.monotonic()
            claims = await asyncio.gather(*(store.queue("emails").claim(wait=2) for _ in range(4)))
            assert not any(claims)
            assert time.monotonic() - began < 7.5  # one after another they would take eight

    asyncio.run(told())


# ── cancelling ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_cancelled_claim_ends_its_waiting():
    async def story(store):
        queue = store.queue("emails")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(queue.claim(wait=3600), 0.1)
        await queue.enqueue(b"hello")
        await asyncio.sleep(0.1)
        assert (await queue.counts()).ready == 1

    run(story)


def test_a_claim_that_was_made_while_it_was_cancelled_is_given_back(monkeypatch):
    """Cancelled at any moment: before the thread runs, inside the claim, and after it, before the task looks."""
    claimed, cancelled = threading.Event(), threading.Event()

    async def story(store):
        queue = store.queue("emails")
        backend = queue._sync._backend
        real = backend.claim

        def slow(*args):
            leased = real(*args)
            claimed.set()
            assert cancelled.wait(60)
            return leased

        monkeypatch.setattr(backend, "claim", slow)
        await queue.enqueue(b"hello")

        inside = asyncio.create_task(queue.claim(wait=5))
        await asyncio.to_thread(claimed.wait)
        inside.cancel()
        cancelled.set()
        with pytest.raises(asyncio.CancelledError):
            await inside
        counts = await queue.counts()
        assert (counts.ready, counts.leased) == (1, 0)  # by the time the cancellation is over

        monkeypatch.setattr(backend, "claim", real)
        after = asyncio.create_task(queue.claim())
        await asyncio.sleep(0)
        until = time.monotonic() + 60
        while (
            not queue._sync.counts().leased
        ):  # the event loop is busy: the claim is made, and its task has not seen it
            assert time.monotonic() < until
            time.sleep(0.005)
        after.cancel()
        with pytest.raises(asyncio.CancelledError):
            await after
        assert (await queue.counts()).leased == 0

        before = asyncio.create_task(queue.claim())
        before.cancel()
        with pytest.raises(asyncio.CancelledError):
            await before
        assert (await queue.counts()).leased == 0

    run(story)


def test_cancelled_at_random_moments_nothing_is_left_leased():
    async def story(store):
        queue = store.queue("emails")
        await queue.enqueue_many([b"%d" % n for n in range(20)])

        async def impatient(turn):
            task = asyncio.create_task(queue.claim(limit=2, wait=0.01 if turn % 2 else 0))
            await asyncio.sleep(turn % 7 / 3000)
            task.cancel()
            try:
                claim = await task
            except asyncio.CancelledError:
                return
            async with claim:
                pass

        for _ in range(10):
            await asyncio.gather(*(impatient(turn) for turn in range(20)))
        counts = await queue.counts()
        assert (counts.ready, counts.leased) == (20, 0)

    run(story)


def test_a_cancelled_context_gives_its_jobs_back():
    async def story(store):
        queue = store.queue("emails")
        await queue.enqueue(b"hello")
        entered = asyncio.Event()

        async def work():
            async with queue.claim():
                entered.set()
                await asyncio.sleep(3600)

        task = asyncio.create_task(work())
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await queue.counts()).ready == 1

    run(story)


def test_a_cancelled_opening_leaves_no_store_open(tmp_path):
    async def told():
        cancelled = 0
        for pause in (0, 0.005, 0.005, 0.01, 0):
            task = asyncio.ensure_future(aio.open(f"rocksdb:{tmp_path}/data", sweep=False))
            await asyncio.sleep(pause)
            task.cancel()
            try:
                await (await task).close()  # it was open before that
            except asyncio.CancelledError:
                cancelled += 1
        assert cancelled
        await (await aio.open(f"rocksdb:{tmp_path}/data")).close()

    asyncio.run(told())


# ── waiting for other things ─────────────────────────────────────────────────────────────────────────────────────────


def test_wait_for(monkeypatch):
    monkeypatch.setattr("tenure.api.aio._WAIT_SLICE_S", 0.05)

    async def story(store):
        queue = store.queue("emails")
        job = await queue.enqueue(b"hello")
        with pytest.raises(WaitTimeout, match=r"after 0\.12 s"):
            await queue.wait_for(job.id, 0.12)
        waiting = asyncio.create_task(queue.wait_for(job.id, 30))
        await asyncio.sleep(0.15)
        claim = await queue.claim()
        await queue.fail(claim[0], error="no")
        assert (await waiting).state == "dead"

    run(story)


def test_events_and_follow(monkeypatch):
    monkeypatch.setattr("tenure.api.aio._WAIT_SLICE_S", 0.05)

    async def story(store):
        assert not (await store.events(wait=0.12)).events
        seen = []

        async def read():
            async for event in store.follow():
                seen.append(event.type)
                if event.type == "done":
                    return

        reading = asyncio.create_task(read())
        queue = store.queue("emails")
        await queue.enqueue(b"hello")
        await asyncio.sleep(0.1)
        await queue.ack((await queue.claim())[0])
        await asyncio.wait_for(reading, 60)
        assert [kind for kind in seen if kind in ("enqueued", "claimed", "done")] == ["enqueued", "claimed", "done"]

    run(story)


# ── closing ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_close_ends_the_waiting_and_may_be_repeated():
    async def told():
        store = await aio.open("memory:")
        waiting = asyncio.create_task(store.queue("emails").claim(wait=3600))
        await asyncio.sleep(0.05)
        await store.close()
        await store.close()
        with contextlib.suppress(StoreClosed):
            assert not await asyncio.wait_for(waiting, 60)
        with pytest.raises(StoreClosed):
            await store.queue("emails").enqueue(b"late")
        with pytest.raises(StoreClosed):
            await store.queue("emails").claim()

    asyncio.run(told())


def test_an_error_of_opening_is_raised():
    async def told():
        with pytest.raises(OpenError):
            async with aio.open("memory:", durability="disk"):
                pass

    asyncio.run(told())


def test_the_callers_context_goes_along():
    seen = {}

    async def story(store):
        backend = store._sync._backend
        real = backend.counts

        def counts(name):
            seen.update(structlog.contextvars.get_contextvars())
            return real(name)

        backend.counts = counts
        with structlog.contextvars.bound_contextvars(request="r1"):
            await store.queue("emails").counts()

    run(story)
    assert seen == {"request": "r1"}
