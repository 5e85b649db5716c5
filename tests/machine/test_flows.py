"""The state machine with flows: any verbs in any order, on jobs with parents in the same call, in earlier calls, or
acked with `then`.

Every step compares the counts of both sides: enqueued = waiting + blocked + leased + done + dead + removed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, Literal

import msgspec
import pytest
from hypothesis.stateful import invariant, precondition, rule, run_state_machine_as_test

from tenure.model.job import NewJob
from tests.backends.redis.servers import RedisHarness, Server, running
from tests.machine.places import DiskPlace, MemoryPlace, Place
from tests.machine.profiles import PATIENCE, looking
from tests.machine.reference import ApartReference, Job, Reference, Wish
from tests.machine.rerun import StaleEngine, TwiceEngine
from tests.machine.test_machine import NAMES, SHOWN, QueueMachine, any_number, grown, parent
from tests.machine.test_redis import RedisPlace

__all__ = ["parent"]  # a fixture

_POLICIES = ("cancel", "run", "wait")


class FlowMachine(QueueMachine):
    shown: ClassVar[tuple[str, ...]] = (*SHOWN, "blocked")
    #: Whether jobs may have parents in other queues.
    across: ClassVar[bool] = True

    def __init__(self) -> None:
        super().__init__()
        self.roll = random.Random(0)

    def prepare(self, name: str, batch: list[Wish]) -> None:
        """Give about half of the jobs parents: of the same call, of earlier calls, and sometimes one that is gone."""
        roll, near = self.roll, [name] if not self.across else NAMES
        stored = [job for queue in near for job in self.model.queues[queue].jobs]
        gone = [job for queue in near for job in self.model.queues[queue].gone]
        for place, wish in enumerate(batch):
            if roll.random() < 0.5:
                wish.after += roll.sample(range(place), min(place, roll.randrange(3)))
                wish.after += roll.sample(stored, min(len(stored), roll.choice([0, 1, 1, 3])))
                wish.on_parent_dead = roll.choice(_POLICIES)
                if gone and roll.random() < 0.05:
                    wish.after.append(roll.choice(gone))

    def real_job(self, place: int, wish: Wish) -> NewJob:
        after = [f"#{given}" if isinstance(given, int) else given.id for given in wish.after]
        policy: Literal["cancel", "run", "wait"] = wish.on_parent_dead  # type: ignore[assignment]  # one of _POLICIES
        return msgspec.structs.replace(
            super().real_job(place, wish), name=str(place), after=after, on_parent_dead=policy
        )

    @precondition(lambda self: self._live())
    @rule(which=any_number, waits=any_number)
    def hand_over(self, which: int, waits: int) -> None:
        """An ack with a follow-up job, which may have the acked job as its parent."""
        live = self._live()
        mine = live[which % len(live)]
        real = self.real[mine]
        result = [None, b"", b"result"][which % 3]
        name = real.queue if not self.across else NAMES[which % 2]
        wish = Wish(b"then", after=[mine.job] if waits % 3 else [])
        job = msgspec.structs.replace(self.real_job(0, wish), queue=name, name=None)
        before = set(self._jobs(name))
        answers = self.both(
            lambda: self.model.ack(mine, result, (name, wish)),
            lambda: self.queue(real.queue).ack(real, grown(result), then=[job]),
        )
        if answers is not None:
            (new,) = set(self._jobs(name)) - before
            (told,) = [e.job_id for e in self._new_events() if e.type == "enqueued" and e.job_id not in self.ids]
            assert told is not None
            self.ids.add(told)
            new.id = told

    def _jobs(self, name: str) -> list[Job]:
        return self.model.queues[name].jobs

    def _new_events(self) -> list[Any]:
        page, found = self.store.events(limit=1000), []
        while page.events:
            found += page.events
            page = self.store.events(after=page.cursor, limit=1000)
        return found

    @invariant()
    def nothing_is_lost(self) -> None:
        for name in self.model.queues:
            c = self.queue(name).counts()
            assert c.enqueued == c.ready + c.scheduled + c.blocked + c.leased + c.done + c.dead + c.removed

    @invariant()
    def same_parents(self) -> None:
        for name, queue in self.model.queues.items():
            for job in queue.jobs[-4:]:
                seen = self.queue(name).parents(job.id)
                assert [one.id for one in seen] == [one.id for one in job.parents]
                for mine, one in zip(job.parents, seen, strict=True):
                    assert (one.state == "gone") == (mine.state == "gone")
                    assert one.result == (None if mine.state == "gone" else mine.result)


def machine(place: Callable[[], Place], reference: type[Reference] = Reference) -> type[FlowMachine]:
    made = {"place": staticmethod(place), "reference": reference, "across": reference is Reference}
    return type("Machine", (FlowMachine,), made)


@pytest.mark.timeout(PATIENCE)
@pytest.mark.parametrize("engine", [None, TwiceEngine, StaleEngine])
def test_memory(engine: Any) -> None:
    made = machine(MemoryPlace if engine is None else lambda: MemoryPlace(engine))
    run_state_machine_as_test(made, settings=looking(9 if engine is None else 3))


@pytest.mark.timeout(PATIENCE)
@pytest.mark.parametrize("engine", ["rocksdb", "lmdb"])
def test_on_disk(parent: Path, engine: str) -> None:
    run_state_machine_as_test(machine(lambda: DiskPlace(engine, parent)), settings=looking(3))


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running(Server()) as made:
        yield made


@pytest.mark.timeout(PATIENCE)
@pytest.mark.xdist_group("redis")
def test_redis(server: Server) -> None:
    made = machine(lambda: RedisPlace(RedisHarness(server.url, [server])), ApartReference)
    run_state_machine_as_test(made, settings=looking(5))
