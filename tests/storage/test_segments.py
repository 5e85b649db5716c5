"""Segments: readers see the rows that separate jobs would have; a write to one job takes it out of its segment."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from rocksdict import Options, Rdict

import tenure
from tenure import GroupPolicy, NewJob, Policy
from tenure.api.store import Store
from tenure.backends.named_snapshots import open_copy
from tenure.errors import Corrupt
from tenure.storage import keyspace, records
from tenure.storage.engine import Reader, Transaction
from tenure.storage.keyspace import (
    GROUP_READY,
    JOBS,
    LAST,
    READY,
    SEGMENT_GROUPS,
    SEGMENT_READY,
    SEGMENT_STATE,
    SEGMENTS,
    STATE,
)
from tenure.storage.segments import SegmentUse
from tenure.testing.harness import engine_of

SPACES = (JOBS, STATE, READY, GROUP_READY)
SEGMENT_SPACES = (SEGMENTS, SEGMENT_STATE, SEGMENT_READY, SEGMENT_GROUPS)
#: Runs a test with jobs without a group, and with jobs of one group.
with_groups = pytest.mark.parametrize("group", [None, "customer-17"])


def jobs(payloads: Iterable[bytes], group: str | None) -> list[NewJob]:
    return [NewJob(payload, group=group) for payload in payloads]


@pytest.fixture(params=["memory", "rocksdb"])
def store(request: Any, tmp_path: Path) -> Any:
    where = "memory:" if request.param == "memory" else f"rocksdb:{tmp_path / 'data'}"
    with tenure.open(where, sweep=False, durability=None if request.param == "memory" else "os") as opened:
        yield opened
        assert opened.check().clean


def rows(store: Store, space: int) -> list[tuple[bytes, bytes]]:
    """The rows as readers see them."""
    found: list[tuple[bytes, bytes]] = engine_of(store).read(lambda reader: reader.scan(space, b"", LAST, 1 << 20))
    return found


def stored(store: Store, space: int) -> int:
    """The number of stored rows, below the segment layer."""
    count: int = engine_of(store).inner.read(lambda reader: len(reader.keys(space, b"", LAST, 1 << 20)))
    return count


@pytest.mark.parametrize("given", ["payloads", "jobs", "a group"])
def test_a_batch_is_one_record_and_read_as_rows(store: Store, given: str) -> None:
    queue, group = store.queue("work"), "customer-17" if given == "a group" else None
    payloads = [b"%d" % index for index in range(100)]
    ids = [added.id for added in queue.enqueue_many(payloads if given == "payloads" else jobs(payloads, group))]
    assert [stored(store, space) for space in SPACES] == [0, 0, 0, 0]
    assert [stored(store, space) for space in SEGMENT_SPACES] == [1, 1, 1, group is not None]
    assert [len(rows(store, space)) for space in SPACES] == [100, 100, 100, 100 * (group is not None)]
    job = queue.get(ids[41])
    assert job is not None
    assert (job.payload, job.group) == (b"41", group)
    assert job.state == "ready"
    assert [job.id for job in queue.list("ready", limit=1000).jobs] == ids
    assert [event.type for event in queue.timeline(ids[7])] == ["enqueued"]


@with_groups
def test_a_segment_that_is_taken_apart_becomes_the_rows_it_was_read_as(store: Store, group: str | None) -> None:
    queue = store.queue("work")
    sizes = [0, 1, 128, 0, 300] * 8
    ids = [added.id for added in queue.enqueue_many(jobs([bytes(size) for size in sizes], group))]
    before = [rows(store, space) for space in SPACES]
    queue.claim()
    assert [stored(store, space) for space in SEGMENT_SPACES] == [0, 0, 0, 0]
    gone = bytes.fromhex(ids[0])
    without = [[row for row in was if row[0][-16:] != gone] for was in before]
    assert [[row for row in rows(store, space) if row[0][-16:] != gone] for space in SPACES] == without


@with_groups
def test_one_job_leaves_a_segment_and_the_others_stay(store: Store, group: str | None) -> None:
    queue = store.queue("work")
    ids = [added.id for added in queue.enqueue_many(jobs([b"%d" % index for index in range(20)], group))]
    before = [rows(store, space) for space in SPACES]
    gone = set()
    for at in (10, 0, 19, 1, 5):  # in the middle, the first, the last, the new first
        assert queue.cancel(ids[at])
        gone.add(bytes.fromhex(ids[at]))
        assert [stored(store, space) for space in (*SPACES, SEGMENTS, SEGMENT_READY)] == [0, 0, 0, 0, 1, 1]
        without = [[row for row in was if row[0][-16:] not in gone] for was in before]
        assert [rows(store, space) for space in SPACES] == without
        assert store.check().clean
    left = [at for at in range(20) if at not in (10, 0, 19, 1, 5)]
    claim = list(queue.claim(limit=12))
    assert [delivery.payload for delivery in claim] == [b"%d" % at for at in left[:12]]
    for delivery in claim[::3]:
        queue.ack(delivery)
        assert store.check().clean
    assert stored(store, STATE) == 0
    queue.nack(claim[1], "no", delay=0)
    assert [event.type for event in queue.timeline(claim[1].id)] == ["enqueued", "claimed", "retried"]
    open_ones = [delivery for at, delivery in enumerate(claim) if at % 3 and at != 1]
    assert len(queue.ack_many(open_ones).done) == len(open_ones)
    assert [delivery.id for delivery in queue.claim(limit=100)] == [*(ids[at] for at in left[12:]), claim[1].id]


@with_groups
def test_one_job_leaves_a_leased_segment(store: Store, group: str | None) -> None:
    queue = store.queue("work")
    queue.enqueue_many(jobs([b"x" * 50] * 40, group))
    claim = list(queue.claim(limit=40, worker="w"))
    assert stored(store, SEGMENTS) == 1
    assert stored(store, SEGMENT_READY) == 0
    before = [rows(store, space) for space in (JOBS, STATE)]
    queue.fail(claim[5], "no")
    gone = bytes.fromhex(claim[5].id)
    for was, space in zip(before, (JOBS, STATE), strict=True):
        now = [row for row in rows(store, space) if row[0][-16:] != gone]
        assert now == [row for row in was if row[0][-16:] != gone]
    assert store.check().clean
    assert len(queue.ack_many(claim[:5] + claim[6:]).done) == 39


@with_groups
def test_a_part_is_taken_from_the_beginning(store: Store, group: str | None) -> None:
    queue = store.queue("work")
    ids = [added.id for added in queue.enqueue_many(jobs([b"%d" % index for index in range(100)], group))]
    taken = []
    for limit in (30, 8, 50):
        claim = list(queue.claim(limit=limit))
        taken += [delivery.id for delivery in claim]
        assert [delivery.payload for delivery in claim] == [b"%d" % ids.index(delivery.id) for delivery in claim]
        assert store.check().clean
    assert taken == ids[:88]
    assert stored(store, STATE) == 0
    assert stored(store, SEGMENTS) == 4
    assert [job.id for job in queue.list("ready", limit=100).jobs] == ids[88:]
    assert [event.type for event in queue.timeline(ids[31])] == ["enqueued", "claimed"]
    rest = list(queue.claim(limit=1000))
    assert [delivery.id for delivery in rest] == ids[88:]
    assert len(queue.ack_many(rest).done) == 12


def test_a_batch_of_several_priorities_is_one_record_for_each(store: Store) -> None:
    queue = store.queue("work")
    given = [NewJob(b"%d" % n, priority=n % 10) for n in range(100)]
    ids = [added.id for added in queue.enqueue_many(given)]
    assert len(set(ids)) == 100
    assert [stored(store, space) for space in SPACES] == [0, 0, 0, 0]
    assert [stored(store, space) for space in SEGMENT_SPACES] == [10, 10, 10, 0]
    for job_id, job in zip(ids, given, strict=True):  # each answer is that of its own job
        found = queue.get(job_id)
        assert found is not None
        assert (found.payload, found.priority) == (job.payload, job.priority)
    expected = sorted(given, key=lambda job: -job.priority)  # by priority, and in the order of the call within one
    first = queue.claim(47)
    assert [(d.payload, d.priority) for d in first] == [(job.payload, job.priority) for job in expected[:47]]
    assert not any(
        stored(store, space) for space in SPACES
    )  # seven of the last one were copied into a segment of their own
    assert queue.ack_many(first).done == [d.id for d in first]
    rest = queue.claim(100)
    assert [d.payload for d in rest] == [job.payload for job in expected[47:]]
    assert queue.ack_many(rest).done == [d.id for d in rest]
    assert not any(stored(store, space) for space in SEGMENT_SPACES)


def test_few_jobs_of_a_priority_are_rows_beside_the_segments_of_others(store: Store) -> None:
    queue = store.queue("work")
    given = [NewJob(b"%d" % n, priority=9 if n % 30 == 7 else n % 2) for n in range(100)]
    ids = [added.id for added in queue.enqueue_many(given)]
    assert [stored(store, space) for space in SPACES] == [4, 4, 4, 0]
    assert stored(store, SEGMENT_STATE) == 2
    assert [queue.get(job).payload for job in ids] == [job.payload for job in given]  # type: ignore[union-attr]
    claim = queue.claim(100)
    assert [d.payload for d in claim] == [job.payload for job in sorted(given, key=lambda job: -job.priority)]
    assert len(queue.ack_many(claim).done) == 100


def test_a_batch_that_starts_in_a_journal_row_is_not_cut_into_few(store: Store) -> None:
    """The event of the queue's making leaves room for 999 in its row of the journal: the last job is no segment alone."""
    queue = store.queue("work")
    queue.enqueue_many([NewJob(b"x", priority=n % 10) for n in range(1000)])
    assert [stored(store, space) for space in SPACES] == [0, 0, 0, 0]
    assert stored(store, SEGMENT_STATE) == 10


