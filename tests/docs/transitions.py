"""Every change of a job, made once on a memory store: what became of counters and index rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tenure
from tenure import Delivery, ManualClock, NewJob, Policy, Queue, Store
from tenure.model.attachments import Attached
from tenure.storage import keyspace
from tenure.storage.engine import Reader
from tenure.storage.keyspace import Due
from tenure.testing.harness import engine_of

Numbers = dict[str, int]
LEASE, RETENTION, TTL = 30, 600, 60


class World:
    """A queue. A lease of it holds a second job, so that it outlives the first, and only the first one's rows move."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store: Store = tenure.open("memory:", clock=self.clock, sweep=False)
        self.queue: Queue = self.store.queue("q")
        self.queue.configure(Policy(lease=LEASE, result_retention=RETENTION))

    def leased(self) -> Delivery:
        job = self.queue.enqueue(b"it")
        self.queue.enqueue(b"another")
        claim = self.queue.claim(limit=2)
        return next(delivery for delivery in claim if delivery.id == job.id)

    def dead(self) -> str:
        delivery = self.leased()
        self.queue.fail(delivery)
        return delivery.id

    def done(self) -> str:
        delivery = self.leased()
        self.queue.ack(delivery, result=b"42")
        return delivery.id


def _ttl(world: World) -> Callable[[], object]:
    world.queue.enqueue(b"it", ttl=TTL)
    world.clock.advance(TTL + 1)
    return world.store.sweep


def _let_ttl_pass(world: World, job: str, parent: Delivery) -> object:
    return world.store.sweep()


def _retire(world: World) -> Callable[[], object]:
    world.done()
    world.clock.advance(LEASE + 1)
    world.store.sweep()  # the other job's lease has run out: that is not what is measured
    world.clock.advance(RETENTION)
    return world.store.sweep


def _expire(world: World) -> Callable[[], object]:
    world.queue.enqueue(b"it")
    world.queue.claim()
    world.clock.advance(LEASE + 1)
    return world.store.sweep


def _restore(make: Callable[[World], str]) -> Callable[[World], Callable[[], object]]:
    def prepare(world: World) -> Callable[[], object]:
        elsewhere = World()
        job = elsewhere.queue.get(make(elsewhere))
        assert job is not None
        return lambda: world.queue.restore([job])

    return prepare


def _restore_blocked(world: World) -> Callable[[], object]:
    elsewhere = World()
    elsewhere.store.queue("parents").enqueue(b"parent", delay=3600)
    (parent,) = elsewhere.store.queue("parents").list("scheduled")
    world.store.queue("parents").restore([parent])
    job = elsewhere.queue.get(elsewhere.queue.enqueue(NewJob(b"it", after=[parent.id])).id)
    assert job is not None
    attached = {job.id: Attached(parents=elsewhere.queue.parents(job.id))}
    return lambda: world.queue.restore([job], attached)


