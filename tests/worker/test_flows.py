"""Chains, groups and graphs of tasks: what runs in which order, with which arguments, and what is refused."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any, Literal, Optional, TypedDict

import msgspec
import pytest

from tenure import App, Dead, Flow, InvalidArgument, Policy, Retry, TaskFailed, WaitTimeout, chain, current_job, group
from tenure.worker.type_fit import fits
from tests.worker import apps
from tests.worker.conftest import until


class Tasks:
    """An app with a few small tasks, on two queues and with two encodings."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.broken = True

        @app.task(name="double")
        def double(number: int) -> int:
            return 2 * number

        @app.task(name="add", queue="sums")
        def add(left: int, right: int) -> int:
            return left + right

        @app.task(name="total", queue="sums")
        def total(numbers: list[int]) -> int:
            return sum(numbers)

        @app.task(name="name", encoding="msgpack")
        async def name(number: int) -> str:
            return f"no. {number}"

        @app.task(name="shout")
        def shout(text: str) -> str:
            return text.upper()

        @app.task(name="nothing")
        def nothing() -> None:
            return None

        @app.task(name="fragile", max_attempts=1)
        def fragile(number: int) -> int:
            if self.broken:
                raise Dead("not today")
            return number

        @app.task(name="count_none", queue="sums")
        def count_none(numbers: list[int | None]) -> int:
            return numbers.count(None)

        self.double, self.add, self.total, self.name, self.shout = double, add, total, name, shout
        self.nothing, self.fragile, self.count_none = nothing, fragile, count_none


@pytest.fixture
def tasks():
    with App("memory:", sweep=False) as app:
        yield Tasks(app)
        if not app.inline:
            assert app.store.check().clean


@pytest.fixture
def working(tasks):
    with tasks.app.worker(concurrency=2):
        yield tasks


# ── what runs ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_chain_hands_on_results(working):
    t = working
    assert chain(t.double.s(1), t.double.s(), t.add.s(10)).enqueue().result(60) == 14
    # By another encoding and back, and by a coroutine.
    assert chain(t.double.s(2), t.name.s(), t.shout.s()).delay().result(60) == "NO. 4"


def test_a_step_that_has_all_its_arguments_only_waits(working):
    t = working
    handle = chain(t.nothing.s(), t.double.s(4)).enqueue()
    assert handle.result(60) == 8
    assert handle.status() == "done"


def test_a_group_and_its_callback(working):
    t = working
    assert group([t.double.s(n) for n in range(4)]).enqueue().result(60) == [0, 2, 4, 6]
    assert group([t.double.s(n) for n in range(4)]).then(t.total.s()).enqueue().result(60) == 12
    assert group([]).then(t.total.s()).enqueue().result(60) == 0


def test_groups_and_chains_are_steps_of_each_other(working):
    t = working
    steps = chain(
        t.double.s(1),
        group([t.add.s(1), chain(t.double.s(), t.double.s()), group([t.double.s()]).then(t.total.s())]),
        t.total.s(),
    )
    assert steps.enqueue().result(60) == (1 + 2) + 8 + 4
    assert chain(t.double.s(1), group([]), t.total.s()).enqueue().result(60) == 0
    assert chain(steps, t.double.s()).enqueue().result(60) == 30


def test_a_graph(working):
    t = working
    flow = Flow()
    left = flow.add(t.double.s(1))
    right = flow.add(t.double.s(left))
    both = flow.add(t.add.s(left, right))
    audit = flow.add(t.nothing.s(), after=[both])
    flow.add(t.total.s([left, both, left]), after=[audit])
    handle = flow.enqueue(result=[both, left])
    assert handle.result(60) == [6, 2]
    assert handle.steps[-1].result(60) == 2 + 6 + 2
    assert [step.result(60) for step in handle.steps] == [2, 4, 6, None, 10]
    assert sum(handle.counts().values()) == 5


@pytest.mark.parametrize("pool", ["thread", "async"])
def test_every_pool_completes_the_arguments(tasks, pool):
    t = tasks
    with t.app.worker(concurrency=2, pool=pool):
        assert group([chain(t.double.s(n), t.name.s()) for n in range(3)]).enqueue().result(60) == [
            "no. 0",
            "no. 2",
            "no. 4",
        ]