def test_several_groups_and_priorities_in_one_batch(store: Store) -> None:
    queue = store.queue("work")
    given = [NewJob(b"%d" % n, priority=n % 2, group=["a", "b", None][n % 3]) for n in range(96)]
    ids = [added.id for added in queue.enqueue_many(given)]
    assert [stored(store, space) for space in SPACES] == [0, 0, 0, 0]
    assert [stored(store, space) for space in SEGMENT_SPACES] == [6, 6, 6, 4]
    found = [queue.get(job) for job in ids]
    assert [(job.payload, job.priority, job.group) for job in found if job] == [
        (job.payload, job.priority, job.group) for job in given
    ]
    claim = queue.claim(48)
    assert {d.priority for d in claim} == {1}
    assert [d.group for d in claim.deliveries[:6]].count(None) == 2  # the groups took turns
    for group in ("a", "b", None):
        assert [int(d.payload) for d in claim if d.group == group] == [
            n for n, job in enumerate(given) if job.priority == 1 and job.group == group
        ]
    assert not any(stored(store, space) for space in SPACES)
    assert len(queue.ack_many(claim).done) == 48
    assert len(queue.ack_many(queue.claim(100)).done) == 48


@with_groups
def test_one_claim_of_several_and_one_ack(store: Store, group: str | None) -> None:
    queue = store.queue("work")
    ids = [added.id for _ in range(3) for added in queue.enqueue_many(jobs([b"x"] * 20, group))]
    claim = list(queue.claim(limit=60))
    assert [delivery.id for delivery in claim] == ids
    assert {delivery.group for delivery in claim} == {group}
    assert stored(store, STATE) == 0
    assert len(queue.ack_many(claim).done) == 60
    assert [stored(store, space) for space in (*SEGMENT_SPACES, JOBS, STATE)] == [0] * 6
    assert [event.type for event in queue.timeline(ids[33])] == ["enqueued", "claimed", "done"]
    assert queue.counts().removed == 60


