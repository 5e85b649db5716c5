"""The path from a request to its reply, shared by all servers; each server supplies its own input and output.

    identify ─▶ find the operation ─▶ check scope and tenant ─▶ read the body ─▶ decode it ─▶ carry it out ─▶ encode

An `Exchange` is one request on that path. Its three coroutines differ between servers: how the caller is identified,
where the body comes from, and in which thread the operation runs. A server without an event loop blocks in them and
never suspends (`run_now`).

    Exchange
    ├─ InlineExchange             the whole request is in memory: answered at once, or handed to another exchange
    ├─ owner.connection           one thread for each connection
    ├─ server.asgi                an event loop, with threads for long verbs
    └─ server.capnp.interfaces    the same, for RPC calls

The scope is checked before the body is read, so that an unauthorized caller cannot make a server buffer a body.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping
from typing import Any, TypeVar

from tenure import telemetry
from tenure.errors import TenureError
from tenure.model.job import Job
from tenure.protocol import messages as m
from tenure.protocol.audit import log_administration
from tenure.protocol.calls import Operation
from tenure.protocol.dispatcher import REQUEST_ID, DecodedRequest, Dispatcher, Reply, RequestHead
from tenure.protocol.identity import Identity
from tenure.protocol.routes import ROUTES

T = TypeVar("T")

#: Bodies up to this size are decoded, and payloads up to this size encoded, in the event loop's thread.
SMALL_BYTES = 16 * 1024
#: Claims of up to this many jobs are encoded there, too.
_FEW_JOBS = 16

#: The operations whose heads are worth caching (`head_cache`); their paths name only a queue.
CACHED = frozenset({"enqueue", "claim", "settle"})


class Abandoned(Exception):
    """Raised by an exchange to end without a reply: the caller has disconnected, or was answered already."""


class NotInline(Abandoned):
    """Raised by an `InlineExchange`: this request needs a thread or a wait. Nothing was carried out."""


class Exchange:
    """One request, and what is learned about it on its way to the reply.

    Attributes already set are not computed again.
    """

    #: The caller.
    identity: Identity | None = None
    #: The whole body, decompressed.
    content: bytes | None = None
    operation: Operation | None = None
    #: The named segments of the path; None if the head was checked before.
    words: dict[str, str] | None = None
    head: RequestHead | None = None
    request: DecodedRequest | None = None
    #: The error code of the reply; None if there was no error.
    error: str | None = None
    #: Runs a function in a thread, for servers with an event loop: large bodies are decoded there, and large answers
    #: encoded. None: the request's own thread does it.
    in_thread: Callable[..., Awaitable[Any]] | None = None

    def __init__(self, method: str, path: str, query: dict[str, str], headers: Mapping[str, str]) -> None:
        """`headers` have lower-case names."""
        self.method = method
        self.path = path
        self.query = query
        self.headers = headers
        self.request_id: str | None = headers.get(REQUEST_ID)

    def find(self) -> tuple[Operation, dict[str, str]]:
        """Return the operation and the named segments of its path. Raises NotFound, WrongMethod."""
        return ROUTES.find(self.method, self.path)

    async def identify(self) -> Identity:
        """Return the caller, counting the request against its quota. Raises Unauthenticated, RateLimited."""
        raise NotImplementedError

    async def body(self) -> bytes:
        """Return the whole body, decompressed. Raises TooLarge, InvalidArgument, Abandoned."""
        raise NotImplementedError

    async def carry_out(self, request: DecodedRequest) -> object:
        """Run the operation, or wait for its answer. Raises what the operation raises, and Abandoned."""
        raise NotImplementedError


async def carried_out(dispatcher: Dispatcher, exchange: Exchange) -> object:
    """Carry a request out and return its answer, not encoded. Raises TenureError, Abandoned.

    Administrative operations are logged (`audit`).
    """
    outcome = "failed"
    try:
        identity = exchange.identity
        if identity is None:
            identity = exchange.identity = await exchange.identify()
        head = exchange.head
        if head is None:
            operation, words = exchange.find()
            exchange.operation, exchange.words = operation, words
            head = exchange.head = dispatcher.head(operation, words, exchange.headers, identity)
        body = exchange.content
        if body is None:
            body = b"" if head.operation.in_query else await exchange.body()
        if exchange.in_thread is None or len(body) <= SMALL_BYTES:
            request = dispatcher.request(head, exchange.query, exchange.request_id, body)
        else:
            request = await exchange.in_thread(dispatcher.request, head, exchange.query, exchange.request_id, body)
        exchange.request = request
        result = await exchange.carry_out(request)
        outcome = "ok"
        return result
    except TenureError as exc:
        outcome = exc.code
        raise
    finally:
        if exchange.operation is not None and exchange.operation.audited and not dispatcher.local:
            log_administration(exchange, outcome)


async def answer(dispatcher: Dispatcher, exchange: Exchange) -> Reply:
    """Return the reply to a request; an error becomes an encoded problem. Raises Abandoned."""
    try:
        result = await carried_out(dispatcher, exchange)
        request = exchange.request
        assert request is not None
        if exchange.in_thread is None or quick_to_encode(request, result):
            return dispatcher.reply(request, result)
        reply: Reply = await exchange.in_thread(dispatcher.reply, request, result)
        return reply
    except Abandoned:
        raise
    except TenureError as exc:
        exchange.error = exc.code
        return dispatcher.refusal(dispatcher.for_callers(exc), exchange.headers)
    except Exception as exc:  # noqa: BLE001 - the caller gets an error without details, the log gets all of them
        failure = internal_error(exc, exchange)
        exchange.error = failure.code
        return dispatcher.refusal(failure, exchange.headers)


def quick_to_encode(request: DecodedRequest, result: object) -> bool:
    """Whether encoding the reply takes less than switching threads."""
    if not request.operation.small:
        return False
    if isinstance(result, m.ClaimReply):
        return len(result.jobs) <= _FEW_JOBS and all(len(job.payload) <= SMALL_BYTES for job in result.jobs)
    return not isinstance(result, Job) or len(result.payload) + len(result.result or b"") <= SMALL_BYTES


def internal_error(exc: Exception, exchange: Exchange) -> TenureError:
    """Log an unexpected error and return the error for the caller."""
    route = None if exchange.operation is None else exchange.operation.name
    telemetry.warn("request_failed", exc, route=route, request_id=exchange.request_id)
    return TenureError(f"the server failed: {type(exc).__name__}")


def run_now(path: Coroutine[object, object, T]) -> T:
    """Run, in this thread, the path of an exchange that blocks instead of suspending."""
    try:
        path.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    path.close()
    raise RuntimeError("this exchange must not suspend")


class InlineExchange(Exchange):
    """A request that is completely in memory, answered by the thread that read it: small verbs that do not wait.

    For servers whose backend waits for nothing (`Backend.waits_on`): switching threads takes longer than the verb.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        method: str,
        path: str,
        headers: Mapping[str, str],
        content: bytes,
        *,
        identity: Identity | None = None,
        identify: Callable[[Mapping[str, str]], Identity | None] | None = None,
    ) -> None:
        """Takes the caller's `identity`, or `identify`, which returns None if identification needs a thread."""
        super().__init__(method, path, {}, headers)
        self._dispatcher = dispatcher
        self._identify = identify
        self.identity = identity
        self.content = content
        self._path: Coroutine[None, object, Reply]

    def use_head(self, head: RequestHead, request_id: str) -> None:
        """Use a head that was checked before (`head_cache`): skips the lookup of route and scope."""
        self.operation, self.head, self.request_id = head.operation, head, request_id

    def find(self) -> tuple[Operation, dict[str, str]]:
        operation, words = super().find()
        if not operation.small:
            raise NotInline
        return operation, words

    async def identify(self) -> Identity:
        identity = None if self._identify is None else self._identify(self.headers)
        if identity is None or (self.head is not None and identity != self.head.identity):
            raise NotInline
        return identity

    async def carry_out(self, request: DecodedRequest) -> object:
        if request.waiting is not None:
            raise NotInline
        return await _Suspended()

    def cacheable_head(self, reply: Reply) -> RequestHead | None:
        """Return the head with its queue, for `head_cache`; None if it was refused, or is not worth caching."""
        head, request = self.head, self.request
        if head is None or request is None or reply.status != 200 or head.operation.name not in CACHED:
            return None
        return head._replace(queue=request.call.name)

    def answer(self) -> Reply | None:
        """Return the reply, or None if it needs a thread or a wait; then nothing was carried out."""
        try:
            reply = self.begin()
            if reply is not None:
                return reply
            assert self.request is not None
            try:
                result = self._dispatcher.run(self.request)
            except Exception as exc:  # noqa: BLE001 - `failed` logs it and makes the reply
                result = exc
            return self.finish(result)
        except NotInline:
            return None

    def begin(self) -> Reply | None:
        """Run the path up to the operation, which the caller carries out: sets `request`; `finish` continues.

        Returns the reply if the path ends before that. Raises NotInline.
        """
        self._path = answer(self._dispatcher, self)
        try:
            self._path.send(None)
        except StopIteration as done:
            reply: Reply = done.value
            return reply
        return None

    def finish(self, result: object) -> Reply:
        """Return the reply to a begun request; `result` is the operation's answer, or the exception that it raised."""
        try:
            if isinstance(result, Exception):
                self._path.throw(result)
            else:
                self._path.send(result)
        except StopIteration as done:
            reply: Reply = done.value
            return reply
        raise RuntimeError("an exchange is carried out once")


class _Suspended:
    """The point where an `InlineExchange` suspends; `finish` resumes it with the result."""

    def __await__(self) -> Generator[None, object, object]:
        return (yield)