def _scenarios() -> dict[tuple[str, str, str], Callable[[World], Callable[[], object]]]:
    """What prepares each change, and gives the step that makes it."""

    def held(verb: str, *args: Any) -> Callable[[World], Callable[[], object]]:
        def prepare(world: World) -> Callable[[], object]:
            delivery = world.leased()
            return lambda: getattr(world.queue, verb)(delivery, *args)

        return prepare

    def waiting(verb: Callable[[Queue, str], object]) -> Callable[[World], Callable[[], object]]:
        def prepare(world: World) -> Callable[[], object]:
            job = world.queue.enqueue(b"it")
            return lambda: verb(world.queue, job.id)

        return prepare

    def ended(state: str, verb: Callable[[Queue], object]) -> Callable[[World], Callable[[], object]]:
        def prepare(world: World) -> Callable[[], object]:
            getattr(world, state)()
            return lambda: verb(world.queue)

        return prepare

    def cancel_held(world: World) -> Callable[[], object]:
        delivery = world.leased()
        return lambda: world.queue.cancel(delivery.id)

    def blocked(verb: Callable[[World, str, Delivery], object]) -> Callable[[World], Callable[[], object]]:
        """A job that waits for one of another queue, which is held."""

        def prepare(world: World) -> Callable[[], object]:
            parents = world.store.queue("parents")
            parents.enqueue(b"parent")
            (parent,) = parents.claim(lease=3600)
            job = world.queue.enqueue(NewJob(b"it", after=[parent.id], ttl=TTL if verb is _let_ttl_pass else None))
            if verb is _let_ttl_pass:
                world.clock.advance(TTL + 1)
            return lambda: verb(world, job.id, parent)

        return prepare

    def enqueue_blocked(world: World) -> Callable[[], object]:
        parent = world.store.queue("parents").enqueue(b"parent", delay=3600)
        return lambda: world.queue.enqueue(NewJob(b"it", after=[parent]))

    def signal(world: World) -> Callable[[], object]:
        delivery = world.leased()
        world.queue.snooze(delivery, 3600, until_signal="go")
        return lambda: world.queue.signal(delivery.id, "go")

    return {
        ("signalled", "waiting", "waiting"): signal,
        ("enqueued", "gone", "blocked"): enqueue_blocked,
        ("unblocked", "blocked", "waiting"): blocked(
            lambda world, job, parent: world.store.queue("parents").ack(parent)
        ),
        ("cancelled", "blocked", "gone"): blocked(lambda world, job, parent: world.queue.cancel(job)),
        ("ttl_passed", "blocked", "gone"): blocked(_let_ttl_pass),
        ("purged", "blocked", "gone"): blocked(lambda world, job, parent: world.queue.purge("blocked")),
        ("enqueued", "gone", "waiting"): lambda world: lambda: world.queue.enqueue(b"it"),
        ("claimed", "waiting", "leased"): waiting(lambda queue, job: queue.claim()),
        ("done", "leased", "done"): held("ack", b"42"),
        ("done", "leased", "gone"): held("ack"),
        ("retried", "leased", "waiting"): held("nack", "broken"),
        ("released", "leased", "waiting"): held("release"),
        ("expired", "leased", "waiting"): _expire,
        ("died", "leased", "dead"): held("fail", "broken"),
        ("replayed", "dead", "waiting"): ended("dead", lambda queue: queue.replay()),
        ("cancelled", "waiting", "gone"): waiting(lambda queue, job: queue.cancel(job)),
        ("cancelled", "leased", "gone"): cancel_held,
        ("ttl_passed", "waiting", "gone"): _ttl,
        ("purged", "waiting", "gone"): waiting(lambda queue, job: queue.purge("ready")),
        ("purged", "done", "gone"): ended("done", lambda queue: queue.purge("done")),
        ("purged", "dead", "gone"): ended("dead", lambda queue: queue.purge("dead")),
        ("retired", "done", "gone"): _retire,
        ("restored", "gone", "blocked"): _restore_blocked,
        ("restored", "gone", "waiting"): _restore(lambda world: world.queue.enqueue(b"it").id),
        ("restored", "gone", "done"): _restore(lambda world: world.done()),
        ("restored", "gone", "dead"): _restore(lambda world: world.dead()),
    }


def moved(change: str, before: str, after: str) -> tuple[str, Numbers, Numbers]:
    """The type of the event that was written, and by how much counters and index rows changed."""
    world = World()
    step = _scenarios()[change, before, after](world)
    counters, rows = _counters(world), _rows(world)
    step()
    event = world.store.events().events[-1]
    assert (event.state, event.job_id is not None) == (after, True)
    assert world.store.check().clean
    return event.type, _difference(_counters(world), counters), _difference(_rows(world), rows)


def _counters(world: World) -> Numbers:
    found = world.queue.counts()
    return {
        name: getattr(found, name) for name in ("waiting", "blocked", "leased", "done", "dead", "enqueued", "removed")
    }


def _rows(world: World) -> Numbers:
    """Rows of the indexes; of `due`, those of jobs."""

    def look(reader: Reader) -> Numbers:
        found = {
            keyspace.NAMES[space]: len(reader.keys(space, b"", keyspace.LAST, 100))
            for space in (keyspace.READY, keyspace.DONE, keyspace.DEAD, keyspace.BLOCKED)
        }
        due = reader.keys(keyspace.DUE, b"", keyspace.LAST, 100)
        return found | {"due": sum(key[0] in (Due.TTL, Due.RETENTION) for key in due)}

    found: Numbers = engine_of(world.store).read(look)
    return found


def _difference(after: Numbers, before: Numbers) -> Numbers:
    return {name: after[name] - before[name] for name in after if after[name] != before[name]}