@with_groups
@pytest.mark.parametrize(("most", "taken", "whole"), [(1000, 100, True), (999, 99, False)])
def test_a_claim_with_a_bound_on_bytes_takes_it_whole_if_it_fits(
    store: Store, most: int, taken: int, whole: bool, group: str | None
) -> None:
    """As in every claim through a server: it gets the jobs that separate rows would give."""
    queue = store.queue("work")
    ids = [added.id for added in queue.enqueue_many(jobs([b"ten bytes!"] * 100, group))]
    claim = queue.claim(limit=100, max_bytes=most)
    assert [delivery.id for delivery in claim] == ids[:taken]
    assert (stored(store, STATE) == 0) == whole
    assert len(queue.ack_many(claim.deliveries).done) == taken


@with_groups
def test_jobs_between_segments_are_claimed_in_order(store: Store, group: str | None) -> None:
    """A job of higher priority, an older job, and a job between two batches are claimed in order."""
    queue = store.queue("work")
    first = queue.enqueue(b"first", group=group).id
    some = [added.id for added in queue.enqueue_many(jobs([b"x"] * 10, group))]
    between = queue.enqueue(b"between", group=group).id
    more = [added.id for added in queue.enqueue_many(jobs([b"x"] * 10, group))]
    urgent = queue.enqueue(b"urgent", priority=9, group=group).id
    order = [delivery.id for limit in (9, 9, 9) for delivery in queue.claim(limit=limit)]
    assert order == [urgent, first, *some, between, *more]


