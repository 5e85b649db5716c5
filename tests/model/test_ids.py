"""Ids grow strictly, whatever the clock does, and are valid UUIDs of version 7."""

from __future__ import annotations

import threading
from itertools import pairwise
from uuid import RFC_4122, UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.errors import InvalidArgument
from tenure.model.ids import MARKS, IdSource, created_ms, job_id_bytes, marked_queue, queue_mark

moments = st.integers(1, 2**47) | st.integers(1_800_000_000_000, 1_800_000_000_005)


@given(st.lists(st.tuples(moments, st.integers(1, 30)), min_size=1, max_size=20))
def test_ids_grow_whatever_the_clock_does(calls: list[tuple[int, int]]) -> None:
    source = IdSource()
    made: list[bytes] = []
    latest = 0
    for now_ms, count in calls:
        taken = source.take(now_ms, count)
        assert len(taken) == count
        made += taken
        latest = max(latest, now_ms)
        assert {created_ms(raw) for raw in taken} == {latest}, "an id tells the latest time its source was told"
    assert all(before < after for before, after in pairwise(made))


@given(moments, st.integers(1, 2000))
def test_ids_are_uuids_of_version_7(now_ms: int, count: int) -> None:
    for raw in IdSource().take(now_ms, count):
        read = UUID(bytes=raw)
        assert (read.version, read.variant) == (7, RFC_4122)
        assert read.int >> 80 == now_ms


def test_ids_stay_valid_when_a_millisecond_is_used_up() -> None:
    """After millions of ids in one millisecond the next millisecond is used."""
    source = IdSource()
    before = source.take(1000, 2)[1]
    source._low = (1 << 63 | 1 << 55) + 5
    after = source.one(1000)
    assert after > before
    assert created_ms(after) == 1001
    assert UUID(bytes=after).variant == RFC_4122
    assert source.one(1001) > after


def test_ids_grow_however_they_are_asked_for() -> None:
    """Single ids and batches, with a clock that moves, stands still and steps back."""
    source = IdSource()
    made: list[bytes] = []
    for turn in range(3000):
        now_ms = 1000 + turn // 100 - (5 if turn % 7 == 0 else 0)
        made += source.take(now_ms, 3) if turn % 11 == 0 else [source.one(now_ms)]
    assert made == sorted(set(made))
    assert all(UUID(bytes=raw).variant == RFC_4122 for raw in made)


def test_threads_never_get_the_same_id_one_by_one() -> None:
    source = IdSource()
    found: list[list[bytes]] = [[] for _ in range(8)]

    def take(mine: list[bytes]) -> None:
        for turn in range(2000):
            mine.append(source.one(1000 + turn // 500))
            if turn % 50 == 0:
                mine.extend(source.take(1000, 2))

    threads = [threading.Thread(target=take, args=(mine,)) for mine in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(mine == sorted(mine) for mine in found)
    every = [raw for mine in found for raw in mine]
    assert len(set(every)) == len(every)


def test_sources_do_not_share_ids() -> None:
    made = [raw for _ in range(200) for raw in IdSource().take(1000, 5)]
    assert len(set(made)) == 1000


def test_threads_never_get_the_same_id() -> None:
    source = IdSource()
    found: list[list[bytes]] = [[] for _ in range(8)]

    def take(mine: list[bytes]) -> None:
        for _ in range(300):
            mine.extend(source.take(1000, 3))

    threads = [threading.Thread(target=take, args=(mine,)) for mine in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(mine == sorted(mine) for mine in found)
    assert len({raw for mine in found for raw in mine}) == 8 * 900


@given(st.binary(min_size=16, max_size=16))
def test_an_id_is_read_as_hex_or_as_a_uuid(raw: bytes) -> None:
    for written in (raw.hex(), raw.hex().upper(), str(UUID(bytes=raw))):
        assert job_id_bytes(written) == raw


@pytest.mark.parametrize(
    "wrong", [None, 17, b"0" * 32, "", "0" * 31, "0" * 33, "g" * 32, "0" * 36, "-" * 32, " " * 32, "é" * 32, "０" * 32]
)
def test_what_is_no_id_is_refused(wrong: object) -> None:
    with pytest.raises(InvalidArgument):
        job_id_bytes(wrong)


@given(st.text(max_size=40))
def test_whatever_is_read_as_an_id_is_16_bytes(text: str) -> None:
    try:
        raw = job_id_bytes(text)
    except InvalidArgument:
        return
    assert len(raw) == 16


def test_an_id_with_a_queues_mark_stays_one_of_a_kind_and_in_order() -> None:
    """The counter never reaches the bits of the queue's mark, however long the clock stands still."""
    source = IdSource()
    for queue in (1, 77, MARKS - 1, MARKS, MARKS + 5, 2**32 - 1):
        mark = queue_mark(queue)
        ids = [raw[:6] + mark + raw[9:] for _ in range(100) for raw in source.take(1000, 7)]
        assert ids == sorted(set(ids))
        assert {marked_queue(raw) for raw in ids} == {queue % MARKS}
        assert {UUID(bytes=raw).version for raw in ids} == {7}
        assert {UUID(bytes=raw).variant for raw in ids} == {RFC_4122}
    source._low = (1 << 63 | 1 << 55) - 1
    assert max(raw[8] & 0x3F for raw in source.take(1000, 100_000)) == 0
