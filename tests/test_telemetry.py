"""What the façade measures and logs, and the thread that sweeps."""

import gc
import json
import logging
import os
import subprocess
import sys
import threading
import time
import timeit
import weakref
from bisect import bisect_left

import pytest
import structlog
from prometheus_client import REGISTRY, CollectorRegistry, generate_latest

from tenure import telemetry
from tenure.api.sweeper import Sweeper
from tenure.clock import ManualClock, SystemClock
from tenure.errors import LeaseLost, StoreClosed, Unavailable
from tenure.model.job import Swept
from tenure.model.names import QueueName
from tenure.telemetry import BOUNDS, Meters, Span, Telemetry, configure_logging

NAME = QueueName("default", "emails")


FAMILIES = {
    "tenure_conflicts",
    "tenure_errors",
    "tenure_jobs",
    "tenure_transaction_retries",
    "tenure_verb_seconds",
}


def sample(name, **labels):
    return REGISTRY.get_sample_value(name, labels) or 0


def eventually(condition, seconds=60.0):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it did not come about"
        time.sleep(0.002)


@pytest.mark.parametrize("sweep", [0.01, None], ids=["the sweeper notices", "the next store notices"])
def test_a_program_that_imports_prometheus_client_late_has_every_count(sweep):
    code = f"""
import sys, time
import tenure
store = tenure.open("memory:", sweep={sweep!r})
for _ in range(3):
    store.queue("emails").enqueue(b"hello")
assert "prometheus_client" not in sys.modules
from prometheus_client import REGISTRY
if {sweep!r} is None:
    tenure.open("memory:", sweep=False).close()
until = time.monotonic() + 60
while (counted := REGISTRY.get_sample_value("tenure_jobs_total", {{"verb": "enqueue"}})) is None:
    assert time.monotonic() < until
    time.sleep(0.01)
assert counted == 3, counted
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


# ── spans ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_span_counts_time_and_jobs():
    span = Telemetry("memory:").spans(NAME)
    before = sample("tenure_verb_seconds_count", verb="t_jobs")
    with span("t_jobs") as running:
        running.jobs(3)
    with span("t_jobs") as running:
        running.jobs(0)
    assert sample("tenure_verb_seconds_count", verb="t_jobs") == before + 2
    assert sample("tenure_verb_seconds_sum", verb="t_jobs") > 0
    assert sample("tenure_jobs_total", verb="t_jobs") == 3


def test_a_verb_that_moves_no_jobs_has_no_count_of_them():
    with Telemetry("memory:").span("t_look"):
        pass
    assert REGISTRY.get_sample_value("tenure_verb_seconds_count", {"verb": "t_look"}) == 1
    assert REGISTRY.get_sample_value("tenure_jobs_total", {"verb": "t_look"}) is None


@pytest.mark.parametrize(
    ("error", "code"), [(LeaseLost(), "lease_lost"), (KeyError("x"), "unexpected"), (SystemExit(3), "unexpected")]
)
def test_errors_are_counted_by_code_and_go_on(error, code):
    before = sample("tenure_errors_total", verb="t_error", code=code)
    with pytest.raises(type(error)), Telemetry("memory:").span("t_error"):
        raise error
    assert sample("tenure_errors_total", verb="t_error", code=code) == before + 1


def test_buckets():
    assert BOUNDS[0] == pytest.approx(1e-5)
    assert BOUNDS[-1] == 10
    assert list(BOUNDS) == sorted(BOUNDS)
    meters = Meters()
    with Span(meters.by_verb["t"]) as span:
        span._start -= 7
    with Span(meters.by_verb["t"]) as span:
        span._start -= 100
    registry = CollectorRegistry()
    registry.register(meters)
    text = generate_latest(registry).decode()
    for bound, count in {"1e-05": 0, "5": 0, "10": 1, "+Inf": 2}.items():
        assert f'tenure_verb_seconds_bucket{{le="{bound}",verb="t"}} {count}.0' in text


def test_a_bound_belongs_to_its_bucket():
    assert bisect_left(BOUNDS, BOUNDS[4]) == 4


def test_retries_and_conflicts():
    told = Telemetry("memory:")
    conflicts = sample("tenure_conflicts_total")
    retries = sample("tenure_transaction_retries_total", kind="commit_unknown")
    told.retried("conflict")
    told.retried("commit_unknown")
    assert sample("tenure_conflicts_total") == conflicts + 1
    assert sample("tenure_transaction_retries_total", kind="commit_unknown") == retries + 1


def test_many_stores_are_registered_once():
    for _ in range(3):
        Telemetry("memory:")
    names = [family.name for family in REGISTRY.collect() if family.name.startswith("tenure")]
    assert len(names) == len(set(names))
    assert set(names) >= FAMILIES  # the server and the workers have some of their own, once they are imported


def test_no_label_names_a_queue_or_a_tenant():
    for family in REGISTRY.collect():
        if family.name.startswith("tenure"):
            for one in family.samples:
                assert not {"queue", "tenant", "job", "worker"} & set(one.labels)


def test_nothing_is_lost_between_threads():
    span = Telemetry("memory:").spans(NAME)

    def work():
        for _ in range(2000):
            with span("t_threads") as running:
                running.jobs(2)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sample("tenure_verb_seconds_count", verb="t_threads") == 8000
    assert sample("tenure_jobs_total", verb="t_threads") == 16000


def test_a_fork_counts_on_though_another_thread_held_the_lock():
    told = Telemetry("memory:")
    with told.span("t_fork"):
        pass
    held, done = threading.Event(), threading.Event()

    def hold():
        with telemetry.METERS.by_verb["t_fork"].lock:
            held.set()
            done.wait(10)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    child = os.fork()
    if child == 0:
        with told.span("t_fork"):
            pass
        os._exit(0)
    try:
        eventually(lambda: os.waitpid(child, os.WNOHANG)[0] == child)
    finally:
        done.set()
        thread.join()


def test_a_span_is_nearly_free():
    span = Telemetry("memory:").spans(NAME)

    def run():
        with span("t_cost") as running:
            running.jobs(1)

    microseconds = min(timeit.repeat(run, number=5000, repeat=20)) / 5000 * 1e6
    print(f"a span takes {microseconds:.2f} µs")
    assert microseconds < 10  # about 1.1 on a quiet machine; this only catches something gone badly wrong


# ── lines ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def level():
    logger = logging.getLogger("tenure")
    before = logger.level
    yield logger.setLevel
    logger.setLevel(before)


def test_levels_are_the_applications(level, caplog):
    told = Telemetry("memory:")
    level(logging.WARNING)
    assert told.debugging is False
    told.debug("enqueued", id="1")
    told.info("opened")
    told.warning("check_found", findings=2)
    assert [record.getMessage() for record in caplog.records] == ["check_found url=memory: findings=2"]
    level(logging.DEBUG)
    assert Telemetry("memory:").debugging is True
    told.debug("enqueued", ids=["1", "2"])
    assert caplog.records[-1].levelname == "DEBUG"
    assert caplog.records[-1].name == "tenure"
    assert caplog.records[-1].getMessage() == "enqueued url=memory: ids=['1', '2']"


def test_structured_formatters_get_the_facts(level, caplog):
    level(logging.INFO)
    formatter = structlog.stdlib.ProcessorFormatter(
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, structlog.processors.JSONRenderer()]
    )
    with structlog.contextvars.bound_contextvars(request="r1"):
        Telemetry("memory:").info("replayed", count=3)
    line = json.loads(formatter.format(caplog.records[-1]))
    assert line == {"event": "replayed", "url": "memory:", "count": 3, "request": "r1"}


def run_python(code, **more):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60, **more)


SAY = """
from tenure.telemetry import Telemetry, configure_logging, warn
{configure}
told = Telemetry("memory:")
told.debug("a_debug"); told.info("an_info", n=1); told.warning("a_warning", n=2)
try:
    1 / 0