def test_single_claims_take_it_apart_once(store: Store) -> None:
    queue = store.queue("work")
    ids = [added.id for added in queue.enqueue_many([b"x"] * 20)]
    seen = []
    for _ in range(20):
        delivery = queue.claim()[0]
        seen.append(delivery.id)
        queue.ack(delivery)
    assert seen == ids


def test_a_queue_that_takes_its_batches_apart_is_given_rows(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SegmentUse, "RESTS", 3)
    queue, other = store.queue("work"), store.queue("other")
    made = []
    for _ in range(6):
        queue.enqueue_many([b"x"] * 10)
        made.append(stored(store, SEGMENTS))
        for delivery in queue.claim(limit=10):
            queue.ack(delivery)
    assert made == [1, 0, 0, 0, 1, 0]
    other.enqueue_many([b"x"] * 10)
    assert stored(store, SEGMENTS) == 1


def test_a_failed_job_now_and_then_changes_nothing(store: Store) -> None:
    queue = store.queue("work")
    for turn in range(40):
        queue.enqueue_many([b"x"] * 10)
        assert stored(store, SEGMENTS) == 1, turn
        claim = list(queue.claim(limit=10))
        if turn % 10 == 9:
            queue.fail(claim.pop(), "no")
        queue.ack_many(claim)


@pytest.mark.parametrize("plain", [NewJob(b"x", priority=1), NewJob(b"x", delay=5), NewJob(b"x", key="k"), b"x" * 9000])
def test_jobs_that_are_not_plain_or_too_large_have_rows(store: Store, plain: Any) -> None:
    queue = store.queue("work")
    queue.enqueue_many([b"x"] * 10 + [plain])
    assert stored(store, SEGMENTS) == 0
    assert stored(store, JOBS) >= 10


