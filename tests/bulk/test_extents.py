"""Cutting by what is known without reading: every key in one part, and parts of about one size."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import tenure
from tenure.bulk import plan as planning
from tenure.bulk.extents import spread
from tenure.bulk.plan import Part, plan, read
from tenure.bulk.query import Query
from tenure.bulk.snapshots import view_of
from tenure.storage import keyspace
from tenure.storage.engine import Extent

EVERYTHING = [(b"", keyspace.LAST)]


def key(number: int) -> bytes:
    return number.to_bytes(20, "big")


def joined(parts: list[tuple[tuple[bytes, bytes], ...]]) -> list[tuple[bytes, bytes]]:
    """The ranges of all parts, those that meet as one."""
    made: list[tuple[bytes, bytes]] = []
    for begin, end in (found for part in parts for found in part):
        assert begin < end
        if made and made[-1][1] == begin:
            made[-1] = (made[-1][0], end)
        else:
            made.append((begin, end))
    return made


def test_an_even_extent_is_cut_evenly() -> None:
    known = spread([Extent(key(1000), key(1999), 1000)], EVERYTHING)
    assert round(known.rows) == 1000
    cuts = [int.from_bytes(part[-1][1]) for part in known.cut(4)[:-1]]
    assert cuts == [1250, 1500, 1750]


def test_extents_over_each_other_count_together_and_one_key_is_as_many_rows_as_it_says() -> None:
    extents = [Extent(key(0), key(99), 100), Extent(key(50), key(99), 100), Extent(key(2**90), key(2**90), 1)]
    known = spread(extents, EVERYTHING)
    assert known.rows == pytest.approx(201, abs=0.01)
    first, *_ = known.cut(3)
    assert int.from_bytes(first[-1][1]) == pytest.approx(56, abs=1)  # 50 rows up to there, then three a key


@pytest.mark.parametrize("seed", range(20))
def test_no_key_is_left_out_or_in_two_parts(seed: int) -> None:
    chance = random.Random(seed)
    ends = [sorted(chance.sample(range(2**40), 2)) for _ in range(chance.randrange(1, 30))]
    extents = [Extent(key(a), key(b), chance.randrange(1, 10_000)) for a, b in ends]
    marks = sorted(chance.sample(range(2**40), 6))
    ranges = chance.choice([EVERYTHING, [(key(marks[0]), key(marks[1])), (key(marks[2]), key(marks[5]))]])
    known = spread(extents, ranges)
    wanted = chance.randrange(1, 50)
    parts = known.cut(wanted) if known.rows else []
    if parts:
        assert joined(parts) == ranges
        assert len(parts) <= wanted


@pytest.mark.parametrize("engine", ["rocksdb", "lmdb", "memory"])
def test_many_jobs_are_cut_by_the_engines_files(engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "_EXACT", 100)
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    url = "memory:" if engine == "memory" else f"{engine}:{tmp_path}/data"
    with tenure.open(url, durability="os" if engine != "memory" else "memory", sweep=False) as store:
        for name in ("a", "b", "c"):
            for _ in range(10):
                store.queue(name).enqueue_many([b"x" * 50] * 40)
        with view_of(store) as moment:
            for query in (Query("jobs", ("id",)), Query("jobs", ("id", "payload"), queue="b")):
                parts = plan(moment, query, 100)
                assert all(isinstance(part, Part) for part in parts)
                ids = [row for part in parts for batch in read(moment, query, part) for row in batch["id"].to_pylist()]
                count = 400 if query.queue else 1200
                assert len(ids) == len(set(ids)) == count
                assert len(parts) == count // 100
