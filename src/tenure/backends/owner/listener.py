"""A small HTTP/1.1 server for the operations, inside any process, with nothing to install.

It is how a store's owner lets other processes in (the owner's socket), and speaks the same protocol as `tenure serve`.
A connection has a thread, which runs the verb itself; while it waits it watches its socket too, so that a caller who is gone is
noticed at once. Where small verbs wait for no disk, one thread answers those of all connections (`loop`).
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import weakref
from collections.abc import Callable, Mapping
from struct import Struct
from urllib.parse import parse_qsl

from tenure import telemetry
from tenure.backends.owner.event_loop import Loop, Next
from tenure.errors import InvalidArgument, NotFound, TenureError, TooLarge
from tenure.protocol.dispatcher import REQUEST_ID, ROUTES, SMALL, Begun, Host, Reply
from tenure.protocol.head_cache import LEARNT, Found, Lane
from tenure.protocol.http_heads import parsed, written
from tenure.protocol.identity import LOCAL, Identity

Identify = Callable[[Mapping[str, str]], Identity]


#: Process, user and group at the other end of a Unix socket.
_PEER = Struct("3i")
#: A request with one of these takes more than one look.
_UNUSUAL = frozenset({"transfer-encoding", "expect", "connection", "upgrade"})
#: A larger one than this may take a while.
_AT_ONCE_BYTES = 64 * 1024
#: After so many small verbs a connection that had a thread of its own goes back to the loop.
_STEADY = 8


class _Gone(Exception):
    """The caller has left."""


def _trusting(headers: Mapping[str, str]) -> Identity:
    return LOCAL


class Listener:
    """Answers on a listening socket, which it takes over, until stopped."""

    def __init__(self, listening: socket.socket, host: Host, identify: Identify = _trusting) -> None:
        self.host = host
        self.identify = identify
        self._listening = listening
        self._lock = threading.Lock()
        self._connections: dict[_Connection, None] = {}
        self.loop = Loop() if host.quick else None
        self.lane = Lane()
        #: Whoever asks is the same to it.
        self.trusting = identify is _trusting
        self.owner = os.getpid()
        _listeners.add(self)
        self._thread = threading.Thread(target=self._accept, name="tenure-listener", daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        while True:
            try:
                accepted, _ = self._listening.accept()
            except OSError:
                if self.host.stopping or self._listening.fileno() < 0:
                    return
                threading.Event().wait(0.05)  # out of handles: those who are here may leave
                continue
            if self.host.stopping:
                accepted.close()
                return
            if accepted.family != socket.AF_UNIX:
                accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            elif not may_connect(accepted):
                accepted.close()
                continue
            connection = _Connection(self, accepted)
            with self._lock:
                self._connections[connection] = None
            if self.loop is None:
                threading.Thread(target=connection.serve, name="tenure-connection", daemon=True).start()
            elif not self.loop.add(connection):
                connection.end()

    def left(self, connection: _Connection) -> None:
        with self._lock:
            self._connections.pop(connection, None)

    def stop(self, timeout: float = 5.0) -> bool:
        """Take no more, end all waiting, let requests under way finish. False: it was stopped before, or is not ours."""
        if os.getpid() != self.owner or self.host.stopping:
            return False
        self.host.stop()
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)  # wakes the accepting thread
        self._listening.close()
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            connection.finish()
        deadline = threading.Event()
        waited = 0.0
        while waited < timeout:
            with self._lock:
                if not self._connections:
                    break
            deadline.wait(0.005)
            waited += 0.005
        if self.loop is not None:
            self.loop.stop()
        return True

    def disown(self) -> None:
        """In a forked child: a copy of the socket kept open here would take connections that nobody answers."""
        self._lock = threading.Lock()
        self._listening.close()
        for connection in list(self._connections):
            connection.sock.close()
        if self.loop is not None:
            self.loop.disown()


class _Connection:
    """One caller's connection, and the thread that serves it."""

    def __init__(self, listener: Listener, sock: socket.socket) -> None:
        self._listener = listener
        self._host = listener.host
        self.sock = sock
        self._buffer = bytearray()
        self._busy = False
        self._lock = threading.Lock()
        self._pipe: tuple[int, int] | None = None
        self._unsent = b""
        #: So many small verbs in a row have not waited.
        self._small = 0

    def serve(self) -> None:
        loop = self._listener.loop
        try:
            if self._unsent:
                self.sock.sendall(self._unsent)
                self._unsent = b""
            self._small = 0
            while self._one():
                # Who waits once will wait again: a thread is not made anew for every wait.
                if loop is not None and self._small >= _STEADY and loop.add(self):
                    return
        except (OSError, _Gone):
            pass  # they left, or were shown out
        except Exception as exc:  # noqa: BLE001 - a bug must not end without a word
            telemetry.warn("connection_failed", exc)
        self.end()

    def end(self) -> None:
        self._listener.left(self)
        with self._lock:
            pipe, self._pipe = self._pipe, None
            self.sock.close()
        for handle in pipe or ():
            os.close(handle)

    def turn(self) -> Next:
        """For the loop: answer what has come, as far as that takes neither a wait nor long."""
        buffer = self._buffer
        try:
            with contextlib.suppress(BlockingIOError):
                got = self.sock.recv(262_144, socket.MSG_DONTWAIT)
                if not got:
                    return Next.GONE
                if not buffer and (found := self._listener.lane.find(got)) is not None:
                    return self._known(found, got)
                buffer += got
            while (end := buffer.find(b"\r\n\r\n")) >= 0:
                if not self._at_once(end):
                    return Next.ELSEWHERE
                if self._host.stopping:
                    return Next.GONE
            return Next.HERE if len(buffer) <= self._host.limits.head_bytes else Next.GONE
        except OSError:
            return Next.GONE
        except Exception as exc:  # noqa: BLE001 - as in `serve`
            telemetry.warn("connection_failed", exc)
            return Next.GONE

    def _known(self, found: Found, got: bytes) -> Next:
        """Answer a request that begins like one before."""
        host, (prepared, headers), name = self._host, found.known, found.name
        with self._lock:
            self._busy = True
        try:
            try:
                begun = host.understand(prepared, {}, name, got[found.body :])
                if begun.waiting is not None:
                    self._buffer += got
                    return Next.ELSEWHERE
                reply = host.reply(begun, host.run(begun))
            except TenureError as exc:
                reply = host.refusal(exc, headers)
            except Exception as exc:  # noqa: BLE001 - the caller is told, and so is the log
                reply = self._failed(exc, prepared.operation.path, headers)
            if not self._sent_at_once(reply):
                return Next.ELSEWHERE
        finally:
            with self._lock:
                self._busy = False
        return Next.GONE if host.stopping else Next.HERE

    def _sent_at_once(self, reply: Reply) -> bool:
        """False: some of it is left for a thread to send."""
        answer = written(reply, not self._host.stopping)
        sent = 0
        with contextlib.suppress(BlockingIOError):
            sent = self.sock.send(answer, socket.MSG_DONTWAIT)
        self._unsent = answer[sent:]
        return not self._unsent

    def _at_once(self, end: int) -> bool:
        """Answer the request whose head ends there; False: it is for a thread of its own, and still in the buffer."""
        method, target, headers = parsed(self._buffer[:end].decode("latin-1"))
        length = headers.get("content-length", "0")
        if method not in ("POST", "GET") or "?" in target or not length.isdigit() or not _UNUSUAL.isdisjoint(headers):
            return False
        whole = end + 4 + int(length)
        if len(self._buffer) < whole or whole > _AT_ONCE_BYTES:
            return False
        with self._lock:
            self._busy = True
        try:
            reply = self._small_verb(method, target, headers, bytes(self._buffer[:whole]), end + 4)
            if reply is None:
                return False
            del self._buffer[:whole]
            return self._sent_at_once(reply)
        finally:
            with self._lock:
                self._busy = False

    def _small_verb(self, method: str, target: str, headers: dict[str, str], data: bytes, at: int) -> Reply | None:
        host, listener = self._host, self._listener
        try:
            operation, named = ROUTES.find(method, target)
            if operation.name not in SMALL:
                return None
            prepared = host.prepare(operation, named, headers, listener.identify(headers))
            begun = host.understand(prepared, {}, headers.get(REQUEST_ID), data[at:])
            if listener.trusting and operation.name in LEARNT:
                listener.lane.learn(data, prepared._replace(name=begun.call.name), headers)
            return host.reply(begun, host.run(begun)) if begun.waiting is None else None
        except TenureError as exc:
            return host.refusal(exc, headers)
        except Exception as exc:  # noqa: BLE001 - the caller is told, and so is the log
            return self._failed(exc, target, headers)

    def finish(self) -> None:
        """Between two requests: go. Otherwise, after this one."""
        with self._lock:
            if not self._busy and self.sock.fileno() >= 0:
                with contextlib.suppress(OSError):
                    self.sock.shutdown(socket.SHUT_RDWR)

    def _one(self) -> bool:
        """Serve one request; False: the connection is over."""
        head = self._head()
        if head is None:
            return False
        with self._lock:
            self._busy = True
        if self._host.stopping:
            return False
        method, target, headers = parsed(head)
        try:
            if not method:
                raise InvalidArgument("that is not HTTP/1.1")
            body = self._body(headers)
        except TenureError as exc:  # what follows on this connection cannot be told apart any more
            self._send(Host.refusal(exc, headers), False)
            return False
        keep = headers.get("connection", "").lower() != "close"
        reply = self._answer(method, target, headers, body)
        keep = keep and not self._host.stopping
        self._send(reply, keep)
        with self._lock:
            self._busy = False
            return keep and not self._host.stopping

    def _head(self) -> str | None:
        buffer, limit = self._buffer, self._host.limits.head_bytes
        while (end := buffer.find(b"\r\n\r\n")) < 0:
            if len(buffer) > limit:
                raise _Gone
            got = self.sock.recv(65536)
            if not got:
                return None
            buffer += got
        head = buffer[:end].decode("latin-1")
        del buffer[: end + 4]
        return head

    def _body(self, headers: Mapping[str, str]) -> bytes:
        if "transfer-encoding" in headers:
            raise InvalidArgument("a request's body comes with a Content-Length here")
        length = headers.get("content-length", "0")
        if not length.isdigit():
            raise InvalidArgument(f"Content-Length {length!r} is no length")
        size, limit = int(length), self._host.limits.body_bytes
        if size > limit:
            raise TooLarge("the request", size, limit)
        if headers.get("expect", "").lower() == "100-continue":
            self.sock.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        buffer = self._buffer
        while len(buffer) < size:
            got = self.sock.recv(max(65536, min(size - len(buffer), 1 << 20)))
            if not got:
                raise _Gone
            buffer += got
        body = bytes(buffer[:size])
        del buffer[:size]
        return body

    def _answer(self, method: str, target: str, headers: dict[str, str], body: bytes) -> Reply:
        host = self._host
        try:
            identity = self._listener.identify(headers)
            path, query = target, {}
            if "?" in target:
                path, _, after = target.partition("?")
                query = dict(parse_qsl(after, keep_blank_values=True))
            if method == "DELETE" and path.startswith("/v1/requests/"):
                if not host.call_off(identity, headers, path[13:]):
                    raise NotFound("no request of that id waits")
                return Reply(200, "application/json", b"{}")
            operation, named = ROUTES.find(method, path)
            begun = host.begin(operation, named, query, headers, body, identity)
            self._small = self._small + 1 if begun.waiting is None and operation.name in SMALL else 0
            answer = host.run(begun) if begun.waiting is None else self._wait(begun)
            return host.reply(begun, answer)
        except TenureError as exc:
            return host.refusal(exc, headers)
        except (_Gone, OSError):
            raise
        except Exception as exc:  # noqa: BLE001 - the caller is told, and so is the log
            return self._failed(exc, target, headers)

    def _failed(self, exc: Exception, target: str, headers: Mapping[str, str]) -> Reply:
        telemetry.warn("request_failed", exc, path=target.partition("?")[0])
        return self._host.refusal(TenureError(f"the server failed: {type(exc).__name__}"), headers)

    def _wait(self, begun: Begun) -> object:
        host = self._host
        if self._pipe is None:
            self._pipe = os.pipe()
            os.set_blocking(self._pipe[1], False)
        reading, writing = self._pipe
        lock, open_here = self._lock, self

        def told() -> None:
            # Under the lock, since a late call must not write to a handle that was closed, and perhaps is another's by now.
            with lock:
                if open_here._pipe is not None:
                    with contextlib.suppress(BlockingIOError):
                        os.write(writing, b"x")

        entry = host.attendance.enter(begun.key, told)
        watch = host.watch(begun, told)
        poll = select.poll()
        poll.register(reading, select.POLLIN)
        poll.register(self.sock, select.POLLIN)
        try:
            while True:
                answer = host.look(begun, watch, entry)
                if answer is not None:
                    if answer_lost(self.sock):
                        host.give_back(begun, entry, answer)
                        raise _Gone
                    return answer
                for handle, _ in poll.poll():
                    if handle == reading:
                        os.read(reading, 4096)
                    else:
                        raise _Gone  # nobody sends more before they have their answer: this is the end of it
        finally:
            watch.close()
            host.attendance.leave(begun.key, entry)

    def _send(self, reply: Reply, keep: bool) -> None:
        self.sock.sendall(written(reply, keep))


def may_connect(sock: socket.socket) -> bool:
    """Whether the process at the other end of a Unix socket runs as this process's user, or as root.

    The socket's file mode says the same, but not on every file system, nor for a handle that was passed on.
    """
    if not hasattr(socket, "SO_PEERCRED"):
        return True
    try:
        _, user, _ = _PEER.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    except OSError:
        return False
    return user in (os.geteuid(), 0)


def answer_lost(sock: socket.socket) -> bool:
    """Whether the caller has closed their end by now."""
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))


_listeners: weakref.WeakSet[Listener] = weakref.WeakSet()


def _disown_in_child() -> None:
    for listener in list(_listeners):
        listener.disown()


os.register_at_fork(after_in_child=_disown_in_child)
