"""Through a socket: batches by four clients compared with other servers, single requests, and 500 waiting claims.

The store is in another process: its owner (the socket in its folder), or `tenure serve`. Clients are threads here.
"""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import tenure
from bench.lives import Client, Contender, compare
from bench.ours import _Client
from bench.peers import BATCHED
from bench.peers.server_process import Missing, Server
from bench.rows import Row, Setting, paired_ratio, percentile, spread
from bench.runner import Run, Section

_OWNER_PROGRAM = "import tenure, sys, time; s = tenure.open(sys.argv[1], durability=sys.argv[2]); time.sleep(1e6)"
_SERVE = "from tenure.cli.main import main; main()"
_WAITERS = 500


class Owned:
    """A store that another process owns, through the socket in its folder."""

    name = "Tenure (owner's socket)"
    note = "MessagePack; Unix socket; the owner in another process"

    def __init__(self, folder: Path, durability: str = "os") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.url = f"rocksdb:{folder / 'data'}"
        argv = [sys.executable, "-c", _OWNER_PROGRAM, self.url, durability]
        self._server = Server(argv, folder, (folder / "data" / "SOCKET").exists)
        self.store = tenure.open(self.url)

    def client(self) -> Client:
        return _Client(self.store.queue("bench"))

    def tidy(self) -> None:
        pass

    def close(self) -> None:
        self.store.close()
        self._server.stop()


class Served(Owned):
    """A store behind `tenure serve`."""

    name = "Tenure (serve)"
    note = "MessagePack; Unix socket; uvicorn"

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / "s"
        (folder / "tenure.toml").write_text('storage.durability = "os"\n')
        argv = ["serve", "--store", f"rocksdb:{folder / 'data'}", "--bind", f"unix:{self.path}"]
        self._server = Server([sys.executable, "-c", _SERVE, *argv], folder, self.path.exists)
        self.url = f"http+unix:{self.path}"
        self.store = tenure.open(self.url)


def batches(run: Run) -> Iterator[Row]:
    setting = Setting("os", 100, clients=4, kind="thread")
    with contextlib.ExitStack() as stack:
        contenders: list[Contender] = []
        skipped: list[Row] = []
        for peer in ("valkey", "beanstalkd") if run.size != "quick" else ():
            try:
                contenders.append(BATCHED[peer](run.new_folder(peer), "os"))
                stack.callback(contenders[-1].close)
            except Missing as exc:
                skipped.append(Row("socket-batches", peer, setting, skipped=str(exc)))
        for ours in (Owned(run.new_folder("owned")), Served(run.new_folder("served"))):
            contenders.append(ours)
            stack.callback(ours.close)
        lived = compare(contenders, setting, run.rounds, run.seconds)
    first = next(one for one in lived if one.name == Owned.name)
    for one in sorted(lived, key=lambda one: one is not first):
        middle, low, high = spread(one.rates)
        row = Row("socket-batches", one.name, setting, middle, "lives/s", low, high, note=f"{one.parts()}; {one.note}")
        if one is not first:
            row.ratio, row.ratio_of = paired_ratio(first.rates, one.rates), "owner's socket / this"
            if one.name.startswith("Valkey"):
                row.expect(">= 0.5", row.ratio >= 0.5)
            elif one.name == "beanstalkd":
                row.expect("> 1", row.ratio > 1)
        yield row
    yield from skipped


def singles(run: Run) -> Iterator[Row]:
    """Measure enqueues of one job: one after the other by this process, and by four processes at once."""
    name, many = "socket-singles", run.pick(2, 4, 4)
    with contextlib.ExitStack() as stack:
        doors = [
            (Owned(run.new_folder("owned")), "os"),
            (Served(run.new_folder("served")), "os"),
            (Owned(run.new_folder("owned"), "disk"), "disk"),
        ]
        rates: dict[tuple[int, int], list[float]] = {}
        several: list[_Clients] = []
        for door, _ in doors:
            stack.callback(door.close)
            several.append(_Clients(door.url, many))
            stack.callback(several[-1].close)
            several[-1].enqueued(0.01)  # all have opened it
        for turn in range(run.rounds + 1):
            for place, (door, _) in enumerate(doors):
                found = {1: _enqueue_for(door.store, run.seconds), many: several[place].enqueued(run.seconds)}
                for clients, rate in found.items() if turn else ():  # the first round warms up
                    rates.setdefault((place, clients), []).append(rate)
    for clients in (1, many):
        for place, (door, durability) in enumerate(doors):
            middle, low, high = spread(rates[place, clients])
            setting = Setting(durability, 1, clients=clients, kind="process")
            row = Row(name, door.name, setting, middle, "requests/s", low, high, note=door.note)
            if clients > 1:
                row.ratio, row.ratio_of = paired_ratio(rates[place, clients], rates[place, 1]), "to 1 client"
            yield row.expect(">= 3,000 requests/s", middle >= 3000) if durability == "os" else row


