"""The state machine with groups: any verbs in any order, on queues whose jobs have groups with limits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis.stateful import invariant, run_state_machine_as_test

from tenure.errors import TenureError
from tenure.model.group import GroupInfo, GroupPolicy
from tenure.model.retry import Policy
from tenure.storage.segments import SegmentedTransaction, SegmentUse
from tests.machine.places import DiskPlace, MemoryPlace, Place
from tests.machine.profiles import PATIENCE, looking
from tests.machine.reference import GroupReference, Wish
from tests.machine.rerun import StaleEngine, TwiceEngine
from tests.machine.test_machine import POLICIES, QueueMachine, outcome, parent

__all__ = ["parent"]  # a fixture

GROUPS = (None, "x", "y", "x", "z", "y", None, "x")
LIMITS: list[dict[str, Any]] = [
    {},
    {"group": GroupPolicy(max_leased=1)},
    {"group": GroupPolicy(max_leased=2), "groups": {"x": GroupPolicy(max_leased=1, weight=3)}},
    {"groups": {"y": GroupPolicy(weight=0.5)}},
]


class GroupMachine(QueueMachine):
    def __init__(self) -> None:
        super().__init__()
        self.made = 0
        self.given: Any = None

    def prepare(self, name: str, batch: list[Wish]) -> None:
        for wish in batch:
            wish.group, wish.ttl = GROUPS[self.made % len(GROUPS)], None
            self.made += 1

    def governed(self, policy: Policy) -> Policy:
        return msgspec.structs.replace(policy, **LIMITS[(POLICIES.index(policy) + self.made) % len(LIMITS)])

    def real_claim(self, name: str, limit: int, lease: int | None, claim_id: str | None) -> Any:
        if isinstance(self.given, TenureError):
            raise self.given
        return self.given

    def _claim(self, name: str, limit: int, lease: int | None, claim_id: str | None) -> Any:
        """Ask the store first: the model gets the jobs that it took."""
        self.given = outcome(lambda: super(GroupMachine, self).real_claim(name, limit, lease, claim_id))
        taken = [] if isinstance(self.given, TenureError) else [delivery.id for delivery in self.given]
        assert isinstance(self.model, GroupReference)
        self.model.chosen = taken
        return super()._claim(name, limit, lease, claim_id)

    @invariant()
    def same_groups(self) -> None:
        for name, queue in self.model.queues.items():
            waiting = Counter(job.group for job in queue.of("waiting") if job.group)
            leased = Counter(job.group for job in queue.of("leased") if job.group)
            seen = {group.group: (group.waiting, group.leased) for group in self._groups(name)}
            assert seen == {group: (waiting[group], leased[group]) for group in waiting | leased}

    def _groups(self, name: str) -> Iterator[GroupInfo]:
        page = self.queue(name).groups(limit=2)
        yield from page
        while page.cursor is not None:
            page = self.queue(name).groups(limit=2, cursor=page.cursor)
            yield from page


def machine(place: Callable[[], Place], reference: type[GroupReference] = GroupReference) -> type[GroupMachine]:
    return type("Machine", (GroupMachine,), {"place": staticmethod(place), "reference": reference})


@pytest.mark.timeout(PATIENCE)
@pytest.mark.parametrize("engine", [None, TwiceEngine, StaleEngine])
def test_memory(engine: Any) -> None:
    made = machine(MemoryPlace if engine is None else lambda: MemoryPlace(engine))
    run_state_machine_as_test(made, settings=looking(15 if engine is None else 6))


class SegmentMachine(GroupMachine):
    """Each batch has one group; every other batch has plain jobs, which are stored as a segment."""

    def prepare(self, name: str, batch: list[Wish]) -> None:
        self.made += 1
        for wish in batch:
            wish.group = GROUPS[self.made % len(GROUPS)]
            if self.made % 2:
                wish.delay = wish.priority = 0
                wish.at = wish.key = wish.max_attempts = None
            wish.ttl = None


@pytest.mark.timeout(PATIENCE)
@pytest.mark.parametrize("engine", [None, TwiceEngine, "rocksdb"])
def test_every_batch_of_plain_jobs_in_a_segment(parent: Path, engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SegmentedTransaction, "LEAST", 1)
    monkeypatch.setattr(SegmentUse, "RESTS", 0)

    def place() -> Place:
        return (
            DiskPlace(engine, parent, durability="os")
            if engine == "rocksdb"
            else MemoryPlace(engine)
            if engine
            else MemoryPlace()
        )

    made = type("Machine", (SegmentMachine,), {"place": staticmethod(place), "reference": GroupReference})
    run_state_machine_as_test(made, settings=looking(4 if engine else 10))


@pytest.mark.timeout(PATIENCE)
@pytest.mark.parametrize("engine", ["rocksdb", "lmdb"])
def test_on_disk(parent: Path, engine: str) -> None:
    run_state_machine_as_test(machine(lambda: DiskPlace(engine, parent)), settings=looking(4))
