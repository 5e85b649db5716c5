"""Growth: what a life costs when there is much of everything. Each population is a process of its own; rounds are in turn.

Costs are microseconds a job, so here a ratio above 1 is worse.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack

from bench.population import Child, Population, open_seconds
from bench.rows import Row, Setting, paired_ratio, percentile, spread
from bench.runner import Run, Section

_STAGES = ("enqueue", "claim", "ack")
_WITHIN, _MEMORY, _CLEAN_S, _KILLED_S = 1.3, 2**30, 2.0, 10.0


def waiting(run: Run) -> Iterator[Row]:
    """10 thousand and a million (10 million) waiting; memory; opening after a clean close and after kill -9."""
    counts = run.pick((100, 200), (10_000, 1_000_000), (10_000, 1_000_000, 10_000_000))
    name = "growth-waiting"
    with ExitStack() as stack:
        children = _fill(run, stack, [Population(f"{count:,} waiting", waiting=count) for count in counts])
        costs = _rounds(run, children)
        for child, cost in zip(children, costs, strict=True):
            largest = child is children[-1]
            for stage, row in zip(_STAGES, _costs(name, child, cost, costs[0]), strict=True):
                if largest and stage != "ack" and row.ratio is not None:
                    row.expect(f"<= {_WITHIN}", row.ratio <= _WITHIN)
                yield row
            yield _memory(name, child, target=largest)
        yield from _reopened(name, children[-1])


def _reopened(name: str, child: Child) -> Iterator[Row]:
    """Killed in the middle of its work, opened; closed, opened."""
    setting = Setting("os", None, clients=None)
    what = child.population.name
    child.ask("lives", seconds=0.2)
    child.kill()
    killed = open_seconds(child.path)
    clean = open_seconds(child.path)  # the first one closed it
    for how, seconds, limit in (("a clean close", clean, _CLEAN_S), ("kill -9", killed, _KILLED_S)):
        row = Row(name, f"{what}: open after {how}, to the first claim", setting, seconds, "s")
        yield row.expect(f"< {limit:g} s", seconds < limit)


def shapes(run: Run) -> Iterator[Row]:
    """Delayed jobs ahead in time, many queues, all priorities: each beside a plain queue of ten thousand."""
    base = run.pick(100, 10_000, 10_000)
    delayed = run.pick(200, 1_000_000, 1_000_000)
    queues = run.pick(10, 1000, 1000)
    populations = [
        Population(f"{base:,} waiting", waiting=base),
        Population(f"{delayed:,} delayed", delayed=delayed),
        Population(f"{queues:,} queues", waiting=base, queues=queues),
        Population("10 priorities", waiting=base, priorities=10),
    ]
    with ExitStack() as stack:
        children = _fill(run, stack, populations)
        costs = _rounds(run, children)
        took: list[list[float]] = [[] for _ in children]
        for _ in range(run.rounds):
            for index, child in enumerate(children):
                took[index] += child.ask("claims", samples=run.pick(5, 100, 200))["ms"]
        for index, child in enumerate(children):
            yield from _costs("growth-shapes", child, costs[index], costs[0])
            yield from _claim_latency(child, took[index], took[0])


def _claim_latency(child: Child, took: list[float], base: list[float]) -> Iterator[Row]:
    for name, part in (("p50", 0.5), ("p99", 0.99)):
        row = Row(
            "growth-shapes", f"{child.population.name}: a claim of one, {name}", Setting("os", 1),
            percentile(took, part), "ms", min(took), max(took),
        )  # fmt: skip
        if took is not base:
            row.ratio, row.ratio_of = percentile(took, part) / percentile(base, part), "cost to the first"
        yield row


def payloads(run: Run) -> Iterator[Row]:
    """128 B, 4 KiB and 256 KiB (in parts of 64 KiB)."""
    kept = run.pick(10, 1000, 1000)
    populations = [
        Population("128 B", waiting=kept, payload=128),
        Population("4 KiB", waiting=kept, payload=4 * 1024),
        Population("256 KiB", waiting=min(kept, 100), payload=256 * 1024, batch=run.pick(2, 10, 10)),
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
    """[child][stage][round] in microseconds a job."""
    costs: list[list[list[float]]] = [[[] for _ in _STAGES] for _ in children]
    for turn in range(run.rounds + 1):
        for step in range(len(children)):
            index = (turn + step) % len(children)
            found = children[index].ask("lives", seconds=run.seconds)["us"]
            if turn:  # the first warms up
                for stage, cost in enumerate(found):
                    costs[index][stage].append(cost)
    return costs


def _costs(name: str, child: Child, costs: list[list[float]], base: list[list[float]]) -> Iterator[Row]:
    population = child.population
    for stage, label in enumerate(_STAGES):
        middle, low, high = spread(costs[stage])
        row = Row(
            name, f"{population.name}: {label}", Setting("os", population.batch, population.payload),
            middle, "µs a job", low, high,
        )  # fmt: skip
        if costs is not base:
            row.ratio, row.ratio_of = paired_ratio(costs[stage], base[stage]), "cost to the first"
        yield row


def _memory(name: str, child: Child, *, target: bool) -> Row:
    used = float(child.ask("memory")["bytes"])
    row = Row(name, f"{child.population.name}: resident memory", Setting("os", None, clients=None), used / 2**20, "MiB")
    if target:
        row.expect("< 1 GiB", used < _MEMORY)
    return row


_RATIO = "cost to the first population's: above 1 is slower"
_About = tuple[str, str, Callable[[Run], Iterator[Row]]]
_SECTIONS: list[_About] = [
    ("growth-waiting", "many waiting jobs: lives of batches of 100, memory, opening", waiting),
    ("growth-shapes", "delayed jobs ahead in time, many queues, all priorities", shapes),
    ("growth-payload", "larger payloads", payloads),
]
SECTIONS = [Section(name, about, _RATIO, rows) for name, about, rows in _SECTIONS]
