"""Single requests that wait on several sockets at `disk`: one sync serves them, and each is answered as if it were alone."""

from __future__ import annotations

import base64
import json
import random
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

import tenure
from tenure.backends.owner.listener import Listener
from tenure.errors import Unavailable
from tenure.model.retry import Policy
from tenure.protocol.dispatcher import Dispatcher


def b64(payload: str) -> str:
    return base64.b64encode(payload.encode()).decode()


class Owner:
    """A store at `disk` with a listener, whose syncs a test can hold up."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        store = stack.enter_context(tenure.open(f"rocksdb:{folder}/data", sweep=False, listen=False, durability="disk"))
        self.store = store
        self.syncer: Any = store._backend._engine.group_commit  # type: ignore[attr-defined]  # counts syncs
        self._sync = self.syncer._sync
        self.syncer._sync = self._sync_when_let
        #: Set: syncs go on. A sync that is held up says so.
        self.let = threading.Event()
        self.held_up = threading.Event()
        self.error: Exception | None = None
        self.let.set()
        self._path = str(folder / "socket")
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listening.bind(self._path)
        listening.listen(100)
        stack.callback(Listener(listening, Dispatcher(store.backend, local=True)).stop)
        stack.callback(self.let.set)
        self._stack = stack

    def _sync_when_let(self) -> None:
        if not self.let.is_set():
            self.held_up.set()
            assert self.let.wait(20)
        if self.error is not None:
            raise self.error
        self._sync()

    def connect(self) -> Caller:
        sock = self._stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        sock.settimeout(20)
        sock.connect(self._path)
        caller = Caller(sock)
        caller.ask("GET", "/v1/store")  # the event loop has it now
        assert caller.reply()[0] == 200
        return caller

    def hold_up(self, caller: Caller) -> None:
        """Returns once the loop stands in a sync, for a job of this caller: what is sent from now on waits on its socket."""
        self.held_up.clear()
        self.let.clear()
        caller.enqueue("first")
        assert self.held_up.wait(20)


class Caller:
    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._left = b""

    def ask(self, method: str, path: str, body: object = None, request: str | None = None) -> None:
        data = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        if request is not None:
            head += f"Tenure-Request: {request}\r\n"
        self.sock.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)

    def enqueue(self, payload: str, queue: str = "work", **more: object) -> None:
        self.ask("POST", f"/v1/queues/{queue}/jobs", {"payload": b64(payload), **more})

    def reply(self) -> tuple[int, Any]:
        while b"\r\n\r\n" not in self._left:
            self._read()
        head, _, self._left = self._left.partition(b"\r\n\r\n")
        size = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
        while len(self._left) < size:
            self._read()
        body, self._left = self._left[:size], self._left[size:]
        return int(head[9:12]), json.loads(body)

    def _read(self) -> None:
        got = self.sock.recv(65536)
        assert got, "the connection was closed"
        self._left += got


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[Owner]:
    with ExitStack() as stack:
        yield Owner(tmp_path, stack)


def _statuses(callers: list[Caller]) -> list[int]:
    return [caller.reply()[0] for caller in callers]


def test_requests_that_wait_on_their_sockets_share_one_sync(owner: Owner):
    first, callers = owner.connect(), [owner.connect() for _ in range(12)]
    owner.hold_up(first)
    before = owner.syncer.syncs
    for number, caller in enumerate(callers):
        caller.enqueue(f"{number}")
    owner.let.set()
    assert _statuses([first, *callers]) == [200] * 13
    assert not [thread for thread in threading.enumerate() if thread.name == "tenure-connection"]
    assert owner.syncer.syncs - before == 2  # the one that was under way, and one for the twelve
    assert owner.store.queue("work").counts().waiting == 13


def test_one_that_is_refused_fails_nobody_else(owner: Owner):
    owner.store.queue("full").configure(Policy(max_waiting=1))
    first, callers = owner.connect(), [owner.connect() for _ in range(6)]
    owner.hold_up(first)
    callers[0].enqueue("good")
    callers[1].enqueue("none", queue="no/such queue")
    callers[2].enqueue("good", queue="full")
    callers[3].enqueue("one too many", queue="full")
    callers[4].ask("POST", "/v1/queues/work/jobs", {"payload": 7})
    callers[5].enqueue("good")
    owner.let.set()
    assert first.reply()[0] == 200
    assert _statuses(callers) == [200, 400, 200, 429, 400, 200]
    assert owner.store.queue("work").counts().waiting == 3


def test_nobody_is_told_that_a_commit_is_durable_which_is_not(owner: Owner):
    first, callers = owner.connect(), [owner.connect() for _ in range(3)]
    owner.hold_up(first)
    for caller in callers:
        caller.enqueue("x")
    owner.error = Unavailable("the disk does not take it")
    owner.let.set()
    assert _statuses([first, *callers]) == [503] * 4


def test_requests_of_one_connection_are_answered_in_their_order(owner: Owner):
    first, caller = owner.connect(), owner.connect()
    owner.hold_up(first)
    for number in range(20):  # at once, without waiting for a reply
        caller.enqueue(f"{number % 10}", key=f"{number % 10}")
    owner.let.set()
    replies = [caller.reply() for _ in range(20)]
    assert [status for status, _ in replies] == [200] * 20
    assert [reply["duplicate"] for _, reply in replies] == [False] * 10 + [True] * 10
    assert [reply["id"] for _, reply in replies[:10]] == [reply["id"] for _, reply in replies[10:]]


def test_a_look_that_commits_nothing_waits_for_no_sync(owner: Owner):
    """It is answered in the same pass, before the sync that others wait for."""
    first, writer, reader = owner.connect(), owner.connect(), owner.connect()
    owner.hold_up(first)
    writer.enqueue("x")
    reader.ask("GET", "/v1/queues/work/counts")
    owner.held_up.clear()
    owner.error = None
    owner.let.set()
    assert reader.reply()[0] == 200
    assert _statuses([first, writer]) == [200, 200]


def test_a_caller_that_left_keeps_nobody_from_being_answered(owner: Owner):
    first, leaving, staying = owner.connect(), owner.connect(), owner.connect()
    owner.hold_up(first)
    leaving.enqueue("x")
    staying.enqueue("y")
    leaving.sock.close()
    owner.let.set()
    assert _statuses([first, staying]) == [200, 200]


@pytest.mark.parametrize("seed", range(6))
def test_the_answers_are_those_of_requests_that_come_alone(seed: int, tmp_path: Path):
    """The same requests, each waited for, and all at once on sockets of their own: the same answers, in any order of work."""
    rng = random.Random(seed)
    requests: list[dict[str, Any]] = []
    for number in range(16):
        kind = rng.choice(["plain", "plain", "keyed", "same key", "full", "bad"])
        body: dict[str, Any] = {"payload": b64(f"{number}")}
        if kind == "keyed":
            body["key"] = f"{number}"
        elif kind == "same key":
            body |= {"payload": b64("same"), "key": "same"}
        elif kind == "bad":
            body["priority"] = 99
        requests.append({"queue": "full" if kind == "full" else "work", "body": body})

    def summary(together: bool) -> tuple[list[Any], Any, Any]:
        with ExitStack() as stack:
            owner = Owner(tmp_path / str(together), stack)
            owner.store.queue("full").configure(Policy(max_waiting=2))
            first, callers = owner.connect(), [owner.connect() for _ in requests]
            if together:
                owner.hold_up(first)
            else:
                first.enqueue("first")
            replies = []
            for caller, request in zip(callers, requests, strict=True):
                caller.ask("POST", f"/v1/queues/{request['queue']}/jobs", request["body"])
                if not together:
                    replies.append(caller.reply())
            owner.let.set()
            if together:
                replies = [caller.reply() for caller in callers]
            assert first.reply()[0] == 200
            told = [(status, reply.get("type"), reply.get("duplicate")) for status, reply in replies]
            leases = [owner.store.queue(name).claim(limit=100).deliveries for name in ("work", "full")]
            assert owner.store.check().ok
            # Which of the jobs with one key is the first, and which two find room, is not said.
            return (
                sorted(told, key=repr),
                [sorted(job.payload for job in jobs) for jobs in leases[:1]],
                [len(jobs) for jobs in leases],
            )

    assert summary(True) == summary(False)


def test_claims_that_wait_together_get_leases_of_their_own(owner: Owner):
    queue = owner.store.queue("work")
    first, callers = owner.connect(), [owner.connect() for _ in range(8)]
    owner.hold_up(first)
    for caller in callers:
        caller.ask("POST", "/v1/queues/work/jobs", {"payload": b64("job")})
    owner.let.set()
    assert _statuses([first, *callers]) == [200] * 9
    owner.hold_up(first)
    for number, caller in enumerate(callers):
        caller.ask("POST", "/v1/queues/work/claims", {"lease_ms": 60_000}, request=f"claim-{number}")
    owner.let.set()
    replies = [caller.reply()[1] for caller in callers]
    first.reply()
    assert len({reply["lease"] for reply in replies}) == 8
    assert len({job["id"] for reply in replies for job in reply["jobs"]}) == 8
    owner.hold_up(first)
    for caller, reply in zip(callers, replies, strict=True):
        receipts = [job["receipt"] for job in reply["jobs"]]
        caller.ask(
            "POST", "/v1/queues/work/settle", {"items": [{"verb": "ack", "receipt": receipt} for receipt in receipts]}
        )
    owner.let.set()
    settled = [caller.reply() for caller in callers]
    assert [status for status, _ in settled] == [200] * 8, settled
    assert queue.counts().leased == 0


# ── requests of our own clients, which have ids: one transaction ────────────────────────────────────────────────────────


def _commits(owner: Owner) -> int:
    return int(owner.syncer.applied_to)


def _ask_bytes(caller: Caller, payload: bytes, request: str, queue: str = "work") -> None:
    data = msgspec.msgpack.encode([payload])
    caller.sock.sendall(
        f"POST /v1/queues/{queue}/jobs HTTP/1.1\r\nHost: localhost\r\nAccept: application/json\r\n"
        f"Content-Type: application/msgpack\r\nTenure-Request: {request}\r\nContent-Length: {len(data)}\r\n\r\n".encode()
        + data
    )


def _warm(owner: Owner, callers: list[Caller], *queues: str) -> None:
    """Have the heads of such requests in the cache."""
    for queue in queues or ("work",):
        _ask_bytes(callers[0], b"warm", f"warm-{queue}", queue)
        assert callers[0].reply()[0] == 200


def test_single_plain_jobs_for_one_queue_are_one_transaction(owner: Owner):
    first, callers = owner.connect(), [owner.connect() for _ in range(5)]
    _warm(owner, callers)
    owner.hold_up(first)
    before = _commits(owner)
    for number, caller in enumerate(callers):
        _ask_bytes(caller, b"%d" % number, f"r{number}")
    owner.let.set()
    assert first.reply()[0] == 200
    replies = [caller.reply() for caller in callers]
    assert _commits(owner) - before == 1
    assert [status for status, _ in replies] == [200] * 5
    ids = [reply[0]["id"] for _, reply in replies]
    queue = owner.store.queue("work")
    jobs = [queue.get(id) for id in ids]
    assert [job and job.payload for job in jobs] == [b"0", b"1", b"2", b"3", b"4"]  # each caller has its own job
    for number, caller in enumerate(callers):  # each request is remembered by itself
        _ask_bytes(caller, b"%d" % number, f"r{number}")
        assert caller.reply() == (200, [{"id": ids[number], "duplicate": False}])
    assert queue.counts().waiting == 7
    assert owner.store.check().ok


@pytest.mark.parametrize("what", ["a repeat", "one id twice", "no room", "another payload under an id"])
def test_a_transaction_that_cannot_be_shared_is_one_for_each(owner: Owner, what: str):
    first, callers = owner.connect(), [owner.connect() for _ in range(4)]
    _warm(owner, callers, "work", "full")
    queue = "full" if what == "no room" else "work"
    owner.store.queue("full").configure(Policy(max_waiting=3))
    ids = ["warm-work" if what in ("a repeat", "another payload under an id") else "r0", "r1", "r2", "r3"]
    payloads = [b"warm" if what == "a repeat" else b"p0", b"p1", b"p2", b"p3"]
    if what == "one id twice":
        ids[3], payloads[3] = ids[2], payloads[2]
    owner.hold_up(first)
    for caller, id, payload in zip(callers, ids, payloads, strict=True):
        _ask_bytes(caller, payload, id, queue)
    owner.let.set()
    assert first.reply()[0] == 200
    replies = [caller.reply() for caller in callers]
    statuses = [status for status, _ in replies]
    if what == "no room":  # it has one already
        assert statuses == [200, 200, 429, 429]
    elif what == "another payload under an id":
        assert statuses == [400, 200, 200, 200]
    else:
        assert statuses == [200] * 4
    if what == "one id twice":
        assert replies[2] == replies[3]
    waiting = {"a repeat": 5, "one id twice": 5, "no room": 3, "another payload under an id": 5}[what]
    assert owner.store.queue(queue).counts().waiting == waiting
    assert owner.store.check().ok