def test_a_large_batch_is_several_segments(store: Store) -> None:
    queue = store.queue("work")
    ids = [added.id for added in queue.enqueue_many([b"%d" % index for index in range(2500)])]
    assert stored(store, JOBS) == 0
    assert stored(store, SEGMENTS) == 26  # ten for each row of the journal, in which the queue has an event too
    claim = list(queue.claim(limit=2000))
    assert [delivery.id for delivery in claim] == ids[:2000]
    assert len(queue.ack_many(claim).done) == 2000


def test_segments_survive_the_process(tmp_path: Path) -> None:
    url = f"rocksdb:{tmp_path / 'data'}"
    with tenure.open(url, sweep=False) as store:
        queue = store.queue("work")
        ids = [added.id for added in queue.enqueue_many([b"x"] * 30)]
        held = [delivery.receipt for delivery in queue.claim(limit=10, lease=600)]
    with tenure.open(url, sweep=False) as store:
        queue = store.queue("work")
        assert store.check().clean
        assert queue.counts().leased == 10
        assert queue.counts().ready == 20
        assert queue.ack_many(held).done == ids[:10]
        assert [delivery.id for delivery in queue.claim(limit=100)] == ids[10:]


def test_segments_that_were_read_ahead_are_as_they_are_stored(tmp_path: Path) -> None:
    """Claims of an opened store read the segments that come next; what changes in them meanwhile counts."""
    with tenure.open(f"rocksdb:{tmp_path}/data", sweep=False) as store:
        for _ in range(30):
            store.queue("work").enqueue_many([b"x"] * 100)
        ids = [job.id for job in store.queue("work").list("ready", 3000).jobs]
    with tenure.open(f"rocksdb:{tmp_path}/data", sweep=False) as store:
        queue = store.queue("work")
        recent = engine_of(store)._segments.recent
        claimed: list[str] = []
        for number in range(1, 21):
            claim = queue.claim(100)
            claimed += [delivery.id for delivery in claim]
            if number == 8:  # 1, 2 and 4 were read, and now 8
                for each in (800, 950, 1100):
                    assert recent.find(b"\0\0\0\1" + bytes.fromhex(ids[each // 100 * 100])) is not None
                    queue.cancel(ids[each])
            queue.ack_many(claim.deliveries[:50])
        wanted = [each for each in ids if each not in (ids[800], ids[950], ids[1100])]
        assert claimed == wanted[: len(claimed)]
        assert store.check().clean


def test_a_store_from_before_segments_opens(tmp_path: Path) -> None:
    """It lacks the spaces of segments, and opens without an upgrade; so does a copy of it."""
    url, path = f"rocksdb:{tmp_path / 'data'}", tmp_path / "data" / "db"
    with tenure.open(url, sweep=False) as store:
        queue = store.queue("work")
        for _ in range(10):
            queue.enqueue(b"x")
    new = [keyspace.NAMES[space] for space in keyspace.SEGMENT_SPACES]
    raw = Rdict(str(path), Options(raw_mode=True), {name: Options(raw_mode=True) for name in keyspace.NAMES})
    for name in new:
        raw.drop_column_family(name)
    raw.close()
    shutil.copytree(path.parent, tmp_path / "copy")
    with open_copy(tmp_path / "copy") as copy:
        assert len(copy.scan(STATE, b"", LAST, 100)) == 10
    with tenure.open(url, sweep=False) as store:
        queue = store.queue("work")
        queue.enqueue_many([b"x"] * 20)
        assert store.check().clean
        assert stored(store, SEGMENTS) == 1
        assert len(queue.claim(limit=30)) == 30


# ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _mixed(store: Store, chance: random.Random) -> None:
    """Two queues with complete, partly claimed and leased segments, and single jobs between them."""
    for name in ("one", "two"):
        queue = store.queue(name)
        for _ in range(6):
            group = chance.choice((None, "a", "b"))
            queue.enqueue_many(jobs([b"x" * chance.randrange(40) for _ in range(chance.randrange(8, 40))], group))
            if chance.random() < 0.6:
                queue.enqueue(b"alone", group=group)
            if chance.random() < 0.4:
                for delivery in queue.claim(limit=chance.randrange(1, 30)):
                    if chance.random() < 0.2:
                        queue.ack(delivery)
            for job in queue.list("ready", limit=50).jobs:
                if chance.random() < 0.1:
                    queue.cancel(job.id)


@pytest.mark.parametrize("seed", range(6))
def test_every_kind_of_read_sees_the_same_rows(store: Store, seed: int) -> None:
    chance = random.Random(seed)
    _mixed(store, chance)
    store.queue("one").enqueue_many(jobs([b"grouped"] * 12, "c"))
    engine = engine_of(store)
    for space in SPACES:
        whole = rows(store, space)
        assert whole == sorted(set(whole))
        ends = [
            b"",
            LAST,
            *(key for key, _ in whole),
            *(key + b"\0" for key, _ in whole),
            *(key[:9] for key, _ in whole),
        ]

        def compare(reader: Reader, space: int = space, whole: Any = whole, ends: list[bytes] = ends) -> None:
            for _ in range(150):
                begin, end, limit = chance.choice(ends), chance.choice(ends), chance.choice((1, 2, 7, 30, 1000))
                for reverse in (False, True):
                    inside = [row for row in whole if begin <= row[0] < end]
                    wanted = (inside[::-1] if reverse else inside)[:limit]
                    assert reader.scan(space, begin, end, limit, reverse=reverse) == wanted
                    assert reader.keys(space, begin, end, limit, reverse=reverse) == [key for key, _ in wanted]
            keys = [chance.choice(whole)[0] for _ in range(60)] + [
                whole[0][0][:-1] + b"\xff",
                b"\0\0\0\1" + b"\xff" * 16,
            ]
            chance.shuffle(keys)
            values = dict(whole)
            assert reader.get_many(space, keys) == [values.get(key) for key in keys]
            assert [reader.get(space, key) for key in keys] == [values.get(key) for key in keys]

        engine.read(compare)
        with engine.snapshot(SPACES) as moment:
            compare(moment)
            for begin, end, step in (
                (b"", LAST, 13),
                (whole[5][0], whole[-3][0], 1000),
                (whole[9][0] + b"\0", LAST, 1),
            ):
                walk = moment.walk(space, begin, end)
                found = []
                while taken := walk.take(step):
                    found += taken
                assert found == [row for row in whole if begin <= row[0] < end]
            salvaged, begin = [], b""
            while True:
                some, damage = moment.salvage(space, begin, 17)
                assert not damage
                salvaged += some
                if len(some) < 17:
                    break
                begin = some[-1][0] + b"\0"
            assert salvaged == whole


# ── jobs of several groups ───────────────────────────────────────────────────────────────────────────────────────────


def test_a_batch_of_one_group_writes_what_one_without_a_group_writes(store: Store) -> None:
    """Except for one more index row for each segment."""
    written = {}
    for name, group in (("plain", None), ("grouped", "g")):
        store.queue(name).enqueue(b"first", group=group)  # makes the queue, the group and their turns
        before = [stored(store, space) for space in range(len(keyspace.NAMES))]
        store.queue(name).enqueue_many(jobs([b"x" * 100] * 1000, group))
        after = [stored(store, space) for space in range(len(keyspace.NAMES))]
        written[name] = {keyspace.NAMES[s]: a - b for s, (b, a) in enumerate(zip(before, after, strict=True)) if a != b}
    assert written["plain"] == {"segments": 10, "segment_state": 10, "segment_ready": 10, "journal": 1}
    assert written["grouped"] == {**written["plain"], "segment_groups": 10}


def test_groups_take_turns_within_a_claim_and_keep_their_segments(store: Store) -> None:
    queue = store.queue("work")
    for group in "abc":
        queue.enqueue_many(jobs([b"%d" % index for index in range(40)], group))
    claim = list(queue.claim(limit=60))
    assert [delivery.group for delivery in claim] == ["a", "b", "c"] * 20
    assert [delivery.payload for delivery in claim] == [b"%d" % (index // 3) for index in range(60)]
    assert stored(store, STATE) == 0
    assert {info.group: (info.waiting, info.leased) for info in queue.groups().groups} == dict.fromkeys("abc", (20, 20))
    assert store.check().clean
    assert len(queue.ack_many(claim).done) == 60
    assert [delivery.group for delivery in queue.claim(limit=100)] == ["a", "b", "c"] * 20
    assert stored(store, STATE) == 0


def test_limits_take_a_part_and_the_rest_waits_for_room(store: Store) -> None:
    queue = store.queue("work")
    queue.configure(Policy(group=GroupPolicy(max_leased=12)))
    ids = [added.id for added in queue.enqueue_many(jobs([b"x"] * 40, "g"))]
    seen = []
    for _ in range(3):
        claim = list(queue.claim(limit=100))
        assert not queue.claim(limit=100)
        seen += [delivery.id for delivery in claim]
        assert stored(store, STATE) == 0
        assert store.check().clean
        assert len(queue.ack_many(claim).done) == 12
    assert seen == ids[:36]
    assert len(queue.claim(limit=100)) == 4


def test_a_group_whose_limit_is_below_a_segment_has_rows(store: Store) -> None:
    queue = store.queue("work")
    queue.configure(Policy(groups={"one": GroupPolicy(max_leased=1)}))
    queue.enqueue_many(jobs([b"x"] * 20, "one"))
    assert (stored(store, SEGMENTS), stored(store, GROUP_READY)) == (0, 20)


def test_a_claim_of_one_job_of_each_of_many_groups_makes_few_of_them_rows(store: Store) -> None:
    queue = store.queue("work")
    for group in range(30):
        queue.enqueue_many(jobs([b"x"] * 100, f"g{group:02}"))
    claim = list(queue.claim(limit=30))
    assert {delivery.group for delivery in claim} == {f"g{group:02}" for group in range(30)}
    assert stored(store, GROUP_READY) == 10 * 99
    assert stored(store, SEGMENTS) == 20
    assert [len(rows(store, space)) for space in SPACES] == [3000, 3000, 2970, 2970]


def test_jobs_without_a_group_take_part_from_their_segments(store: Store) -> None:
    queue = store.queue("work")
    queue.enqueue_many([b"none"] * 20)
    queue.enqueue_many(jobs([b"g"] * 20, "g"))
    claim = list(queue.claim(limit=40))
    assert sorted(delivery.payload for delivery in claim[:20]) == [b"g"] * 10 + [b"none"] * 10
    assert stored(store, STATE) == 0
    assert len(queue.ack_many(claim).done) == 40


# ── damage ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _plant(store: Store, space: int, change: Any) -> bytes:
    """Change the first row of a space, below all layers that would check it."""
    engine = engine_of(store)
    ((key, value),) = engine.inner.read(lambda reader: reader.scan(space, b"", LAST, 1))

    def write(tx: Transaction) -> None:
        changed = change(value)
        if changed is None:
            tx.delete(space, key)
        else:
            tx.put(space, key, changed)

    engine.inner.transact(write)
    engine._segments.recent.delete((key,))
    return bytes(key)


def _flip(at: int) -> Any:
    def change(value: bytes) -> bytes:
        changed = bytearray(value)
        changed[at] ^= 0x20
        return bytes(changed)

    return change


def test_a_damaged_payload_is_that_of_one_job(store: Store) -> None:
    queue = store.queue("work")
    ids = [added.id for added in queue.enqueue_many([b"payload %02d" % index for index in range(20)])]
    _plant(store, SEGMENTS, _flip(-5 - 10))  # in the last payload but one
    with pytest.raises(Corrupt, match=ids[18]):
        queue.get(ids[18])
    report = store.check()
    assert [(finding.rule, finding.job_id) for finding in report.findings] == [("damaged", ids[18])]
    assert [delivery.id for delivery in queue.claim(limit=100)] == ids[:18] + ids[19:]
    assert not store.check(repair=True).clean


@pytest.mark.parametrize("change", [_flip(30), lambda value: None, lambda value: b"", lambda value: value[:40]])
@pytest.mark.parametrize(
    ("space", "leased", "group"),
    [
        *(
            (space, leased, group)
            for space in (SEGMENTS, SEGMENT_STATE)
            for leased in (False, True)
            for group in (None, "g")
        ),
        *((SEGMENT_READY, False, group) for group in (None, "g")),  # a leased segment has no marks
        (SEGMENT_GROUPS, False, "g"),
    ],
)
def test_damage_is_found_and_mended_and_the_rest_goes_on(
    store: Store, space: int, change: Any, leased: bool, group: str | None
) -> None:
    queue = store.queue("work")
    lost = [added.id for added in queue.enqueue_many(jobs([b"x"] * 12, group))]
    if leased:
        list(queue.claim(limit=12, lease=600))
    ids = [added.id for added in queue.enqueue_many(jobs([b"y"] * 12, group))]
    if space in (SEGMENT_READY, SEGMENT_GROUPS):
        change = _flip(3) if change(b"x" * 50) not in (None, b"") else change
    _plant(store, space, change)
    assert not store.check().clean
    claimed = [delivery.id for delivery in queue.claim(limit=100, lease=600)]
    assert claimed[-12:] == ids
    assert set(claimed) <= {*ids, *lost}
    store.check(repair=True)
    assert store.check().clean
    counts = queue.counts()
    assert counts.enqueued == 24 == counts.ready + counts.scheduled + counts.leased + counts.removed
    if space != SEGMENTS:
        assert counts.removed == 0, "readable payloads are kept"


@pytest.mark.parametrize("group", [b"", b"g", b"customer-17"])
def test_segment_records_refuse_other_bytes(group: bytes) -> None:
    value = records.encode_segment(5, [b"a" * 16, b"b" * 16], [b"1", b"22"], group)
    segment = records.Segment(value)
    assert segment.whole
    assert segment.group == group
    assert segment.jobs == [b"a" * 16, b"b" * 16]
    assert segment.payloads(0, 2) == [b"1", b"22"]
    assert segment.job_rows(0, 2) == records.encode_plain_jobs(5, [b"1", b"22"], group)
    assert segment.job_rows(0, 2) == [records.encode_job(5, each, b"", b"", group)[0] for each in (b"1", b"22")]
    alike = records.encode_segment(5, [b"a" * 16, b"b" * 16], [b"33", b"22"], group)
    assert records.encode_packed_segment(5, b"a" * 16 + b"b" * 16, [b"33", b"22"], b"3322", group, width=2) == alike
    for broken in (b"", b"\1", value[:20], value[:-1], value + b"\0", b"\3" + value[1:]):
        with pytest.raises(Corrupt):
            records.Segment(broken)
    group_id = keyspace.digest(group) if group else b""
    fields = (1, 0, 2, 5, 7, 1000, 2048, 0, b"a" * 16, keyspace.digest(b""), bytes(16))
    record = records.SegmentStateRecord(records.V2 if group else records.V1, *fields, group_id)
    state = records.encode_segment_state(record)
    assert records.decode_segment_state(state) == record
    encode = records.alike_segment_states(record._replace(last_event=0, first_job=bytes(16)))
    assert encode(record.last_event, record.first_job) == state
    for broken in (b"", state[:-1], state + b"\0", b"\3" + state[1:], bytes([3 - state[0]]) + state[1:]):
        with pytest.raises(Corrupt):
            records.decode_segment_state(broken)
        with pytest.raises(Corrupt):
            records.decode_segment_mark(broken)
