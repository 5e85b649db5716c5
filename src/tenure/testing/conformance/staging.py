"""Staged writes: the first manifest counts, each chunk is added once, and published jobs stay."""

from __future__ import annotations

import pytest

from tenure.api.queue import Queue
from tenure.api.store import Store
from tenure.clock import ManualClock
from tenure.errors import InvalidArgument, KeyConflict, QueueFull, TooLarge
from tenure.model.job import NewJob
from tenure.model.request import job_requests
from tenure.model.retry import Policy
from tenure.model.write import CHUNK, Refusal
from tenure.testing.conformance.world import World, must_refuse, nothing_written, sweep_all, together

DAY = 86_400


def test_the_first_manifest_counts(store: Store) -> None:
    first = store.staged("w").begin(b"first")
    again = store.staged("w").begin(b"second")
    assert (first.manifest, again.manifest) == (b"first", b"first")
    assert store.staged("other").begin(b"third").manifest == b"third"


def test_a_chunk_is_added_once(store: Store, queue: Queue) -> None:
    staged = store.staged("w")
    staged.begin(b"")
    assert staged.publish(0, queue, [b"1", b"2"]).jobs == 2
    assert staged.publish(1, queue, [b"3"]).fresh
    with nothing_written(store):
        again = store.staged("w").publish(0, queue, [b"1", b"2"])
        assert (again.fresh, again.jobs, again.duplicates) == (False, 0, 0)
    state = staged.state()
    assert state is not None
    assert (state.chunk, state.jobs, state.finished) == (2, 3, False)
    assert [d.payload for d in queue.claim(limit=10)] == [b"1", b"2", b"3"]


def test_a_finished_write_adds_nothing(store: Store, queue: Queue) -> None:
    staged = store.staged("w")
    staged.begin(b"")
    staged.publish(0, queue, [b"1"])
    assert staged.finish().finished
    assert staged.finish().jobs == 1, "finishing twice is fine"
    assert store.staged("w").begin(b"again").finished
    with nothing_written(store):
        assert not staged.publish(1, queue, [b"2"]).fresh
    assert queue.counts().enqueued == 1


def test_chunks_come_in_order(store: Store, queue: Queue) -> None:
    store.staged("w").begin(b"")
    must_refuse(
        store,
        InvalidArgument,
        (
            lambda: store.staged("w").publish(1, queue, [b"x"]),
            lambda: store.staged("never begun").publish(0, queue, [b"x"]),
            lambda: store.staged("never begun").finish(),
            lambda: store.staged("w").publish(0, queue, [b"x"] * (CHUNK + 1)),
            lambda: store.staged("w").publish(-1, queue, [b"x"]),
            lambda: store.staged(""),
            lambda: store.staged("x" * 201),
            lambda: store.staged("a\nb"),
        ),
    )


def test_one_write_into_several_queues(world: World) -> None:
    one, two = world.queue("one"), world.queue("two", tenant="acme")
    staged = world.store.staged("w")
    staged.begin(b"")
    for chunk, queue in enumerate((one, two, one)):
        staged.publish(chunk, queue, [b"x"] * 10)
    assert (one.counts().ready, two.counts().ready) == (20, 10)


def test_published_jobs_are_like_any_other(store: Store, queue: Queue) -> None:
    staged = store.staged("w")
    staged.begin(b"")
    full = NewJob(b"f", priority=7, key="k", max_attempts=2, headers={"a": "b"})
    assert staged.publish(0, queue, [full, NewJob(b"later", delay=60), b"\0" * 200_000]).jobs == 3
    delivery = queue.claim()[0]
    assert (delivery.payload, delivery.priority, delivery.max_attempts, delivery.headers) == (b"f", 7, 2, {"a": "b"})
    assert (queue.counts().ready, queue.counts().scheduled) == (1, 1)
    assert len(queue.claim()[0].payload) == 200_000


def test_a_key_seen_before_is_not_added_again(store: Store, queue: Queue) -> None:
    queue.enqueue(b"x", key="k")
    staged = store.staged("w")
    staged.begin(b"")
    published = staged.publish(0, queue, [NewJob(b"x", key="k"), NewJob(b"y", key="l"), NewJob(b"y", key="l")])
    assert (published.jobs, published.duplicates) == (1, 2)
    assert staged.finish().duplicates == 2


def test_a_chunk_that_is_refused_writes_nothing(store: Store, queue: Queue) -> None:
    queue.enqueue(b"x", key="k")
    queue.configure(Policy(max_waiting=3))
    staged = store.staged("w")
    staged.begin(b"")
    must_refuse(store, KeyConflict, [lambda: staged.publish(0, queue, [b"1", NewJob(b"other", key="k")])])
    must_refuse(store, QueueFull, [lambda: staged.publish(0, queue, [b"1"] * 3)])
    state = staged.state()
    assert state is not None
    assert state.chunk == 0
    assert staged.publish(0, queue, [b"1"] * 2).fresh


