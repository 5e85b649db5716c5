"""The one path from a request to its reply. Every server takes it; each brings only its own input and output.

    identify ─▶ find the operation ─▶ check scope and tenant ─▶ read the body ─▶ decode it ─▶ carry it out ─▶ encode

An `Exchange` is one request on that path. Its three coroutines are what differs between servers: who is the caller,
where the body comes from, and in which thread the operation runs. A server without an event loop blocks in them
and never suspends (`run_now`).

    Exchange
    ├─ InlineExchange             the whole request is at hand: answered at once, or not here
    ├─ owner.listener             a thread a connection
    ├─ server.asgi                an event loop, with threads for verbs that take long
    └─ server.capnp.interfaces    the same, for calls of the RPC

The scope is checked before the body is read: a caller without it cannot make a server hold one.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import TypeVar

from tenure import telemetry
from tenure.errors import TenureError
from tenure.protocol.audit import administrative, log_act
from tenure.protocol.calls import Operation
from tenure.protocol.dispatcher import REQUEST_ID, DecodedRequest, Dispatcher, Reply, RequestHead
from tenure.protocol.identity import Identity
from tenure.protocol.operations import OPERATIONS
from tenure.protocol.routes import ROUTES

T = TypeVar("T")

#: The operations whose requests go to the audit log.
_AUDITED = frozenset(name for name, operation in OPERATIONS.items() if administrative(operation))

#: The operations whose heads are worth caching (`head_cache`), and whose paths name nothing but a queue.
CACHED = frozenset({"enqueue", "claim", "settle"})


class Abandoned(Exception):
    """Raised by an exchange to leave the path without a reply: the caller is gone, or it was answered already."""


class NotInline(Abandoned):
    """Raised by an `InlineExchange`: this request takes a thread or a wait. Nothing was carried out."""


class Exchange:
    """One request, and what becomes known of it on its way to the reply."""

    __slots__ = (
        "error",
        "head",
        "headers",
        "identity",
        "method",
        "operation",
        "path",
        "query",
        "request",
        "request_id",
        "words",
    )

    def __init__(self, method: str, path: str, query: dict[str, str], headers: Mapping[str, str]) -> None:
        """`headers` by their names in lower case."""
        self.method = method
        self.path = path
        self.query = query
        self.headers = headers
        self.request_id: str | None = headers.get(REQUEST_ID)
        self.identity: Identity | None = None
        self.operation: Operation | None = None
        #: What the path names, by the operation's words for it; None: the head was checked before.
        self.words: dict[str, str] | None = None
        self.head: RequestHead | None = None
        self.request: DecodedRequest | None = None
        #: The code of the error that was replied; None: there was none.
        self.error: str | None = None

    def find(self) -> tuple[Operation, dict[str, str]]:
        """The operation, and what its path names. Raises NotFound, WrongMethod."""
        return ROUTES.find(self.method, self.path)

    async def identify(self) -> Identity:
        """The caller, whose request counts against its quota. Raises Unauthenticated, RateLimited."""
        raise NotImplementedError

    async def body(self) -> bytes | bytearray:
        """The whole body, decompressed. Raises TooLarge, InvalidArgument, Abandoned."""
        raise NotImplementedError

    async def decode(self, dispatcher: Dispatcher, head: RequestHead, body: bytes | bytearray) -> DecodedRequest:
        """The request, decoded. A server with an event loop does it in a thread where the body is large."""
        return dispatcher.request(head, self.query, self.request_id, body)

    async def carry_out(self, request: DecodedRequest) -> object:
        """Run the operation, or wait for its answer. Raises what the operation raises, Abandoned."""
        raise NotImplementedError

    async def encode(self, dispatcher: Dispatcher, request: DecodedRequest, result: object) -> Reply:
        """The reply, encoded. A server with an event loop does it in a thread where it may be large."""
        return dispatcher.reply(request, result)


async def carried_out(dispatcher: Dispatcher, exchange: Exchange) -> object:
    """The answer to a request, not encoded. Raises TenureError, Abandoned. Acts of administration are logged (`audit`)."""
    outcome = "failed"
    try:
        result = await _carried_out(dispatcher, exchange)
        outcome = "ok"
        return result
    except TenureError as exc:
        outcome = exc.code
        raise
    finally:
        if exchange.operation is not None and exchange.operation.name in _AUDITED:
            log_act(exchange, outcome)


async def _carried_out(dispatcher: Dispatcher, exchange: Exchange) -> object:
    identity = exchange.identity = await exchange.identify()
    head = exchange.head
    if head is None:
        operation, words = exchange.find()
        exchange.operation, exchange.words = operation, words
        head = exchange.head = dispatcher.head(operation, words, exchange.headers, identity)
    body = b"" if head.operation.in_query else await exchange.body()
    request = exchange.request = await exchange.decode(dispatcher, head, body)
    return await exchange.carry_out(request)


async def answer(dispatcher: Dispatcher, exchange: Exchange) -> Reply:
    """The reply to a request, which is an encoded problem if it was refused or failed. Raises Abandoned."""
    try:
        result = await carried_out(dispatcher, exchange)
        assert exchange.request is not None
        return await exchange.encode(dispatcher, exchange.request, result)
    except Abandoned:
        raise
    except TenureError as exc:
        exchange.error = exc.code
        return dispatcher.refusal(dispatcher.for_callers(exc), exchange.headers)
    except Exception as exc:  # noqa: BLE001 - the caller gets an error that names no detail, the log gets all of it
        failure = failed(exc, exchange)
        exchange.error = failure.code
        return dispatcher.refusal(failure, exchange.headers)


def failed(exc: Exception, exchange: Exchange) -> TenureError:
    """Log an error that is a bug of ours; returns what the caller is told."""
    route = None if exchange.operation is None else exchange.operation.name
    telemetry.warn("request_failed", exc, route=route, request_id=exchange.request_id)
    return TenureError(f"the server failed: {type(exc).__name__}")


def run_now(path: Coroutine[object, object, T]) -> T:
    """Run the path of an exchange that blocks instead of suspending, in this thread."""
    try:
        path.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    path.close()
    raise RuntimeError("this exchange must not suspend")


class InlineExchange(Exchange):
    """A request that is at hand whole, answered by the thread that read it: small verbs, which do not wait.

    For servers whose backend waits for nothing (`Backend.waits_on`): a change of threads takes longer than the verb.
    """

    __slots__ = ("_body", "_dispatcher", "_identify")

    def __init__(
        self,
        dispatcher: Dispatcher,
        identify: Callable[[Mapping[str, str]], Identity | None],
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes,
    ) -> None:
        """`identify` returns None where it takes longer than a look into memory."""
        super().__init__(method, path, {}, headers)
        self._dispatcher = dispatcher
        self._identify = identify
        self._body = body

    @classmethod
    def with_head(
        cls,
        dispatcher: Dispatcher,
        identify: Callable[[Mapping[str, str]], Identity | None],
        head: RequestHead,
        headers: Mapping[str, str],
        request_id: str,
        body: bytes,
    ) -> InlineExchange:
        """A request whose head was checked before (`head_cache`)."""
        made = cls(dispatcher, identify, head.operation.method, "", headers, body)
        made.operation, made.head, made.request_id = head.operation, head, request_id
        return made

    def find(self) -> tuple[Operation, dict[str, str]]:
        operation, words = super().find()
        if not operation.small:
            raise NotInline
        return operation, words

    async def identify(self) -> Identity:
        identity = self._identify(self.headers)
        if identity is None or (self.head is not None and identity != self.head.identity):
            raise NotInline
        return identity

    async def body(self) -> bytes:
        return self._body

    async def carry_out(self, request: DecodedRequest) -> object:
        if request.waiting is not None:
            raise NotInline
        return self._dispatcher.run(request)

    def cacheable_head(self, reply: Reply) -> RequestHead | None:
        """The head with its queue, for `head_cache`; None unless the request was answered and heads like it are cached."""
        head, request = self.head, self.request
        if head is None or request is None or reply.status != 200 or head.operation.name not in CACHED:
            return None
        return head._replace(queue=request.call.name)

    def answer(self) -> Reply | None:
        """None: it takes a thread or a wait; nothing was carried out."""
        try:
            return run_now(answer(self._dispatcher, self))
        except NotInline:
            return None
