"""Fuzzed payloads in every decoder and every pool: none raises an unexpected error. FUZZ=100000 for the long run."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import socket
import struct

import msgspec
import pytest

import tenure
from tenure import InvalidArgument
from tenure.worker import metrics
from tenure.worker.child_channel import Channel
from tenure.worker.codec import is_json, open_envelope
from tenure.worker.pools.threads import ThreadPool
from tenure.worker.runner import Worker
from tests.worker import fuzzed
from tests.worker.conftest import until

COUNT = int(os.environ.get("FUZZ", "1500"))
SLOTS = 3
pytestmark = [pytest.mark.crash, pytest.mark.timeout(120 + COUNT // 50)]


@pytest.fixture(autouse=True)
def _no_lines():
    """There is one for every dead job."""
    logger = logging.getLogger("tenure")
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(logging.NOTSET)


def test_decoders_raise_one_error_only():
    opened = fitted = 0
    for payload in fuzzed.payloads(COUNT, 1):
        tasks = list(fuzzed.app.tasks.values())
        try:
            envelope = open_envelope(payload)
            opened += 1
            tasks = [fuzzed.app.tasks.get(envelope.task, tasks[0])]
            tasks[0].codec.decode_call(envelope.args, is_json(payload))
            fitted += 1
        except InvalidArgument:
            pass
        for task in tasks:
            for decode in (task.codec.decode_result, task.codec.encode_named):
                with contextlib.suppress(InvalidArgument):
                    decode(payload)
    print(f"{COUNT} payloads: {opened} envelopes could be opened, {fitted} fit their task")


def test_a_channel_refuses_what_is_no_message():
    allowed = (msgspec.DecodeError, RecursionError, ValueError)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(30)
        channel = Channel(ours)
        for payload in fuzzed.payloads(COUNT, 2):
            theirs.sendall(struct.pack(">I", len(payload)) + payload)
            with contextlib.suppress(*allowed):
                channel.receive()


def _ended(worker: Worker, count: int) -> bool:
    return sum(worker.totals.outcomes.values()) >= count


@pytest.mark.parametrize("pool", ["thread", "async", "process"])
def test_no_slot_is_lost_and_no_worker_ended(pool, monkeypatch):
    monkeypatch.setattr(metrics.METERS, "_by_task", {})
    with tenure.open("memory:", sweep=False) as store:
        fuzzed.app.use(store)
        try:
            queue = store.queue("default")
            with fuzzed.app.worker(pool=pool, concurrency=SLOTS, lease=60) as worker:
                source = fuzzed.payloads(COUNT, 3)
                left = COUNT
                while left:
                    batch = [tenure.NewJob(next(source), max_attempts=1) for _ in range(min(left, 500))]
                    queue.enqueue_many(batch)
                    left -= len(batch)
                    # By the worker's own count: the store's takes longer than the jobs do.
                    until(functools.partial(_ended, worker, COUNT - left - 2000), 300)
                until(functools.partial(_ended, worker, COUNT), 300)
                assert worker.health().problem is None
                assert [handle.result(60) for handle in fuzzed.alive.map(range(20))] == list(range(20))
                if isinstance(worker._pool, ThreadPool):
                    assert all(thread.is_alive() for thread in worker._pool._threads)
            assert set(metrics.METERS._by_task) <= {*fuzzed.app.tasks, "(unreadable)", "(unknown)"}
            outcomes = worker.totals.outcomes
            assert outcomes["done"] + outcomes["dead"] == COUNT + 20
            assert outcomes["lost"] == 0
            print(f"{pool}: {COUNT} payloads, {outcomes['dead']} dead, {outcomes['done'] - 20} run, no slot lost")
        finally:
            fuzzed.app.use("memory:")
