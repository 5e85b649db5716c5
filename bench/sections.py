"""The sections of a run, in the order of the report."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Literal

from bench import (
    concurrency,
    growth,
    latency,
    prototype_segments,
    redis,
    remote,
    spark_history,
    spark_in,
    spark_out,
    tasks,
)
from bench.bare import Bare
from bench.lives import Contender, Lived, compare
from bench.ours import Ours
from bench.peers import ALL, BATCHED, Opener
from bench.peers.server_process import Missing
from bench.rows import Row, Setting, paired_ratio, spread
from bench.runner import Run, Section

Durability = Literal["os", "disk"]
#: Targets for Tenure's ratio to a contender: (section, contender) -> the least, and the next mark.
_LEAST: dict[tuple[str, str], tuple[float, ...]] = {
    ("batches-os", "bare layout"): (0.65,),
    ("batches-os", "Valkey streams"): (2.5,),
    ("batches-disk", "Valkey streams"): (2.0,),
    ("batches-disk", "PostgreSQL SKIP LOCKED"): (2.0,),
    ("singles-os", "bare layout"): (0.6,),
    ("singles-disk", "beanstalkd"): (1.0,),
    ("singles-disk", "litequeue (SQLite)"): (1.0,),
    ("singles-disk", "Huey (SQLite)"): (0.8,),
    ("clients-disk", "Valkey streams"): (2.0,),
    ("clients-disk", "PostgreSQL SKIP LOCKED"): (2.0,),
}


def lives(name: str, setting: Setting, peers: dict[str, Opener], *, bare: bool) -> Callable[[Run], Iterator[Row]]:
    """Return a section of lives: Tenure, the bare layout, and these peers, in turn."""
    durability: Durability = "disk" if setting.durability == "disk" else "os"

    def rows(run: Run) -> Iterator[Row]:
        with ExitStack() as stack:
            contenders: list[Contender] = []
            skipped: list[Row] = []

            def add(contender: Contender) -> None:
                stack.callback(contender.close)
                contenders.append(contender)

            for peer, opener in peers.items() if run.size != "quick" else ():
                try:
                    add(opener(run.new_folder(peer), durability))
                except Missing as exc:
                    skipped.append(Row(name, peer, setting, skipped=str(exc)))
            # Tenure last: servers must be started before this process has threads.
            add(Ours(run.new_folder("ours"), durability))
            if bare:
                add(Bare(run.new_folder("bare"), durability))
            lived = compare(contenders, setting, run.rounds, run.seconds)
        ours = next(one for one in lived if one.name.startswith("Tenure"))
        yield _row(name, setting, ours, None)
        for one in lived:
            if one is not ours:
                yield _row(name, setting, one, ours)
        yield from skipped

    return rows


def _row(name: str, setting: Setting, one: Lived, ours: Lived | None) -> Row:
    middle, low, high = spread(one.rates)
    note = f"{one.parts()}; {one.note}" if one.note else one.parts()
    row = Row(name, one.name, setting, middle, "lives/s", low, high, note=note)
    if ours is not None:
        row.ratio = paired_ratio(ours.rates, one.rates)
        row.ratio_of = "Tenure / this"
        least = _LEAST.get((name, one.name), ())
        if name == "singles-os" and not least:
            row.expect("> 1", row.ratio > 1)
        for place, wanted in enumerate(least):
            row.expect(f">= {wanted:g}", row.ratio >= wanted, must=place == 0)
    return row


_LIVES = "Tenure / this one, the median of the rounds' ratios"
SECTIONS = [
    Section(
        "batches-os",
        "a life (enqueue, claim, ack) in batches of 100, one client, `os`",
        _LIVES,
        lives("batches-os", Setting("os", 100), BATCHED, bare=True),
    ),
    Section(
        "batches-disk",
        "a life in batches of 100, one client, `disk`",
        _LIVES,
        lives("batches-disk", Setting("disk", 100), BATCHED, bare=True),
    ),
    Section(
        "singles-os", "a life, one job at a time, `os`", _LIVES, lives("singles-os", Setting("os", 1), ALL, bare=True)
    ),
    Section(
        "singles-disk",
        "a life, one job at a time, `disk`",
        _LIVES,
        lives("singles-disk", Setting("disk", 1), ALL, bare=True),
    ),
    Section(
        "clients-disk",
        "lives in batches of 100 by 8 clients at once, `disk`",
        _LIVES,
        lives(
            "clients-disk",
            Setting("disk", 100, clients=8, kind="thread"),
            {name: BATCHED[name] for name in ("valkey", "postgres")},
            bare=False,
        ),
    ),
    Section(
        "group-commit",
        "threads committing single jobs at `disk`: commits grouped into one sync",
        "commits a second, to 1 thread's",
        concurrency.group_commit,
    ),
    Section("lmdb", "LMDB: lives in batches of 100 by processes, `disk`", "to 1 process", concurrency.lmdb_processes),
    Section("latency", "how long one call takes", "to the target, where there is one", latency.rows),
    tasks.SECTION,
    *growth.SECTIONS,
    *redis.SECTIONS,
    *remote.SECTIONS,
    prototype_segments.SECTION,
    spark_out.SECTION,
    spark_in.SECTION,
    spark_history.SECTION,
]