class _Clients:
    """Processes with the store open that enqueue on request."""

    def __init__(self, url: str, count: int) -> None:
        argv = [sys.executable, "-m", "bench.remote", url]
        self._children = [
            subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(count)
        ]

    def enqueued(self, seconds: float) -> float:
        """Return the requests a second of all of them."""
        for child in self._children:
            assert child.stdin is not None
            child.stdin.write(f"{seconds}\n")
            child.stdin.flush()
        started = [child.stdout.readline() for child in self._children if child.stdout is not None]
        return sum(map(float, started))

    def close(self) -> None:
        for child in self._children:
            child.kill()
            child.communicate()


def _enqueue_for(store: tenure.Store, seconds: float) -> float:
    queue, done, began = store.queue("bench"), 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        queue.enqueue(b"x" * 128)
        done += 1
    return done / (time.perf_counter() - began)


def _child(url: str) -> None:
    with tenure.open(url) as store:
        for line in sys.stdin:
            print(_enqueue_for(store, float(line)), flush=True)


def waiters(run: Run) -> Iterator[Row]:
    """Measure the CPU time of `tenure serve` with 500 waiting claims, and how soon a job reaches one of them."""
    count = run.pick(50, _WAITERS, _WAITERS)
    setting = Setting("os", 1, clients=count)
    served = Served(run.new_folder("served"))
    body = json.dumps({"wait_ms": 60_000, "lease_ms": 60_000}).encode()
    request = (
        b"POST /v1/queues/bench/claims HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        % len(body)
        + body
    )
    with contextlib.closing(served), contextlib.ExitStack() as stack:
        import select

        poll, callers = select.poll(), {}
        for _ in range(count):
            caller = stack.enter_context(socket.socket(socket.AF_UNIX))
            caller.connect(str(served.path))
            caller.sendall(request)
            poll.register(caller, select.POLLIN)
            callers[caller.fileno()] = caller
        time.sleep(1.0)
        stat = Path(f"/proc/{served._server.process.pid}/stat")
        before, began = _ticks(stat), time.perf_counter()
        time.sleep(run.pick(0.5, 5.0, 10.0))
        busy = (_ticks(stat) - before) / 100 / (time.perf_counter() - began)
        queue, took = served.store.queue("bench"), []
        for _ in range(run.pick(10, 200, 500)):
            began = time.perf_counter()
            queue.enqueue(b"x")
            ((handle, _),) = poll.poll(5000)[:1]
            callers[handle].recv(65536)
            took.append((time.perf_counter() - began) * 1000)
            callers[handle].sendall(request)
    row = Row("waiters", f"{count} waiting claims", setting, busy * 100, "% of a core")
    yield row.expect("< 5 %", busy < 0.05)
    p99 = percentile(took, 0.99)
    row = Row(
        "waiters", "enqueue to claimed, p99", setting, p99, "ms", percentile(took, 0.5), max(took), note="p50 to max"
    )
    yield row.expect("< 20 ms", p99 < 20)


def _ticks(stat: Path) -> int:
    words = stat.read_text().rpartition(")")[2].split()
    return int(words[11]) + int(words[12])


SECTIONS = [
    Section("socket-batches", "lives in batches of 100 by 4 clients through a Unix socket, `os`",
            "the owner's socket / this one, the median of the rounds' ratios", batches),
    Section("socket-singles", "single enqueues through a Unix socket", "to 1 client's", singles),
    Section("waiters", "500 claims that wait at the server", "to the target", waiters),
]  # fmt: skip

if __name__ == "__main__":
    _child(sys.argv[1])
