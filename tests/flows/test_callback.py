"""A job with many parents: ending a parent costs the same for the first as for the last.

FLOW_PARENTS sets how many (default 2,000; `make test-crash`: 100,000).
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

import tenure
from tenure import NewJob, Queue, Store
from tenure.storage.transaction import Transaction
from tenure.testing.harness import engine_of

PARENTS = int(os.environ.get("FLOW_PARENTS", "2000"))
BATCH = 100

pytestmark = [pytest.mark.crash, pytest.mark.timeout(120 + PARENTS // 100)]


class Cost:
    """The rows that transactions write, singly and by ranges; and their time."""

    def __init__(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rows: list[int] = []
        engine = engine_of(store)
        transact = engine.transact

        def counted(fn: object) -> object:
            def run(tx: Transaction) -> object:
                result = fn(tx)  # type: ignore[operator]
                self.rows.append(len(tx.writes) + len(tx.ranges) + len(tx.adds))
                return result

            return transact(run)

        monkeypatch.setattr(engine, "transact", counted)


def drain(queue: Queue, cost: Cost) -> tuple[list[float], list[int]]:
    """Claim and ack in batches until no job is ready. Returns the seconds and the written rows of each ack."""
    took, rows = [], []
    while claim := queue.claim(limit=BATCH):
        began = time.perf_counter()
        assert not queue.ack_many(list(claim)).lost
        took.append(time.perf_counter() - began)
        rows.append(cost.rows[-1])
    return took, rows


def run(path: Path, monkeypatch: pytest.MonkeyPatch, *, callback: bool) -> tuple[float, list[float], list[int]]:
    with tenure.open(f"rocksdb:{path}", durability="os", sweep=False, listen=False) as store:
        queue, after = store.queue("parts"), store.queue("callback")
        # With a header, like jobs of tasks: plain jobs would be stored as segments.
        jobs = [NewJob(b"x" * 100, headers={"task": "part"}, name=str(n) if callback else None) for n in range(PARENTS)]
        if callback:
            jobs.append(NewJob(b"callback", queue="callback", after=[f"#{n}" for n in range(PARENTS)]))
        began = time.process_time()
        queue.enqueue_many(jobs)
        took, rows = drain(queue, Cost(store, monkeypatch))
        spent = time.process_time() - began
        if callback:
            (delivery,) = after.claim()
            assert [event.type for event in after.timeline(delivery.id)] == ["enqueued", "unblocked", "claimed"]
            assert len(after.parents(delivery)) == PARENTS
            after.ack(delivery)
        assert store.check().clean
        return spent, took, rows


def test_the_last_parent_costs_what_the_first_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, _, _ = run(tmp_path / "plain", monkeypatch, callback=False)
    spent, took, rows = run(tmp_path / "callback", monkeypatch, callback=True)
    # The last ack makes the callback ready: its state, its ready row, an event.
    assert max(rows) - min(rows) <= 20, (min(rows), max(rows))
    tenth = max(1, len(took) // 10)
    first, last = sum(took[:tenth]) / tenth, sum(took[-tenth:]) / tenth
    print(
        f"{PARENTS:,} parents: an ack of {BATCH} takes {1e3 * first:.2f} ms at first, {1e3 * last:.2f} ms at last; "
        f"{spent / plain:.2f} times the processor time of the same jobs without a callback ({spent:.2f} s, {plain:.2f} s)"
    )