def test_jobs_that_are_refused_are_recorded_with_their_chunk(store: Store, queue: Queue) -> None:
    """A process that repeats the write learns which jobs the first one left out."""
    held = [queue.enqueue(b"x", key=f"k{n}").id for n in range(3)]
    jobs = job_requests([NewJob(b"other", key="k0"), b"1", NewJob(b"other", key="k1"), NewJob(b"y", key="k2"), b"2"])
    staged = store.staged("w")
    staged.begin(b"")
    with pytest.raises(KeyConflict) as conflict:
        staged.publish_checked(0, queue, jobs)
    refused = dict(conflict.value.conflicts)
    while len(refused) < 3:  # a partitioned store reports one partition at a time
        again = [Refusal(index, existing) for index, existing in refused.items()]
        with pytest.raises(KeyConflict) as conflict:
            staged.publish_checked(0, queue, jobs, again)
        assert not refused.keys() & {index for index, _ in conflict.value.conflicts}
        refused |= dict(conflict.value.conflicts)
    assert refused == {0: held[0], 2: held[1], 3: held[2]}
    left_out = [Refusal(index, existing) for index, existing in sorted(refused.items())]
    published = staged.publish_checked(0, queue, jobs, left_out)
    assert (published.fresh, published.jobs, published.refused) == (True, 2, left_out)
    repeat = store.staged("w").publish_checked(0, queue, [])
    assert (repeat.fresh, repeat.jobs, repeat.refused) == (False, 0, left_out)
    every = [NewJob(b"other", key="k0")]
    alone = [Refusal(0, held[0])]
    assert staged.publish_checked(1, queue, job_requests(every), alone).refused == alone
    assert staged.finish().refused == 4
    assert store.staged("w").publish_checked(1, queue, []).refused == alone
    with pytest.raises(InvalidArgument):
        staged.publish_checked(2, queue, jobs, [Refusal(5, held[0])])
    assert queue.counts().ready == 5


def test_a_manifest_may_be_large(world: World) -> None:
    manifest = bytes(range(256)) * 800
    world.store.staged("w").begin(manifest)
    world.store.staged("empty").begin(b"")
    state = world.reopen().staged("w").state()
    assert state is not None
    assert state.manifest == manifest
    with pytest.raises(TooLarge):
        world.store.staged("v").begin(bytes(5 * 1024 * 1024))


def test_a_staged_write_continues_after_reopening(world: World) -> None:
    world.store.staged("w").begin(b"m")
    world.store.staged("w").publish(0, world.queue(), [b"1"])
    store = world.reopen()
    assert not store.staged("w").publish(0, world.queue(), [b"1"]).fresh
    assert store.staged("w").publish(1, world.queue(), [b"2"]).fresh
    assert world.queue().counts().enqueued == 2


def test_two_commits_at_once_add_each_chunk_once(live: World) -> None:
    queue = live.queue()

    def commit() -> int:
        staged = live.store.staged("w")
        staged.begin(b"m")
        fresh = sum([staged.publish(chunk, queue, [b"%d" % chunk] * 10).fresh for chunk in range(20)])
        staged.finish()
        return fresh

    assert sum(together([commit] * 4)) == 20
    assert queue.counts().enqueued == 200


def test_a_finished_write_is_forgotten_after_a_day(store: Store, queue: Queue, clock: ManualClock) -> None:
    staged = store.staged("w")
    staged.begin(b"m")
    clock.advance(DAY / 2)
    staged.publish(0, queue, [b"1"])
    staged.finish()
    clock.advance(DAY - 1)
    sweep_all(store)
    assert staged.state() is not None, "a day after its end, not after its beginning"
    clock.advance(2)
    assert store.sweep().writes_forgotten == 1
    assert staged.state() is None
    assert queue.counts().enqueued == 1, "published jobs stay"


def test_a_write_published_in_part_is_remembered_longer(store: Store, queue: Queue, clock: ManualClock) -> None:
    begun, part = store.staged("begun"), store.staged("part")
    begun.begin(b"m")
    part.begin(b"m")
    part.publish(0, queue, [b"1"])
    clock.advance(3 * DAY)
    sweep_all(store)
    assert begun.state() is None
    assert not part.publish(0, queue, [b"1"]).fresh
    clock.advance(30 * DAY)
    sweep_all(store)
    assert part.state() is None


def test_a_later_write_may_make_an_earlier_one_superfluous(store: Store, queue: Queue, clock: ManualClock) -> None:
    for number in range(3):
        staged = store.staged(f"query/{number}", keep=365 * DAY)
        staged.begin(b"m")
        staged.publish(0, queue, [b"x"])
        staged.finish(forget=f"query/{number - 1}")
    assert store.staged("query/0").state() is None
    assert store.staged("query/1").state() is None
    assert store.staged("query/2").state() is not None
    clock.advance(100 * DAY)
    sweep_all(store)
    assert store.staged("query/2").state() is not None


def test_pieces_are_kept_until_they_are_dropped(world: World) -> None:
    staged = world.store.staged("w")
    try:
        staged.put_piece("p0-1.arrow", 0, b"first")
    except InvalidArgument:
        pytest.skip("this store keeps no pieces")
    staged.put_piece("p0-1.arrow", 1, b"")
    staged.put_piece("p0-1.arrow", 0, b"again")
    world.store.staged("v").put_piece("p0-1.arrow", 0, b"another's")
    assert (staged.piece("p0-1.arrow", 0), staged.piece("p0-1.arrow", 1)) == (b"again", b"")
    assert staged.piece("p0-1.arrow", 2) is None
    with pytest.raises(TooLarge):
        staged.put_piece("p0-1.arrow", 0, bytes(4 * 1024 * 1024 + 1))
    for name in ("../x", "", "A", "a" * 101):
        with pytest.raises(InvalidArgument):
            staged.put_piece(name, 0, b"")
    staged.drop_pieces()
    staged.drop_pieces()
    assert staged.piece("p0-1.arrow", 0) is None
    assert world.store.staged("v").piece("p0-1.arrow", 0) == b"another's"