except ZeroDivisionError as exc:
    warn("it_failed", exc)
"""


def test_by_default_only_warnings_are_shown():
    shown = run_python(SAY.format(configure=""))
    assert shown.stdout == ""
    assert "a_warning url=memory: n=2" in shown.stderr
    assert "ZeroDivisionError" in shown.stderr
    assert "an_info" not in shown.stderr


def test_the_command_line_logs_json_where_no_person_reads():
    shown = run_python(SAY.format(configure="configure_logging('warning'); configure_logging('info', 'auto')"))
    assert shown.stdout == ""
    info, warning, failed = map(json.loads, shown.stderr.splitlines())
    assert info["event"] == "an_info"
    assert info["level"] == "info"
    assert info["n"] == 1
    assert info["timestamp"].endswith("+00:00")
    assert warning["level"] == "warning"
    assert "ZeroDivisionError" in failed["exception"]


def test_the_command_line_logs_lines_for_people():
    shown = run_python(SAY.format(configure="configure_logging('debug', 'console')"))
    assert "a_debug" in shown.stderr
    assert "an_info" in shown.stderr
    assert "ZeroDivisionError" in shown.stderr
    assert "{" not in shown.stderr.splitlines()[0]


def test_configuring_again_replaces_only_its_own_handler():
    root = logging.getLogger()
    before = list(root.handlers)
    level = logging.getLogger("tenure").level
    try:
        configure_logging("error", "json")
        configure_logging("error", "console")
        assert [handler for handler in root.handlers if handler not in before] == root.handlers[-1:]
    finally:
        root.handlers[:] = before
        logging.getLogger("tenure").setLevel(level)


# ── the sweeper ──────────────────────────────────────────────────────────────────────────────────────────────────────


class Store:
    """Enough of one to be swept."""

    sweeper: Sweeper | None = None

    def __init__(self, *answers):
        self.answers = list(answers)
        self.calls = 0

    def sweep(self):
        self.calls += 1
        answer = self.answers.pop(0) if self.answers else Swept()
        if isinstance(answer, Exception):
            raise answer
        return answer


class Slept(ManualClock):
    """Counts the waits that have begun: who has not begun to wait does not notice that the clock moves."""

    waits = 0

    def wait(self, signal, seconds, poll=None):
        with self._moved:
            self.waits += 1
            return super().wait(signal, seconds, poll)


def test_it_sweeps_every_interval_by_the_clock():
    clock, store = Slept(), Store()
    sweeper = Sweeper(clock, 5)
    sweeper.start(store.sweep)
    try:
        eventually(lambda: clock.waits == 1)
        time.sleep(0.02)
        assert store.calls == 1
        clock.advance(5)
        eventually(lambda: store.calls == 2)
    finally:
        sweeper.stop()
    clock.advance(100)
    assert store.calls == 2


def test_it_goes_on_at_once_while_there_is_more():
    store = Store(*[Swept(leases=1, more=True)] * 10)
    sweeper = Sweeper(ManualClock(), 1000)
    sweeper.start(store.sweep)
    eventually(lambda: store.calls == 11)
    sweeper.stop()


def test_an_error_is_logged_once_a_minute_and_ends_nothing(caplog):
    clock = Slept()
    store = Store(Unavailable("disk full"), Unavailable("disk full"), KeyError("bug"), Unavailable("disk full"))
    sweeper = Sweeper(clock, 50)
    sweeper.start(store.sweep)
    try:
        for passed in range(1, 5):
            eventually(lambda passed=passed: store.calls == clock.waits == passed)
            clock.advance(50)
        eventually(lambda: store.calls == 5)
    finally:
        sweeper.stop()
    messages = [record.msg["message"] for record in caplog.records]
    assert messages == ["Unavailable: disk full", "KeyError: 'bug'", "Unavailable: disk full"]  # at 0, 100 and 150 s


def test_a_closed_store_ends_it():
    sweeper = Sweeper(SystemClock(), 0.001)
    sweeper.start(Store(StoreClosed("closed")).sweep)
    assert sweeper._thread is not None
    sweeper._thread.join(60)
    assert not sweeper._thread.is_alive()
    sweeper.stop()
    sweeper.stop()


def test_a_forgotten_store_is_collected_and_its_thread_ends():
    def forget():
        store = Store()
        store.sweeper = sweeper = Sweeper(SystemClock(), 0.01)
        sweeper.start(store.sweep)
        eventually(lambda: store.calls > 1)
        assert sweeper._thread is not None
        return (weakref.ref(store), weakref.ref(sweeper)), sweeper._thread

    gone, thread = forget()
    eventually(lambda: gc.collect() >= 0 and gone[0]() is None and gone[1]() is None)
    thread.join(60)
    assert not thread.is_alive()


def test_stop_waits_for_the_pass_under_way():
    inside, go_on, ended = threading.Event(), threading.Event(), []

    def sweep():
        inside.set()
        go_on.wait(60)
        ended.append(True)
        return Swept()

    sweeper = Sweeper(SystemClock(), 1000)
    sweeper.start(sweep)
    inside.wait(60)
    threading.Timer(0.05, go_on.set).start()
    sweeper.stop()
    assert ended


def test_stopping_from_within_and_starting_twice():
    sweeper = Sweeper(SystemClock(), 0.001)
    stopped = threading.Event()

    def sweep():
        sweeper.stop()
        stopped.set()
        return Swept()

    sweeper.start(sweep)
    assert stopped.wait(60)
    with pytest.raises(RuntimeError):
        sweeper.start(sweep)


def test_a_fork_has_no_sweeper_and_can_stop_it():
    store = Store()
    sweeper = Sweeper(SystemClock(), 0.001)
    sweeper.start(store.sweep)
    child = os.fork()
    if child == 0:
        calls = store.calls
        sweeper.stop()
        time.sleep(0.02)
        os._exit(0 if store.calls == calls else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    calls = store.calls
    eventually(lambda: store.calls > calls)
    sweeper.stop()


def test_it_does_not_keep_the_interpreter():
    run_python("""
from tenure.clock import SystemClock
from tenure.model.job import Swept
from tenure.api.sweeper import Sweeper
class Store:
    def sweep(self): return Swept()
store = Store()
sweeper = Sweeper(SystemClock(), 1000)
sweeper.start(store.sweep)
""")
