"""The pytest plugin, in test runs of its own: what a program's tests see."""

from __future__ import annotations

import sys
from importlib.metadata import entry_points

import pytest

#: Registered by an installation made since the plugin is there; until then it is named.
REGISTERED = any(entry.name == "tenure" for entry in entry_points(group="pytest11"))
PLUGIN = () if REGISTERED else ("-p", "tenure.testing.plugin")

pytest_plugins = ["pytester"]

TASKS = """
from tenure import App, Backoff, Policy, current_job

app = App("rocksdb:./nowhere", policies={"emails": Policy(max_attempts=2)})

@app.task(queue="emails", backoff=Backoff.fixed(60))
def remind(who: str) -> str:
    current_job().progress(0.5)
    return f"reminded {who}"

@app.task(queue="emails", backoff=Backoff.fixed(60))
def fail(how: str = "badly") -> None:
    raise ValueError(f"went {how}")

@app.task
async def chain(n: int) -> None:
    if n:
        chain.delay(n - 1)

@app.task
def forever() -> None:
    forever.delay()

@app.periodic("*/15 * * * *", tz="Europe/Berlin")
def report() -> str:
    return str(current_job().tick)
"""

TESTS = """
import pytest
import tasks

@pytest.fixture
def bench(tenure_bench):
    return tenure_bench(tasks.app)

def test_a_delayed_call(bench):
    tasks.remind.options(delay=3600).delay("ada")
    call = bench.assert_enqueued(tasks.remind, "ada")
    assert call.job.state == "scheduled"
    assert call.kwargs == {"who": "ada"}
    bench.assert_enqueued(tasks.remind)
    bench.assert_not_enqueued(tasks.fail)
    with pytest.raises(AssertionError, match="no call of tasks.remind with .'bob',. .* waits. Waiting are:\\\\n.*ada"):
        bench.assert_enqueued(tasks.remind, "bob")
    with pytest.raises(AssertionError, match="1 calls of tasks.remind wait"):
        bench.assert_not_enqueued(tasks.remind)
    assert bench.drain() == []
    bench.clock.advance(3600)
    ran = bench.run_next()
    assert ran.ok and ran.result == "reminded ada"
    assert bench.run_next() is None

def test_retries(bench):
    handle = tasks.fail.delay()
    ran = bench.run_next()
    assert (ran.outcome, ran.attempt) == ("retried", 1)
    assert isinstance(ran.exception, ValueError)
    assert bench.drain() == []
    (last,) = bench.drain(forward=True)
    assert last.outcome == "dead"
    assert bench.assert_dead(tasks.fail, "went badly").id == handle.id
    with pytest.raises(AssertionError, match="died of 'well'. Dead are:\\\\n  ValueError: went badly"):
        bench.assert_dead(tasks.fail, "well")

def test_what_tasks_enqueue(bench):
    tasks.chain.delay(3)
    assert [ran.task for ran in bench.drain()] == ["tasks.chain"] * 4
    tasks.forever.delay()
    with pytest.raises(AssertionError, match="more than 10 jobs ran"):
        bench.drain(limit=10)

def test_the_schedule(bench):
    assert bench.advance(3600) == 4
    ran = bench.drain()
    assert len(ran) == 4 and len({one.result for one in ran}) == 4
    assert all(one.result.endswith(":00+01:00") for one in ran)

def test_each_test_has_its_own(bench):
    assert bench.enqueued() == []

def test_an_app_of_the_test_s(tenure_app, tenure_clock):
    @tenure_app.task
    def now() -> int:
        return tenure_clock.wall_ms()

    now.options(delay=5).delay()
    (ran,) = tenure_app.bench.drain(forward=True)
    assert ran.result >= 1_800_000_005_000
"""


def test_a_program_s_tests(pytester: pytest.Pytester):
    pytester.makepyfile(tasks=TASKS, test_it=TESTS)
    ran = pytester.runpytest_subprocess(*PLUGIN, "-p", "no:cacheprovider", "-W", "error")  # alone, as at a user's
    ran.assert_outcomes(passed=6)
    assert not (pytester.path / "nowhere").exists()


def test_loading_the_plugin_loads_nothing_else(pytester: pytest.Pytester):
    code = "import sys, tenure.testing.plugin; print([m for m in sys.modules if m.startswith('tenure.worker')])"
    ran = pytester.run(sys.executable, "-c", code)
    assert ran.outlines == ["[]"]
