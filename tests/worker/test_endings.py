"""However a handler ends, in every pool, its job is settled, and neither a slot nor the worker is lost."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import tenure
from tests.worker import endings
from tests.worker.conftest import until

SLOTS = 2
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module", params=["thread", "async", "process"])
def worker(request):
    endings.app.use(tenure.open("memory:", sweep=False))
    with endings.app.worker(pool=request.param, concurrency=SLOTS, lease=30) as made:
        yield made
        assert made.health().problem is None
    store = endings.app.store
    assert store.check().clean
    store.close()
    endings.app.use("memory:")


def all_slots_work(worker) -> None:
    """As many jobs run at once as there are slots."""
    handles = endings.hold.map([0.3] * SLOTS)
    most = 0
    deadline = time.monotonic() + 60
    while most < SLOTS and time.monotonic() < deadline:
        most = max(most, worker.running)
        if all(handle.status() == "done" for handle in handles):
            handles = endings.hold.map([0.3] * SLOTS)
        time.sleep(0.005)
    assert most == SLOTS
    assert [handle.result(60) for handle in handles] == ["held"] * SLOTS


SETTLED = [
    *[("plain", how) for how in endings.PLAIN],
    *[("coroutine", how) for how in (*endings.PLAIN, *endings.COROUTINES)],
]


@pytest.mark.parametrize(("kind", "how"), SETTLED, ids=[f"{kind}-{how}" for kind, how in SETTLED])
def test_every_ending_is_settled(worker, kind, how):
    handle = getattr(endings, kind).delay(how)
    # "exception from outside" may strike before or after the handler's last line, or in the slot's own code.
    until(lambda: handle.status() in ("dead", "done"), 60)
    job = handle.job()
    assert how == "exception from outside" or (job is not None and job.state == "dead"), job
    if how in ("SystemExit", "GeneratorExit", "StopAsyncIteration", "KeyboardInterrupt", "MemoryError"):
        assert how in job.error
    elif how in ("StopIteration", "recursion", "memory"):  # a coroutine turns StopIteration into RuntimeError
        assert "StopIteration" in job.error or "RecursionError" in job.error or "MemoryError" in job.error
    elif how == "result of another type":
        assert "Expected `int`, got `str`" in job.error


@pytest.mark.parametrize("worker", ["process"], indirect=True)
@pytest.mark.parametrize("kind", ["plain", "coroutine"])
@pytest.mark.parametrize("how", endings.FATAL)
def test_what_ends_the_process_costs_one_delivery_of_a_process_pool(worker, kind, how):
    """Other pools end with it: see below."""
    handle = getattr(endings, kind).delay(how)
    until(lambda: handle.status() == "dead", 60)
    assert handle.job().error.startswith("the process that ran it died: it ")


def test_no_slot_was_lost(worker):
    all_slots_work(worker)
    assert worker.totals.outcomes["lost"] == 0


KILLED = """
import sys, tenure
from tests.worker import endings
endings.app.use(sys.argv[1])
endings.app.worker(pool=sys.argv[2], lease=0.5).run()
"""


@pytest.mark.parametrize("pool", ["thread", "async"])
def test_what_ends_the_whole_worker_leaves_the_job_to_the_next(pool, tmp_path):
    """Neither pool outlives it; the lease runs out, and the delivery counts."""
    url = f"lmdb:{tmp_path / 'data'}"
    with tenure.open(url) as store:
        endings.app.use(store)
        try:
            handle = endings.plain.options(max_attempts=2).delay("SIGKILL")
            for _ in range(2):
                ran = subprocess.run([sys.executable, "-c", KILLED, url, pool], cwd=ROOT, timeout=60)
                assert ran.returncode == -signal.SIGKILL
                until(lambda: handle.status() != "leased")
            until(lambda: handle.status() == "dead")
            job = handle.job()
            assert job is not None
            assert job.attempt == 2
        finally:
            endings.app.use("memory:")


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("kind", ["forks", "forks_async"])
@pytest.mark.parametrize(("how", "code"), [("returns", 0), ("exits", 3), ("raises", 1), ("reports", 1)])
def test_a_forked_child_ends_where_the_handler_ends(worker, kind, how, code):
    """Otherwise the child reports a second outcome, which the worker takes for that of the next job."""
    assert getattr(endings, kind).delay(how).result(60) == f"the child ended with {code}"
    assert [handle.result(60) for handle in endings.hold.map([0.0] * SLOTS)] == ["held"] * SLOTS