def test_a_pool_of_processes_completes_the_arguments(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACE", str(tmp_path / "trace"))
    apps.app.use(f"rocksdb:{tmp_path / 'store'}")
    try:
        with apps.app.worker(["default"], concurrency=1, pool="process"):
            assert chain(apps.note.s("word"), apps.note.s()).enqueue().result(60) == "word"
    finally:
        apps.app.use("memory:")


def test_results_are_kept_for_children_whatever_the_retention(tasks):
    t = tasks
    t.app.store.queue("default").configure(Policy(retention=0, result_retention=0))
    handle = chain(t.double.s(1), t.double.s(), t.total.options(queue="other").s([3])).enqueue()
    with t.app.worker(["default", "other"], concurrency=1):
        assert handle.result(60) == 3


def test_a_fan_out_of_ten_thousand_is_one_transaction(tasks):
    t = tasks
    store = t.app.store
    flow = group([t.double.s(n) for n in range(10_000)]).then(t.total.s())
    before = len(store.events(limit=1_000_000).events)
    handle = flow.enqueue()
    events = store.events(limit=1_000_000).events[before:]
    assert len({event.time_ms for event in events}) == 1
    assert store.queue("sums").counts().blocked == 1
    with t.app.worker(concurrency=4):
        assert handle.result(120) == 2 * sum(range(10_000))


# ── failures ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_follows_a_dead_step_waits_for_its_replay(tasks):
    t = tasks
    handle = chain(t.double.s(1), t.fragile.s(), t.double.s()).enqueue()
    assert handle.status() == "running"
    with t.app.worker(concurrency=1):
        with pytest.raises(TaskFailed, match="not today") as failure:
            handle.result(60)
        assert failure.value.task == "fragile"
        assert handle.status() == "failed"
        assert handle.counts() == {"done": 1, "dead": 1, "blocked": 1}
        t.broken = False
        assert handle.retry() == 1
        assert handle.result(60) == 4
    assert handle.retry() == 0


def test_a_callback_may_run_though_a_member_is_dead(tasks):
    t = tasks
    members = [t.double.s(1), t.fragile.s(2), t.double.s(3)]
    with pytest.raises(InvalidArgument, match=r"or None if it is dead.*'numbers' of total, which is list"):
        group(members).then(t.total.s(), on_parent_dead="run")
    handle = group(members).then(t.count_none.s(), on_parent_dead="run").enqueue()
    with t.app.worker(concurrency=1):
        assert handle.result(60) == 1


def test_steps_behind_a_dead_one_may_be_cancelled(tasks):
    t = tasks
    handle = chain(t.fragile.s(1), t.double.s(), t.double.s(), on_parent_dead="cancel").enqueue()
    with t.app.worker(concurrency=1), pytest.raises(TaskFailed, match="not today"):
        handle.result(60)
    assert handle.counts() == {"dead": 1, "removed": 2}


def test_a_flow_is_cancelled_whole(tasks):
    t = tasks
    handle = group([t.double.s(n) for n in range(3)]).then(t.total.s()).enqueue()
    assert handle.cancel() == 4
    assert handle.status() == "failed"
    assert t.app.store.queue("default").counts().ready == 0
    assert handle.cancel() == 0


def test_a_result_is_waited_for_no_longer_than_said(tasks):
    handle = chain(tasks.double.s(1), tasks.double.s()).enqueue()
    with pytest.raises(WaitTimeout):
        handle.result(0.01)


# ── handles ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_flow_is_found_by_the_id_of_its_last_job(tasks):
    t = tasks
    enqueued = chain(t.fragile.s(1), t.double.s()).enqueue()
    handle = t.app.flow(enqueued.id)
    assert [step.task.name for step in handle.steps] == ["double", "fragile"]
    with t.app.worker(concurrency=1):
        with pytest.raises(TaskFailed, match="not today"):
            handle.result(60)
        t.broken = False
        assert t.app.flow(enqueued.id).retry() == 1
        assert t.app.flow(enqueued.id).result(60) == 2


def test_the_verbs_are_awaited(tasks):
    t = tasks

    async def run() -> None:
        handle = await chain(t.double.s(1), t.double.s()).enqueue_async()
        assert await handle.status() == "running"
        with t.app.worker(concurrency=1):
            assert await handle.result(60) == 4
        assert (await handle.counts(), await handle.cancel(), await handle.retry()) == ({"done": 2}, 0, 0)
        assert handle.id == handle._sync.aio.id

    asyncio.run(run())


def test_an_app_in_inline_mode_runs_flows_here():
    with App("memory:", inline=True) as app:
        t = Tasks(app)
        assert chain(t.double.s(1), t.name.s(), t.shout.s()).enqueue().result() == "NO. 2"
        handle = group([t.double.s(1), t.fragile.s(2)]).then(t.total.s()).enqueue()
        with pytest.raises(TaskFailed, match="not today"):
            handle.result()
        assert handle.status() == "failed"
        assert handle.counts() == {"done": 1, "dead": 1, "removed": 1}
        run = group([t.double.s(1), t.fragile.s(2)]).then(t.count_none.s(), on_parent_dead="run")
        assert run.enqueue().result() == 1
        assert app.store.queues() == []


# ── what is refused, and when ────────────────────────────────────────────────────────────────────────────────────────


def test_results_that_do_not_fit_are_refused_where_the_flow_is_built(tasks):
    t = tasks
    with pytest.raises(InvalidArgument, match=r"name returns str: .* argument 'number' of double, which is int"):
        chain(t.name.s(1), t.double.s())
    with pytest.raises(InvalidArgument, match=r"a list of what it returns .* 'number' of double, which is int"):
        group([t.double.s(1)]).then(t.double.s())
    with pytest.raises(InvalidArgument, match="nothing returns None"):
        chain(t.nothing.s(), t.double.s())
    flow = Flow()
    with pytest.raises(InvalidArgument, match="double returns int"):
        flow.add(t.shout.s(flow.add(t.double.s(1))))
    assert t.app.store.queues() == []


def test_arguments_are_checked_where_the_flow_is_built(tasks):
    t = tasks
    with pytest.raises(TypeError, match="task double"):
        t.double.s(1, 2)
    with pytest.raises(TypeError, match="task add: missing a required argument: 'right'"):
        chain(t.double.s(1), t.add.s())
    with pytest.raises(TypeError, match="missing a required argument"):
        chain(t.double.s(), t.double.s()).enqueue()
    with pytest.raises(TypeError, match="missing a required argument"):
        Flow().add(t.double.s())
    with pytest.raises(InvalidArgument, match=r"task double: Expected 'int', got 'str'"):
        chain(t.double.s("x"), t.double.s()).enqueue()
    for wrong in (lambda: chain(), lambda: chain(t.double), lambda: group(t.double.s(1)), lambda: Flow().enqueue()):
        with pytest.raises(InvalidArgument):
            wrong()
    with pytest.raises(InvalidArgument, match=r"ends with a group"):
        chain(group([group([t.double.s(1)])]), t.total.s())
    with pytest.raises(InvalidArgument, match="no step of this flow"):
        Flow().add(t.double.s(Flow().add(t.double.s(1))))
    flow = Flow()
    with pytest.raises(InvalidArgument, match="no other values"):
        flow.add(t.total.s([flow.add(t.double.s(1)), 5]))
    assert t.app.store.queues() == []


def test_a_step_that_waits_has_no_key_and_no_group_of_its_arguments(tasks):
    t = tasks

    @t.app.task(name="once", unique=True)
    def once(number: int) -> int:
        return number

    @t.app.task(name="fair", group=lambda number: f"g{number}")
    def fair(number: int) -> int:
        return number

    with pytest.raises(InvalidArgument, match="cannot be unique"):
        chain(t.double.s(1), once.s()).enqueue()
    with pytest.raises(InvalidArgument, match=r"name it, with fair.options"):
        chain(t.double.s(1), fair.s()).enqueue()
    first, second = (chain(once.s(1), t.double.s()).enqueue() for _ in range(2))
    assert first.steps[0].id == second.steps[0].id
    with t.app.worker(concurrency=1):
        assert (first.result(60), second.result(60)) == (2, 2)


def test_a_flow_is_of_one_app(tasks):
    with App("memory:", sweep=False) as other, pytest.raises(InvalidArgument, match="another app"):
        chain(tasks.double.s(1), Tasks(other).double.s())


class Point(msgspec.Struct):
    x: int
    y: int = 0


class Named(TypedDict):
    x: int


@dataclasses.dataclass
class Wide:
    x: float
    label: str = ""


@dataclasses.dataclass
class Link:
    next: Optional[Link] = None  # noqa: UP045 - as a user may write it


@pytest.mark.parametrize(
    ("result", "argument", "expected"),
    [
        (int, int, True),
        (int, float, True),
        (float, int, False),
        (bool, int, False),
        (str, int, False),
        (int | None, int, False),
        (int, int | None, True),
        (int | str, str | int | None, True),
        (Any, int, True),
        (int, Any, True),
        (int, object, True),
        (None, int, False),
        (list[int], list[float], True),
        (list[int], tuple[int, ...], True),
        (list[int], tuple[int, int], True),
        (tuple[int, str], list[int], False),
        (tuple[int, str], tuple[int, str], True),
        (tuple[int, str], tuple[int, str, int], False),
        (list[str], str, False),
        (dict[str, int], dict[str, float], True),
        (dict[str, int], dict[str, str], False),
        (dict[str, int], Point, True),
        (dict[str, str], Point, False),
        (Point, dict[str, int], True),
        (Point, dict[str, Any], True),
        (Point, Named, True),
        (Point, Wide, True),
        (Wide, Point, False),
        (Link, Link, True),
        (Literal["a", "b"], str, True),
        (Literal["a", "b"], Literal["a", "b", "c"], True),
        (Literal["a", "d"], Literal["a", "b", "c"], False),
        (Literal[1], str, False),
        (bytes, str, False),
    ],
)
def test_what_fits(result, argument, expected):
    assert fits(result, argument) is expected


def test_what_a_flow_leaves_is_counted(working):
    t = working
    handle = group([t.double.s(n) for n in range(3)]).then(t.total.s()).enqueue()
    handle.result(60)
    until(lambda: handle.counts() == {"done": 4})


def test_a_bench_runs_flows(tenure_bench):
    with App("memory:", sweep=False) as app:
        t = Tasks(app)
        bench = tenure_bench(app)
        handle = group([t.double.s(n) for n in range(3)]).then(t.total.s()).enqueue()
        assert len(bench.enqueued()) == 3
        assert [bench.run_next().ok for _ in range(3)] == [True] * 3
        bench.assert_enqueued(t.total, [0, 2, 4])
        assert bench.run_next().result == 6
        assert handle.status() == "done"


# ── handing over from a handler ──────────────────────────────────────────────────────────────────────────────────────


def test_a_handler_hands_over_to_what_it_finds(tasks):
    t = tasks

    @t.app.task(name="crawl", max_attempts=2)
    def crawl(pages: int) -> int:
        job = current_job()
        job.then(group([t.double.s(page) for page in range(pages)]).then(t.total.s()))
        job.then(t.shout.s("found"))
        if job.attempt == 1:
            raise Retry(after=0)  # what was handed over to is not enqueued
        return pages

    with t.app.worker(concurrency=1):
        assert crawl.delay(5).result(60) == 5
        queue, sums = t.app.store.queue("default"), t.app.store.queue("sums")
        until(lambda: (queue.counts().done, sums.counts().done) == (7, 1))
    assert queue.counts().enqueued == 1 + 5 + 1
    (total,) = sums.list("done")
    assert total.result == b"20"


def test_a_hand_over_that_is_refused_fails_the_delivery(tasks):
    t = tasks
    t.app.store.queue("sums").configure(Policy(max_waiting=1))

    @t.app.task(name="crawl", max_attempts=1)
    def crawl(pages: int) -> None:
        for _ in range(pages):
            current_job().then(t.total.s([1]))

    with t.app.worker(["default"], concurrency=1):
        with pytest.raises(TaskFailed, match="its follow-up jobs could not be enqueued"):
            crawl.delay(2).result(60)
        with pytest.raises(TaskFailed, match="the number of jobs in then"):
            crawl.delay(1001).result(60)
    assert t.app.store.queue("sums").counts().enqueued == 0


def test_a_process_hands_over(tmp_path, monkeypatch, trace):
    apps.app.use(f"rocksdb:{tmp_path / 'store'}")
    try:
        with apps.app.worker(["default"], concurrency=1, pool="process"):
            apps.hand_over.delay(["a", "b"]).result(60)
            until(lambda: len(trace()) == 3)
        assert sorted(words[1] for words in trace()) == ["a", "b", "b"]
    finally:
        apps.app.use("memory:")


def test_a_plain_call_hands_over_at_once():
    with App("memory:", inline=True) as app:
        seen: list[str] = []

        @app.task(name="note")
        def note(word: str) -> None:
            seen.append(word)

        @app.task(name="both")
        def both() -> None:
            current_job().then(note.s("then"))

        both.delay().result()
        assert seen == ["then"]
