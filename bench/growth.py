"""Growth: the cost of a life in large stores. Each population is a separate process; rounds are in turn.

Costs are microseconds a job, so here a ratio above 1 is worse.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack

from bench.population import Child, Population, open_seconds
from bench.rows import Row, Setting, paired_ratio, percentile, spread
from bench.runner import Run, Section

_STAGES = ("enqueue", "claim", "ack")
_LOOKS = ("list", "sweep")
_WITHIN, _MEMORY, _CLEAN_S, _KILLED_S = 1.3, 300 << 20, 2.0, 3.0


def waiting(run: Run) -> Iterator[Row]:
    """Measure 10 thousand and a million (10 million) waiting jobs; memory; opening after a clean close and after kill
    -9.
    """
    counts = run.pick((100, 200), (10_000, 1_000_000), (10_000, 1_000_000, 10_000_000))
    name = "growth-waiting"
    with ExitStack() as stack:
        children = _fill(run, stack, [Population(f"{count:,} waiting", waiting=count) for count in counts])
        yield from _factors(run, name, children, [0] * len(children))
        for child in children:
            yield _memory(name, child, target=child is children[-1])
        yield from _reopened(name, children[-1])


def _reopened(name: str, child: Child) -> Iterator[Row]:
    """Measure opening after a kill in the middle of work, and after a close."""
    setting = Setting("os", None, clients=None)
    what = child.population.name
    child.ask("lives", seconds=0.2)
    child.kill()
    killed = open_seconds(child.path)
    clean = open_seconds(child.path)  # the first open closed it cleanly
    for how, seconds, limit in (("a clean close", clean, _CLEAN_S), ("kill -9", killed, _KILLED_S)):
        row = Row(name, f"{what}: open after {how}, to the first claim", setting, seconds, "s")
        yield row.expect(f"< {limit:g} s", seconds < limit)


def shapes(run: Run) -> Iterator[Row]:
    """Measure delayed jobs, many queues, all priorities: each with few jobs and with many.

    A batch of mixed priorities is one segment per priority, so its lives cost more than those of plain jobs, however few
    there are: the cost of a shape must not grow with the number of jobs. 1,000 queues are also compared with one.
    """
    few, many = run.pick(100, 10_000, 10_000), run.pick(200, 1_000_000, 1_000_000)
    queues = run.pick(2, 1000, 1000)
    in_each = 100 * queues  # so that a batch of claims finds enough jobs in a queue
    beside = [
        (Population(f"{few:,} waiting", waiting=few), 0),
        (Population(f"{few:,} waiting, {many:,} delayed", waiting=few, delayed=many), 0),
        (Population(f"{in_each:,} waiting in {queues:,} queues", waiting=in_each, queues=queues), 0),
        (Population(f"{many:,} waiting in {queues:,} queues", waiting=many, queues=queues), 2),
        (Population(f"{few:,} waiting, 10 priorities", waiting=few, priorities=10), 4),
        (Population(f"{many:,} waiting, 10 priorities", waiting=many, priorities=10), 4),
    ]
    name = "growth-shapes"
    bases = [base for _, base in beside]
    with ExitStack() as stack:
        children = _fill(run, stack, [population for population, _ in beside])
        yield from _factors(run, name, children, bases)
        took: list[list[float]] = [[] for _ in children]
        for _ in range(run.rounds):
            for index, child in enumerate(children):
                took[index] += child.ask("claims", samples=run.pick(5, 100, 200))["ms"]
        for index, child in enumerate(children):
            yield from _claim_latency(child, took[index], took[bases[index]])
            yield _memory(name, child, target=False)


def _factors(run: Run, name: str, children: Sequence[Child], bases: Sequence[int]) -> Iterator[Row]:
    """Return the costs of each population's verbs, compared with those of its base population."""
    costs = _rounds(run, children)
    for index, child in enumerate(children):
        for row in _costs(name, child, costs[index], costs[bases[index]], (*_STAGES, *_LOOKS)):
            yield row if row.ratio is None else row.expect(f"<= {_WITHIN}", row.ratio <= _WITHIN)


