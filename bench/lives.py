"""Lives (enqueue, claim, ack) in batches, by one client or several, Tenure and its peers in turn.

A round of each contender follows a round of every other, and each round starts with another one, so that whatever slows
the machine down slows all of them. A round has a duration, not a count: slow contenders do not prolong the run.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Protocol

from bench.rows import Setting


class Client(Protocol):
    """One connection, or one thread's handle on an embedded queue."""

    def enqueue(self, payloads: Sequence[bytes]) -> object: ...

    def claim(self, limit: int) -> Sequence[Any]: ...

    def ack(self, claimed: Sequence[Any]) -> object: ...

    def close(self) -> None: ...


class Contender(Protocol):
    """An open queue at one durability."""

    @property
    def name(self) -> str: ...

    @property
    def note(self) -> str:
        """What its durability rests on."""

    def client(self) -> Client: ...

    def tidy(self) -> None:
        """Do what a server would do when idle. Called between rounds, not timed."""

    def close(self) -> None: ...


@dataclass
class Lived:
    """A contender's results, round by round."""

    name: str
    note: str = ""
    rates: list[float] = field(default_factory=list)
    jobs: int = 0
    #: Seconds in enqueue, claim and ack, and the client's own CPU seconds, over all rounds and clients.
    stages: list[float] = field(default_factory=lambda: [0.0] * 4)

    def parts(self) -> str:
        """Return microseconds a job in each stage, and the CPU time of the client's threads."""
        per = [f"{1e6 * seconds / max(1, self.jobs):.1f}" for seconds in self.stages]
        return f"enqueue {per[0]}, claim {per[1]}, ack {per[2]} µs a job (CPU here {per[3]})"


def compare(contenders: Sequence[Contender], setting: Setting, rounds: int, seconds: float) -> list[Lived]:
    """Run rounds of every contender in turn, after one round each to warm up."""
    clients = [[contender.client() for _ in range(setting.clients or 1)] for contender in contenders]
    lived = [Lived(contender.name, contender.note) for contender in contenders]
    try:
        for index in range(len(contenders)):
            _round(clients[index], setting, min(seconds, 0.2), Lived(""))
        for turn in range(rounds):
            for step in range(len(contenders)):
                index = (turn + step) % len(contenders)
                contenders[index].tidy()
                _round(clients[index], setting, seconds, lived[index])
    finally:
        for group in clients:
            for client in group:
                client.close()
    return lived


def _round(clients: Sequence[Client], setting: Setting, seconds: float, into: Lived) -> None:
    batch = setting.batch or 1
    payloads = payloads_of(batch, setting.payload or 0)
    if len(clients) == 1:
        began = time.perf_counter()
        jobs, stages = live(clients[0], payloads, began + seconds)
        elapsed = time.perf_counter() - began
        done = [(jobs, stages)]
    else:
        done, elapsed = _together(clients, payloads, seconds)
    jobs = sum(jobs for jobs, _ in done)
    into.rates.append(jobs / elapsed)
    into.jobs += jobs
    for _, stages in done:
        into.stages = [a + b for a, b in zip(into.stages, stages, strict=True)]


def payloads_of(batch: int, size: int) -> list[bytes]:
    """Return different payloads of text (one peer takes nothing else) that does not compress; the same in every run."""
    draw = Random(batch * 1_000_003 + size).randbytes
    return [draw(size // 2 + 1).hex()[:size].encode() for _ in range(batch)]


def live(client: Client, payloads: list[bytes], until: float, limit: int | None = None) -> tuple[int, list[float]]:
    """Run lives until a time; return how many, and the seconds in each stage. May claim another client's jobs.

    `limit`: claim and ack this many at a time, of the batch that was enqueued together.
    """
    now = time.perf_counter
    enqueue, claim, ack = client.enqueue, client.claim, client.ack
    batch = len(payloads)
    jobs = 0
    in_enqueue = in_claim = in_ack = 0.0
    cpu = time.thread_time()
    began = now()
    while began < until:
        enqueue(payloads)
        left = batch
        at = now()
        in_enqueue += at - began
        while left:
            claimed = claim(left if limit is None or left < limit else limit)
            left -= len(claimed)
            mid = now()
            in_claim += mid - at
            if claimed:
                ack(claimed)
            at = now()
            in_ack += at - mid
        jobs += batch
        began = at
    return jobs, [in_enqueue, in_claim, in_ack, time.thread_time() - cpu]


def _together(
    clients: Sequence[Client], payloads: list[bytes], seconds: float
) -> tuple[list[tuple[int, list[float]]], float]:
    done: list[tuple[int, list[float]]] = []
    failed: list[BaseException] = []
    gate = threading.Barrier(len(clients) + 1)

    def run(client: Client) -> None:
        gate.wait()
        try:
            done.append(live(client, payloads, time.perf_counter() + seconds))
        except BaseException as exc:  # noqa: BLE001  # passed to the calling thread
            failed.append(exc)

    threads = [threading.Thread(target=run, args=(client,)) for client in clients]
    for thread in threads:
        thread.start()
    gate.wait()
    began = time.perf_counter()
    for thread in threads:
        thread.join()
    elapsed = time.perf_counter() - began
    if failed:
        raise failed[0]
    return done, elapsed
