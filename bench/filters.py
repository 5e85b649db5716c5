"""The three Bloom filters of the Redis store, each where it can save something, with and without.

keys       redis      before a large job with a key is sent: a key that was sent before is looked up first (on by default)
           socket     the same in front of a server: what a lookup would save, if the client asked first (here only)
           embedded   before the lookup of a key, in the process that owns the store (here only)
ghosts     redis      before a job that was found gone is read: check for existence before reading all of it
cleanup    redis      before ids that were removed are removed again, by this process or another

A filter only chooses which question to ask; the server always answers it.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import tenure
from bench.peers.server_process import Missing
from bench.peers.valkey import Valkey
from bench.remote import Owned
from bench.rows import Row, Setting, spread
from bench.runner import Run, Section
from tenure import NewJob, Policy
from tenure.queueing import idempotency_keys as embedded

_NAME = "filters"
_BATCH = 100
Timed = Callable[[], float]
"""Microseconds for each call of one round."""


def rows(run: Run) -> Iterator[Row]:
    jobs, rounds = run.pick(20, 100, 300), run.pick(1, 9, 15)
    with ExitStack() as stack:
        try:
            servers = {level: Valkey(run.new_folder("valkey"), level) for level in ("os", "disk")}
        except Missing as exc:
            yield Row(_NAME, "Valkey", Setting("os", 1), skipped=str(exc))
            return
        for server in servers.values():
            stack.callback(server.close)
        for size, repeated in ((256 * 1024, 0.5), (256 * 1024, 0.0), (128, 0.5)):
            what = f"keys, redis: enqueue, {repeated:.0%} repeated"
            way = partial(_keyed, servers["os"]._socket, size, repeated, jobs)
            plain, filtered = _turns(rounds, partial(way, "false"), partial(way, "true"))
            yield from _pair(what, Setting("os", 1, size), plain, filtered)
        yield from _through_a_socket(run, jobs, rounds)
        yield from _in_the_process(run, rounds)
        yield from _ghosts(servers["os"], jobs, rounds)
        for level, server in servers.items():
            yield from _cleanup(server, level, rounds)
        yield from _memory(servers["os"])


def _turns(rounds: int, plain: Timed, filtered: Timed) -> tuple[list[float], list[float]]:
    """Time both in turn; each round begins with the other."""
    took: tuple[list[float], list[float]] = ([], [])
    for turn in range(rounds + 1):
        for which in (0, 1) if turn % 2 else (1, 0):
            us = (plain, filtered)[which]()
            if turn:  # the first round warms up
                took[which].append(us)
    return took


def _timed(count: int, work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) / count * 1e6


def _open(socket: Path, **options: object) -> tenure.Store:
    query = "&".join(f"{name}={value}" for name, value in options.items())
    return tenure.open(f"redis+unix://{socket}?{query}", sweep=False)


# ── keys ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _keyed(socket: Path, size: int, repeated: float, jobs: int, bloom: str) -> float:
    draw = random.Random(17)
    payload = draw.randbytes(size)
    with _open(socket, prefix=f"k{os.urandom(6).hex()}", bloom_keys=bloom) as store:
        queue = store.queue("bench")

        def work() -> None:
            new = 0
            for _ in range(jobs):
                if new and draw.random() < repeated:
                    number = draw.randrange(new)
                else:
                    number, new = new, new + 1
                queue.enqueue(payload, key=f"k{number}")

        took = _timed(jobs, work)
        queue.purge("ready")
        return took


def _through_a_socket(run: Run, jobs: int, rounds: int) -> Iterator[Row]:
    """A repeated job of 256 KiB is always sent; a filter and a lookup by key would replace it by a small question."""
    owned = Owned(run.new_folder("owned"))
    try:
        queue = owned.store.queue("bench")
        payload = random.Random(17).randbytes(256 * 1024)
        first = {f"k{n}": queue.enqueue(payload, key=f"k{n}").id for n in range(jobs)}
        small = queue.enqueue(b"small").id
        plain, question = _turns(
            rounds,
            lambda: _timed(jobs, lambda: [queue.enqueue(payload, key=key) for key in first]),
            lambda: _timed(jobs, lambda: [queue.get(small) for _ in first]),
        )
        yield from _pair(
            "keys, owner's socket: enqueue, 100% repeated (with: a small question in its place)",
            Setting("os", 1, 256 * 1024), plain, question,
        )  # fmt: skip
    finally:
        owned.close()


def _in_the_process(run: Run, rounds: int) -> Iterator[Row]:
    """RocksDB has its own filters; one more in front of them saves the call. All keys are new."""
    from tenure.backends.redis.filters import RotatingFilter
    from tenure.clock import SystemClock

    known = run.pick(2_000, 20_000, 100_000)
    look_up = embedded.holders
    seen = RotatingFilter(SystemClock(), 4_000_000, 0.01, 86_400)

    def filtered(ledger: Any, queue: Any, keys: Sequence[bytes]) -> dict[bytes, tuple[bytes, bytes]]:
        maybe = [key for key in keys if key in seen]
        for key in keys:
            seen.add(key)
        return look_up(ledger, queue, maybe) if maybe else {}

    with tenure.open(f"rocksdb:{run.new_folder('keys')}/data", durability="os") as store:
        queue = store.queue("bench")
        made = 0

        def batch() -> list[NewJob]:
            nonlocal made
            made += _BATCH
            return [NewJob(b"x" * 128, key=f"key-{made + n}") for n in range(_BATCH)]

        for _ in range(known // _BATCH):
            queue.enqueue_many(batch())

        def work(way: Any) -> float:
            batches = [batch() for _ in range(20)]
            embedded.holders = way
            try:
                return _timed(20 * _BATCH, lambda: [queue.enqueue_many(jobs) for jobs in batches])
            finally:
                embedded.holders = look_up

        plain, with_it = _turns(rounds, lambda: work(look_up), lambda: work(filtered))
    yield from _pair("keys, embedded: enqueue_many of 100, none repeated", Setting("os", _BATCH), plain, with_it)


# ── ghosts and cleanup ───────────────────────────────────────────────────────────────────────────────────────────────


def _ghosts(server: Valkey, jobs: int, rounds: int) -> Iterator[Row]:
    with (
        _open(server._socket, prefix="ghosts", bloom_ghosts="false") as plain,
        _open(server._socket, prefix="ghosts", bloom_ghosts="true") as filtered,
    ):
        gone = [e.id for e in plain.queue("bench").enqueue_many([b"x"] * jobs)]
        plain.queue("bench").purge("ready")
        live = [e.id for e in plain.queue("bench").enqueue_many([b"x" * 128] * jobs)]
        for what, ids in (("that were seen gone", gone), ("that are there", live)):
            without, with_it = _turns(rounds, partial(_get_time, plain, ids), partial(_get_time, filtered, ids))
            yield from _pair(f"ghosts, redis: get of jobs {what}", Setting("os", 1), without, with_it)


def _get_time(store: tenure.Store, ids: Sequence[str]) -> float:
    queue = store.queue("bench")
    return _timed(len(ids), lambda: [queue.get(job) for job in ids])


def _cleanup(server: Valkey, level: str, rounds: int) -> Iterator[Row]:
    """Two processes clean up the same list: one removes it, and both try again (a retried task)."""
    with (
        _open(server._socket, prefix="cleanup", bloom_cleanup="false") as plain,
        _open(server._socket, prefix="cleanup", bloom_cleanup="true") as filtered,
    ):
        queue = plain.queue("bench")
        queue.configure(Policy(retention=3600))

        def done() -> dict[str, int]:
            queue.enqueue_many([b"x" * 128] * _BATCH)
            claim = queue.claim(_BATCH)
            queue.ack_many(claim)
            return {d.id: d.token for d in claim}

        def first(store: tenure.Store) -> float:
            tokens = done()
            return _timed(_BATCH, lambda: store.queue("bench").discard(tokens, "done"))

        without, with_it = _turns(rounds, lambda: first(plain), lambda: first(filtered))
        yield from _pair("cleanup, redis: discard of 100 for the first time", Setting(level, _BATCH), without, with_it)
        removed = done()
        for store in (plain, filtered):
            store.queue("bench").discard(removed, "done")
        without, with_it = _turns(
            rounds,
            lambda: _timed(20 * _BATCH, lambda: [plain.queue("bench").discard(removed, "done") for _ in range(20)]),
            lambda: _timed(20 * _BATCH, lambda: [filtered.queue("bench").discard(removed, "done") for _ in range(20)]),
        )
        yield from _pair("cleanup, redis: discard of 100 that are gone", Setting(level, _BATCH), without, with_it)


def _memory(server: Valkey) -> Iterator[Row]:
    with _open(server._socket, prefix="memory", bloom_ghosts="true", bloom_cleanup="true") as store:
        taken = store._backend.filter_bytes  # type: ignore[attr-defined]
    yield Row(_NAME, "memory of all three, 100,000 ids each at 0.01", Setting("os", None), taken / 1e6, "MB")


def _pair(what: str, setting: Setting, plain: list[float], filtered: list[float]) -> Iterator[Row]:
    middle, low, high = spread(plain)
    yield Row(_NAME, f"{what}, without", setting, middle, "µs each", low, high)
    middle, low, high = spread(filtered)
    row = Row(_NAME, f"{what}, with", setting, middle, "µs each", low, high)
    ratios = sorted(a / b for a, b in zip(filtered, plain, strict=True))
    row.ratio, row.ratio_of = ratios[len(ratios) // 2], "to without"
    yield row


SECTION = Section(
    _NAME, "Bloom filters, each where it can still save something, with and without", "time, to without", rows
)