def _claim_latency(child: Child, took: list[float], base: list[float]) -> Iterator[Row]:
    for name, part in (("p50", 0.5), ("p99", 0.99)):
        row = Row(
            "growth-shapes", f"{child.population.name}: a claim of one, {name}", Setting("os", 1),
            percentile(took, part), "ms", min(took), max(took),
        )  # fmt: skip
        if took is not base:
            row.ratio, row.ratio_of = percentile(took, part) / percentile(base, part), "cost to its base"
        yield row


def payloads(run: Run) -> Iterator[Row]:
    """Measure payloads of 128 B, 4 KiB and 256 KiB (in parts of 64 KiB)."""
    waiting_jobs = run.pick(10, 1000, 1000)
    populations = [
        Population("128 B", waiting=waiting_jobs, payload=128),
        Population("4 KiB", waiting=waiting_jobs, payload=4 * 1024),
        Population("256 KiB", waiting=min(waiting_jobs, 100), payload=256 * 1024, batch=run.pick(2, 10, 10)),
    ]
    with ExitStack() as stack:
        children = _fill(run, stack, populations)
        costs = _rounds(run, children)
        for child, cost in zip(children, costs, strict=True):
            rows = list(_costs("growth-payload", child, cost, costs[0]))
            a_job = sum(row.value or 0 for row in rows)
            rows[
                0
            ].note = f"{1e6 / a_job:,.0f} lives/s, {child.population.payload / a_job / 1.048576:,.1f} MiB/s of payload"
            yield from rows


# ── common ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _fill(run: Run, stack: ExitStack, populations: Sequence[Population]) -> list[Child]:
    children = []
    for population in populations:
        child = Child(run.new_folder("population"), population)
        stack.callback(child.kill)
        run.say(f"{population.name}: filled in {child.wait_filled():.1f} s")
        children.append(child)
    return children


def _rounds(run: Run, children: Sequence[Child]) -> list[list[list[float]]]:
    """Return [child][verb][round] in microseconds: enqueue, claim and ack for a job, list and sweep for a call."""
    costs: list[list[list[float]]] = [[[] for _ in (*_STAGES, *_LOOKS)] for _ in children]
    for turn in range(run.rounds + 1):
        for step in range(len(children)):
            index = (turn + step) % len(children)
            found = children[index].ask("lives", seconds=run.seconds)["us"]
            found += children[index].ask("looks", samples=run.pick(2, 20, 20))["us"]
            if turn:  # the first round warms up
                for verb, cost in enumerate(found):
                    costs[index][verb].append(cost)
    return costs


def _costs(
    name: str, child: Child, costs: list[list[float]], base: list[list[float]], verbs: Sequence[str] = _STAGES
) -> Iterator[Row]:
    population = child.population
    for stage, label in enumerate(verbs):
        middle, low, high = spread(costs[stage])
        row = Row(
            name, f"{population.name}: {label}", Setting("os", population.batch, population.payload),
            middle, "µs a job" if label in _STAGES else "µs", low, high,
        )  # fmt: skip
        if costs is not base:
            row.ratio, row.ratio_of = paired_ratio(costs[stage], base[stage]), "cost to its base"
        yield row


def _memory(name: str, child: Child, *, target: bool) -> Row:
    used = float(child.ask("memory")["bytes"])
    row = Row(name, f"{child.population.name}: resident memory", Setting("os", None, clients=None), used / 2**20, "MiB")
    if target:
        row.expect("< 300 MiB", used < _MEMORY)
    return row


_RATIO = "cost to that of the population it grew from, or of the first: above 1 is slower"
_About = tuple[str, str, Callable[[Run], Iterator[Row]]]
_SECTIONS: list[_About] = [
    ("growth-waiting", "many waiting jobs: lives of batches of 100, memory, opening", waiting),
    ("growth-shapes", "delayed jobs ahead in time, many queues, all priorities", shapes),
    ("growth-payload", "larger payloads", payloads),
]
SECTIONS = [Section(name, about, _RATIO, rows) for name, about, rows in _SECTIONS]
