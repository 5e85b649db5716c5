"""Processes that read snapshots for a server, so that the server's own process keeps serving.

A request goes to a process's pipe as JSON with its length; the answer is the bytes read, or a problem. The process runs
`tenure.bulk.table_server`. That module is above this layer, so it is started by name and shares only files.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import subprocess
import sys
import threading
from collections import deque
from struct import Struct
from typing import IO

import msgspec

from tenure.errors import InvalidArgument, Unavailable
from tenure.extras import missing
from tenure.process import Layer, closed_at_exit, renewed_after_fork
from tenure.protocol.messages import Problem
from tenure.protocol.problems import error_of

SIZE = Struct(">IB")
"""The head of each message: its length, and whether it is a problem."""
_COUNT = max(2, os.cpu_count() or 1)
#: Created here, in one thread: msgspec crashes if two threads inspect the fields of one struct at once.
_problem = msgspec.json.Decoder(Problem).decode


class Readers:
    """A pool of at most `count` processes, started on demand and kept."""

    def __init__(self, count: int = _COUNT) -> None:
        self._count = count
        self.renew_after_fork()

    def renew_after_fork(self) -> None:
        """Forget the processes, which belong to the parent: the child starts its own."""
        self._idle: deque[subprocess.Popen[bytes]] = deque()
        self._places = threading.BoundedSemaphore(self._count)

    def ask(self, request: object) -> bytes:
        """Send a request and return the answer. Raises the reader's error; Unavailable if the reader died."""
        if importlib.util.find_spec("pyarrow") is None:
            raise InvalidArgument(missing("this server cannot read tables", "pyarrow", "spark"))
        with self._places:
            process = self._idle_or_new()
            try:
                answer = _exchange(process, msgspec.json.encode(request))
            except BaseException:
                _end(process)
                raise
            self._idle.append(process)
        return answer

    def close(self) -> None:
        """End the idle processes."""
        while self._idle:
            _end(self._idle.pop())

    def close_at_exit(self) -> None:
        self.close()

    def _idle_or_new(self) -> subprocess.Popen[bytes]:
        with contextlib.suppress(IndexError):  # none is left
            while True:
                found = self._idle.pop()
                if found.poll() is None:
                    return found
                _end(found)
        return subprocess.Popen(
            [sys.executable, "-m", "tenure.bulk.table_server"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )


def _exchange(process: subprocess.Popen[bytes], request: bytes) -> bytes:
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(SIZE.pack(len(request), 0) + request)
        process.stdin.flush()
        size, failed = SIZE.unpack(_exactly(process.stdout, SIZE.size))
        answer = _exactly(process.stdout, size)
    except (OSError, EOFError) as exc:
        raise Unavailable(f"the process that reads snapshots ended: {exc}") from exc
    if failed:
        raise error_of(_problem(answer))
    return answer


def _exactly(stream: IO[bytes], size: int) -> bytes:
    found = stream.read(size)
    if len(found) != size:
        raise EOFError("the process closed its output")
    return found


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            stream.close()


READERS = Readers()
renewed_after_fork(READERS, Layer.BACKEND)
closed_at_exit(READERS, Layer.BACKEND)
