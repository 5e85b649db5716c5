"""The same verbs for asyncio: each runs in a worker thread and is awaited.

    async with tenure.aio.open("rocksdb:./data") as store:
        queue = store.queue("emails")
        await queue.enqueue(b"...")
        async with queue.claim(limit=10, wait=5) as claim:     # or: claim = await queue.claim(...)
            for delivery in claim:
                await queue.ack(delivery)
        async for event in store.follow():
            ...

This module is an adapter around the synchronous API and has no state of its own. Each verb is one line (`_awaited`),
with the parameters and the result of the synchronous verb.

Verbs that wait (`claim`, `wait_for`, `events`) have a thread pool of their own, so that waiting verbs never delay an
`ack`. A cancelled claim leaves nothing leased: it stops waiting, and jobs it claimed meanwhile are released before the
cancellation continues. Any other cancelled verb may still take effect.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Generator, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, NoReturn, ParamSpec, Protocol, Self, TypeVar

import msgspec

from tenure.api import opening
from tenure.api.claim import Claim
from tenure.api.queue import Queue, claim_from, claim_request
from tenure.api.staged_write import Staged
from tenure.api.store import Store, claim_anywhere
from tenure.contract.backend import Backend
from tenure.errors import InvalidArgument, StoreClosed, WaitTimeout
from tenure.model.durations import Duration, duration_ms
from tenure.model.event import Event, EventPage
from tenure.model.job import Job
from tenure.model.lease import ClaimRequest, any_queues
from tenure.model.names import DEFAULT_TENANT, QueueName
from tenure.storage.engine import Traits

if TYPE_CHECKING:
    from tenure.bulk.table_access import Tables

T = TypeVar("T")
P = ParamSpec("P")

#: Seconds. A wait that cannot be interrupted is split into pieces of this length, so that a cancelled one soon frees
#: its thread.
_WAIT_SLICE_S = 1.0


class _Threads:
    """The worker threads of one store: one pool for verbs that return at once, one for verbs that wait."""

    def __init__(self, threads: int, waiters: int) -> None:
        self._quick = ThreadPoolExecutor(threads, "tenure-aio")
        self._slow = ThreadPoolExecutor(waiters, "tenure-aio-wait")
        self._waiting: weakref.WeakSet[threading.Event] = weakref.WeakSet()
        self._closed = False

    async def run(self, work: Callable[[], T], *, waits: bool = False) -> T:
        return await asyncio.wrap_future(self._submit(work, waits))

    async def run_to_end(self, work: Callable[[], T]) -> T:
        """Run `work` to its end, even if the caller is cancelled."""
        return await asyncio.shield(asyncio.wrap_future(self._submit(work, False)))

    async def run_recoverable(
        self, work: Callable[[threading.Event], T], recover: Callable[[T], object], *, waits: bool = False
    ) -> T:
        """Run `work`; if the caller is cancelled, pass the result to `recover`.

        The event given to `work` is set once the caller is cancelled.
        """
        cancel = threading.Event()
        self._waiting.add(cancel)
        future = self._submit(lambda: work(cancel), waits)
        try:
            return await asyncio.shield(asyncio.wrap_future(future))
        except asyncio.CancelledError:
            cancel.set()
            if not future.cancel():
                await asyncio.shield(asyncio.wrap_future(self._recover_result(future, recover)))
            raise

    def _recover_result(self, future: Future[T], recover: Callable[[T], object]) -> Future[None]:
        """Call `recover` with the result in a thread, because the event loop may be closing.

        The future is done afterwards.
        """
        recovered: Future[None] = Future()

        def run_recover(result: T) -> None:
            try:
                recover(result)
            finally:
                recovered.set_result(None)

        def finished(done: Future[T]) -> None:
            if done.exception() is not None:
                recovered.set_result(None)
                return
            try:
                self._quick.submit(run_recover, done.result())
            except RuntimeError:  # the pool was closed meanwhile
                run_recover(done.result())

        future.add_done_callback(finished)
        return recovered

    def _submit(self, work: Callable[[], T], waits: bool) -> Future[T]:
        if self._closed:
            raise StoreClosed("this store was closed")
        context = contextvars.copy_context()  # log lines then carry the context variables that the caller bound
        return (self._slow if waits else self._quick).submit(context.run, work)

    async def close(self, last: Callable[[], None]) -> None:
        """End all waiting, run `last`, and shut the threads down."""
        if self._closed:
            return
        for cancel in list(self._waiting):
            cancel.set()
        final = self._submit(last, False)
        self._closed = True
        self._slow.shutdown(wait=False)
        self._quick.shutdown(wait=False)
        await asyncio.shield(asyncio.wrap_future(final))


def _awaited(verb: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """Return a coroutine function that runs the verb in a worker thread."""

    @functools.wraps(verb)
    async def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        threads: _Threads = self._threads
        return await threads.run(functools.partial(verb, self._sync, *args, **kwargs))

    return call


class _Closeable(Protocol):
    async def __aenter__(self) -> Any: ...
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


C = TypeVar("C", bound=_Closeable)


class _Call(Coroutine[Any, Any, C], Generic[C]):
    """A coroutine to await for its result, or to enter with `async with` if the result is a context manager."""

    def __init__(self, coroutine: Coroutine[Any, Any, C]) -> None:
        self._coroutine = coroutine
        self._result: C | None = None

    def __await__(self) -> Generator[Any, Any, C]:
        return self._coroutine.__await__()

    def send(self, value: Any) -> Any:
        return self._coroutine.send(value)

    def throw(self, *error: Any) -> Any:
        return self._coroutine.throw(*error)

    def close(self) -> None:
        self._coroutine.close()

    async def __aenter__(self) -> C:
        self._result = await self._coroutine
        await self._result.__aenter__()
        return self._result

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._result is not None
        await self._result.__aexit__(kind, error, trace)


class AsyncClaim(Claim):
    """A claim whose `async with` releases the jobs that were not settled."""

    __slots__ = ("_threads",)

    def __init__(self, claim: Claim, threads: _Threads) -> None:
        if hasattr(claim, "queue"):
            super().__init__(claim.queue, claim._leased)
        else:
            self._leased = None
        self._threads = threads

    def __enter__(self) -> NoReturn:
        raise TypeError("a claim of an asyncio queue is entered by 'async with'")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._leased is not None:
            await self._threads.run_to_end(functools.partial(_release, self))


class AsyncQueue:
    """A handle on one queue: the verbs of `tenure.Queue`, awaited."""

    def __init__(self, queue: Queue, threads: _Threads) -> None:
        self._sync = queue
        self._threads = threads

    @property
    def name(self) -> QueueName:
        return self._sync.name

    @property
    def tenant(self) -> str:
        return self._sync.tenant

    def __repr__(self) -> str:
        return f"<AsyncQueue {self.name}>"

    def claim(
        self,
        limit: int = 1,
        lease: Duration | None = None,
        wait: Duration = 0,
        worker: str = "",
        *,
        max_bytes: int | None = None,
        id: str | None = None,
    ) -> _Call[AsyncClaim]:
        """As `Queue.claim`. Await it, or enter it with `async with`."""
        request = claim_request(limit, lease, wait, worker, max_bytes, id)
        claim = functools.partial(claim_from, [self._sync])
        return _Call(_claimed(self._threads, self._sync._backend, request, claim))

    async def wait_for(self, job_id: str, timeout: Duration = 10) -> Job | None:
        """As `Queue.wait_for`."""
        left = duration_ms("timeout", timeout) / 1000
        total = left
        while True:
            piece = min(left, _WAIT_SLICE_S)
            try:
                return await self._threads.run(functools.partial(self._sync.wait_for, job_id, piece), waits=True)
            except WaitTimeout:
                left -= piece
                if left <= 0:
                    raise WaitTimeout(job_id, total) from None

    enqueue = _awaited(Queue.enqueue)
    enqueue_many = _awaited(Queue.enqueue_many)
    ack = _awaited(Queue.ack)
    nack = _awaited(Queue.nack)
    fail = _awaited(Queue.fail)
    release = _awaited(Queue.release)
    snooze = _awaited(Queue.snooze)
    ack_many = _awaited(Queue.ack_many)
    release_many = _awaited(Queue.release_many)
    settle_many = _awaited(Queue.settle_many)
    extend = _awaited(Queue.extend)
    progress = _awaited(Queue.progress)
    record_step = _awaited(Queue.record_step)
    steps = _awaited(Queue.steps)
    signal = _awaited(Queue.signal)
    get = _awaited(Queue.get)
    list = _awaited(Queue.list)
    counts = _awaited(Queue.counts)
    groups = _awaited(Queue.groups)
    find = _awaited(Queue.find)
    timeline = _awaited(Queue.timeline)
    parents = _awaited(Queue.parents)
    children = _awaited(Queue.children)
    explain = _awaited(Queue.explain)
    replay = _awaited(Queue.replay)
    restore = _awaited(Queue.restore)
    discard = _awaited(Queue.discard)
    cancel = _awaited(Queue.cancel)
    purge = _awaited(Queue.purge)
    pause = _awaited(Queue.pause)
    resume = _awaited(Queue.resume)
    configure = _awaited(Queue.configure)
    policy = _awaited(Queue.policy)


class AsyncStore:
    """An open store: the verbs of `tenure.Store`, awaited. Not bound to an event loop; `async with` closes it.

    Up to `threads` verbs run at once, and up to `waiters` more that wait; further calls queue up.
    """

    def __init__(self, store: Store, *, threads: int = 16, waiters: int = 64) -> None:
        self._sync = store
        self._threads = _Threads(threads, waiters)
        self._turn = 0

    @property
    def url(self) -> str:
        return self._sync.url

    @property
    def traits(self) -> Traits:
        return self._sync.traits

    @property
    def durability(self) -> str:
        return self._sync.durability

    def __repr__(self) -> str:
        return f"<AsyncStore {self.url} ({self.durability})>"

    def queue(self, queue: str, tenant: str = DEFAULT_TENANT) -> AsyncQueue:
        """Return a handle on a queue. Not a coroutine, because it reads nothing."""
        return AsyncQueue(self._sync.queue(queue, tenant), self._threads)

    def staged(self, write_id: str, keep: Duration | None = None) -> Staged:
        """Return a write in several transactions that is published once. Its verbs block: call them in a thread."""
        return self._sync.staged(write_id, keep)

    def tables(self, *, snapshot: str | None = None) -> AbstractContextManager[Tables]:
        """Open a snapshot of the store as tables. Reading a table blocks and is CPU-bound: call it in a thread."""
        return self._sync.tables(snapshot=snapshot)

    def claim(
        self,
        queues: Iterable[AsyncQueue | str],
        limit: int = 1,
        lease: Duration | None = None,
        wait: Duration = 0,
        worker: str = "",
        *,
        max_bytes: int | None = None,
    ) -> _Call[AsyncClaim]:
        """As `Store.claim`: from the first of several queues that has jobs, taking turns."""
        handles = [queue._sync if isinstance(queue, AsyncQueue) else self._sync.queue(queue) for queue in queues]
        if not handles:
            raise InvalidArgument("claim from at least one queue")
        self._turn = (self._turn + 1) % len(handles)
        handles = handles[self._turn :] + handles[: self._turn]
        request = claim_request(limit, lease, wait, worker, max_bytes, None)
        return _Call(_claimed(self._threads, self._sync.backend, request, functools.partial(claim_from, handles)))

    def claim_any(
        self,
        limit: int = 1,
        lease: Duration | None = None,
        wait: Duration = 0,
        worker: str = "",
        *,
        tenants: Collection[str] | None = None,
        queues: Collection[str] | None = None,
        weights: Mapping[str, float] | None = None,
        excluding: Collection[str] = (),
        max_bytes: int | None = None,
        id: str | None = None,
    ) -> _Call[AsyncClaim]:
        """As `Store.claim_any`."""
        request = claim_request(limit, lease, wait, worker, max_bytes, id)
        claim = functools.partial(claim_anywhere, self._sync)
        among = any_queues(tenants, queues, weights, excluding)
        return _Call(_claimed(self._threads, self._sync.backend, request, lambda r, cancel: claim(r, among, cancel)))

    async def events(
        self, after: str | None = None, limit: int = 1000, wait: Duration = 0, consumer: str | None = None
    ) -> EventPage:
        """As `Store.events`."""
        left = duration_ms("wait", wait) / 1000
        while True:
            piece = min(left, _WAIT_SLICE_S)
            look = functools.partial(self._sync.events, after, limit, piece, consumer)
            page = await self._threads.run(look, waits=piece > 0)
            left -= piece
            if page.events or left <= 0:
                return page

    async def follow(
        self, after: str | None = None, limit: int = 1000, consumer: str | None = None
    ) -> AsyncIterator[Event]:
        """Iterate over every durable event after a cursor, and over later ones as they are written, without end."""
        while True:
            page = await self.events(after, limit, _WAIT_SLICE_S, consumer)
            for event in page.events:
                yield event
            after = page.cursor

    queues = _awaited(Store.queues)
    set_quota = _awaited(Store.set_quota)
    quotas = _awaited(Store.quotas)
    schedules = _awaited(Store.schedules)
    add_schedule = _awaited(Store.add_schedule)
    pause_schedule = _awaited(Store.pause_schedule)
    resume_schedule = _awaited(Store.resume_schedule)
    remove_schedule = _awaited(Store.remove_schedule)
    run_schedule = _awaited(Store.run_schedule)
    apply = _awaited(Store.apply)
    replace_queues = _awaited(Store.replace_queues)
    delete_queue = _awaited(Store.delete_queue)
    get = _awaited(Store.get)
    list = _awaited(Store.list)
    upcoming = _awaited(Store.upcoming)
    sweep = _awaited(Store.sweep)
    cleanup = _awaited(Store.cleanup)
    forget_consumer = _awaited(Store.forget_consumer)
    check = _awaited(Store.check)
    snapshot = _awaited(Store.snapshot)
    take_snapshot = _awaited(Store.take_snapshot)
    renew_snapshot = _awaited(Store.renew_snapshot)
    drop_snapshot = _awaited(Store.drop_snapshot)
    snapshots = _awaited(Store.snapshots)

    async def close(self) -> None:
        """End all waiting claims and close the store. Closing twice is fine."""
        await self._threads.close(self._sync.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def _opening(verb: Callable[P, Store]) -> Callable[P, _Call[AsyncStore]]:
    def call(*args: P.args, **kwargs: P.kwargs) -> _Call[AsyncStore]:
        """As `tenure.open`. Await it, or enter it with `async with`."""
        return _Call(_opened(functools.partial(verb, *args, **kwargs)))

    return call


open = _opening(opening.open)


async def _opened(work: Callable[[], Store]) -> AsyncStore:
    threads = _Threads(1, 1)
    store = await threads.run_recoverable(lambda cancel: work(), Store.close)
    await threads.close(lambda: None)
    return AsyncStore(store)


async def _claimed(
    threads: _Threads,
    backend: Backend,
    request: ClaimRequest,
    claim_now: Callable[[ClaimRequest, threading.Event], Claim],
) -> AsyncClaim:
    asked_ms = backend.now_ms()

    def work(cancel: threading.Event) -> Claim:
        # Time spent in the queue for a thread counts as waiting.
        left_ms = max(0, request.wait_ms - (backend.now_ms() - asked_ms))
        timely = msgspec.structs.replace(request, wait_ms=left_ms) if request.wait_ms else request
        return claim_now(timely, cancel)

    claim = await threads.run_recoverable(work, _release, waits=request.wait_ms > 0)
    return AsyncClaim(claim, threads)


def _release(claim: Claim) -> None:
    """Release the claim's unsettled jobs, as leaving its context does."""
    Claim.__exit__(claim, None, None, None)
