"""The store on Redis compared with the server's own streams: the same server, the same run, in turn.

Besides the rates: how many round trips each verb takes, and what three layouts of a job cost the server.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import tenure
from bench import filters
from bench.lives import compare, payloads_of
from bench.ours import Ours
from bench.peers.server_process import Missing
from bench.peers.valkey import Valkey
from bench.rows import Row, Setting, paired_ratio, percentile, spread
from bench.runner import Run, Section

#: The target for the ratio to plain streams, with every promise kept.
_LEAST = 0.5
_NAMES = {"os": "redis-os", "disk": "redis-disk"}


class _Ours(Ours):
    def __init__(self, socket: Path) -> None:
        self.name, self.note = "Tenure (redis)", "one Lua function a verb, on the same server"
        self.store = tenure.open(f"redis+unix://{socket}?prefix=bench", sweep=False)


def _lives(durability: str) -> Any:
    name = _NAMES[durability]
    setting = Setting(durability, 100)

    def rows(run: Run) -> Iterator[Row]:
        with ExitStack() as stack:
            try:
                streams = Valkey(run.new_folder("valkey"), durability)
            except Missing as exc:
                yield Row(name, "Valkey streams", setting, skipped=str(exc))
                return
            stack.callback(streams.close)
            ours = _Ours(streams._socket)
            stack.callback(ours.close)
            first, second = compare([ours, streams], setting, run.rounds, run.seconds)
            middle, low, high = spread(first.rates)
            yield Row(name, first.name, setting, middle, "lives/s", low, high, note=f"{first.parts()}; {ours.note}")
            middle, low, high = spread(second.rates)
            row = Row(name, second.name, setting, middle, "lives/s", low, high, note=f"{second.parts()}; {second.note}")
            row.ratio, row.ratio_of = paired_ratio(first.rates, second.rates), "Tenure / this"
            if run.size != "quick":
                row.expect(f">= {_LEAST:g}", row.ratio >= _LEAST)
            yield row
            if durability == "os":
                yield from _round_trips(name, ours.store)
                yield from _wake_ups(name, streams._socket, run.pick(5, 200, 1000))
                yield from _layouts(name, streams._connect(), run.pick(5, 100, 400))

    return rows


def _round_trips(name: str, store: tenure.Store) -> Iterator[Row]:
    """Count the round trips of each verb, once its queue is known; batches of 100, and of 1,000 for enqueue_many."""
    queue = store.queue("trips")
    commands = store._backend._core.commands  # type: ignore[attr-defined]
    payloads = payloads_of(1000, 128)
    queue.enqueue(b"x")

    def trips(verb: str, batch: int, call: Any) -> tuple[Row, Any]:
        before = commands.trips
        answer = call()
        row = Row(name, f"round trips: {verb}", Setting("os", batch), float(commands.trips - before), "round trips")
        return row, answer

    row, _ = trips("enqueue_many", 1000, lambda: queue.enqueue_many(payloads))
    yield row
    row, claim = trips("claim", 100, lambda: queue.claim(100))
    yield row
    yield trips("extend", 100, lambda: queue.extend(claim, 60))[0]
    yield trips("ack_many", 99, lambda: queue.ack_many(claim[n] for n in range(99)))[0]
    yield trips("nack", 1, lambda: queue.nack(claim[99]))[0]
    yield trips("get", 1, lambda: queue.get(claim[99].id))[0]
    yield trips("counts", 1, queue.counts)[0]


def _wake_ups(name: str, socket: Path, times: int) -> Iterator[Row]:
    """Measure the time from an enqueue by one client until a waiting client has the job, and until a server's watch is
    notified.
    """
    with (
        tenure.open(f"redis+unix://{socket}?prefix=wake", sweep=False) as here,
        tenure.open(f"redis+unix://{socket}?prefix=wake", sweep=False) as there,
    ):
        for what, wait in (("a waiting claim", _claimed_after), ("a server's watch", _notified_after)):
            took = sorted(wait(here.queue("bench"), there.queue("bench")) * 1e6 for _ in range(times))
            for share in (0.5, 0.99):
                figure = percentile(took, share)
                yield Row(name, f"wake-up of {what}, p{share * 100:.0f}", Setting("os", 1), figure, "µs")


def _claimed_after(waits: tenure.Queue, adds: tenure.Queue) -> float:
    got: list[float] = []

    def wait() -> None:
        claim = waits.claim(wait=10)
        got.append(time.perf_counter())
        waits.ack(claim[0])

    waiting = threading.Thread(target=wait)
    waiting.start()
    time.sleep(0.01)  # it is waiting by then; otherwise a claim that does not wait would be measured
    began = time.perf_counter()
    adds.enqueue(b"x" * 128)
    waiting.join()
    return got[0] - began


def _notified_after(waits: tenure.Queue, adds: tenure.Queue) -> float:
    notified = threading.Event()
    watch = waits._backend.watch((waits.name,), 10_000, notified.set)
    try:
        while notified.wait(0.01):
            notified.clear()
        began = time.perf_counter()
        adds.enqueue(b"x" * 128)
        assert notified.wait(10)
        return time.perf_counter() - began
    finally:
        watch.close()
        adds.ack(adds.claim()[0])


_LAYOUTS = {
    "bodies and states in two hashes a queue (ours)": """
        for at = 1, #ARGV, 200 do
          local jobs, states = {}, {}
          for i = 1, 100 do
            jobs[2 * i - 1], jobs[2 * i] = at + i, ARGV[1]
            states[2 * i - 1], states[2 * i] = at + i, ARGV[2]
          end
          redis.call('HSET', KEYS[1] .. 'a', unpack(jobs))
          redis.call('HSET', KEYS[1] .. 'b', unpack(states))
        end""",
    "a hash a job, with two fields": """
        for i = 1, 100 do redis.call('HSET', KEYS[1] .. i, 'b', ARGV[1], 's', ARGV[2]) end""",
    "two strings a job": """
        for i = 1, 100 do redis.call('SET', KEYS[1] .. 'b' .. i, ARGV[1]) redis.call('SET', KEYS[1] .. 's' .. i, ARGV[2]) end""",
}


def _layouts(name: str, client: Any, times: int) -> Iterator[Row]:
    """Measure the server's cost of writing 100 jobs of 128 B with states of 89 B."""
    took: dict[str, list[float]] = {}
    for turn in range(times):
        for what, script in _LAYOUTS.items():
            began = _server_us(client)
            for _ in range(10):
                client.eval(script, 1, f"layout{turn % 7}", b"x" * 128, b"s" * 89)
            took.setdefault(what, []).append((_server_us(client) - began) / 1000)
    ours = sorted(next(iter(took.values())))[times // 2]
    for what, values in took.items():
        middle = sorted(values)[times // 2]
        row = Row(name, f"layout: {what}", Setting("os", 100), middle, "µs a job, in the server")
        row.ratio, row.ratio_of = middle / ours if ours else None, "to ours"
        yield row


def _server_us(client: Any) -> float:
    return (
        float(client.info("commandstats")["cmdstat_eval"]["usec"])
        if "cmdstat_eval" in client.info("commandstats")
        else 0
    )


_RATIO = "Tenure / this one, the median of the rounds' ratios"
SECTIONS = [
    Section("redis-os", "the store on Redis beside its streams: lives in batches of 100, `os`", _RATIO, _lives("os")),
    filters.SECTION,
    Section("redis-disk", "the same with `appendfsync always`", _RATIO, _lives("disk")),
]
