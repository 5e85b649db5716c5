"""Damage to the links of jobs: `check` finds it, repair corrects it, and the flow continues."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import tenure
from tenure import NewJob, Store
from tenure.storage import keyspace, records
from tenure.storage.transaction import Transaction
from tenure.testing.conformance.world import assert_sound
from tenure.testing.harness import engine_of


class Flow:
    """Two waiting parents, and their child."""

    def __init__(self, store: Store) -> None:
        self.store, self.queue = store, store.queue("work")
        *parents, child = self.queue.enqueue_many(
            [NewJob(b"a", name="a"), NewJob(b"b", name="b"), NewJob(b"child", after=["#a", "#b"])]
        )
        self.number = store.queues()[0].number
        self.parents = [bytes.fromhex(parent.id) for parent in parents]
        self.child = bytes.fromhex(child.id)

    def at(self, job: bytes) -> bytes:
        return keyspace.of_queue(self.number, job)

    def link(self, parent: int) -> bytes:
        return keyspace.child(self.number, self.parents[parent], self.number, self.child)

    def change(self, plant: Callable[[Transaction], None]) -> None:
        engine_of(self.store).transact(plant)


def _forget_children(flow: Flow, tx: Transaction) -> None:
    at = flow.at(flow.parents[0])
    state = records.decode_state(tx.get(keyspace.STATE, at) or b"", flow.parents[0])
    tx.put(keyspace.STATE, at, records.encode_state(state._replace(flags=0)))


DAMAGE: dict[str, Callable[[Flow, Transaction], None]] = {
    "counts too many": lambda flow, tx: tx.put(keyspace.BLOCKED, flow.at(flow.child), records.encode_blocked(5, 0)),
    "counts too few": lambda flow, tx: tx.put(keyspace.BLOCKED, flow.at(flow.child), records.encode_blocked(1, 0)),
    "count cannot be read": lambda flow, tx: tx.put(keyspace.BLOCKED, flow.at(flow.child), b"\1nonsense"),
    "count is missing": lambda flow, tx: tx.delete(keyspace.BLOCKED, flow.at(flow.child)),
    "state of the child cannot be read": lambda flow, tx: tx.put(keyspace.STATE, flow.at(flow.child), b"\1nonsense"),
    "state of a parent cannot be read": lambda flow, tx: tx.put(keyspace.STATE, flow.at(flow.parents[0]), b"\1no"),
    "parent does not know of its child": _forget_children,
    "link of no job": lambda flow, tx: tx.put(keyspace.CHILDREN, keyspace.child(1, bytes(16), 1, flow.child), b""),
    "parent of no job": lambda flow, tx: tx.put(keyspace.PARENTS, keyspace.parent(1, bytes(16), 0, 1, flow.child), b""),
}


def test_rows_of_before_name_one_parent_each() -> None:
    """The older format: a row of `parents` for each parent of a job."""
    with tenure.open("memory:", sweep=False) as store:
        flow = Flow(store)

        def as_before(tx: Transaction) -> None:
            tx.delete(keyspace.PARENTS, keyspace.parents_row(flow.at(flow.child), 0))
            for place, parent in enumerate(flow.parents):
                tx.put(keyspace.PARENTS, keyspace.parent(flow.number, flow.child, place, flow.number, parent), b"")

        flow.change(as_before)
        assert_sound(store)
        assert [parent.id for parent in flow.queue.parents(flow.child.hex())] == [p.hex() for p in flow.parents]
        flow.queue.ack_many(list(flow.queue.claim(limit=2)))
        (delivery,) = flow.queue.claim()
        assert delivery.payload == b"child"
        flow.queue.ack(delivery)
        assert_sound(store)


class Blocks(Flow):
    """250 waiting parents, which are stored in blocks, and their child."""

    def __init__(self, store: Store) -> None:
        self.store, self.queue = store, store.queue("work")
        *parents, child = self.queue.enqueue_many(
            [
                *(NewJob(b"parent", name=str(n)) for n in range(250)),
                NewJob(b"child", after=[f"#{n}" for n in range(250)]),
            ]
        )
        self.number = store.queues()[0].number
        self.parents = [bytes.fromhex(parent.id) for parent in parents]
        self.child = bytes.fromhex(child.id)
        #: The block with the second hundred of parents.
        self.block = keyspace.child_block(self.at(self.parents[199])) + self.at(self.child)
        self.named = keyspace.parents_row(self.at(self.child), 0)


def _stray_block(flow: Blocks, tx: Transaction) -> None:
    lost = keyspace.of_queue(flow.number, bytes(15) + b"\1")
    tx.put(keyspace.CHILDREN, keyspace.child_block(lost) + flow.at(flow.child), records.encode_block(_ONE))


def _block_without_jobs(flow: Blocks, tx: Transaction) -> None:
    at = keyspace.child_block(flow.at(flow.parents[249])) + flow.at(flow.parents[0])
    tx.put(keyspace.CHILDREN, at, records.encode_block(_ONE._replace(members=0)))


_ONE = records.BlockRecord(records.V1, 1, 1, 1)
BLOCK_DAMAGE: dict[str, Callable[[Blocks, Transaction], None]] = {
    "block cannot be read": lambda flow, tx: tx.put(keyspace.CHILDREN, flow.block, b"\1nonsense"),
    "block of jobs that are not there": _stray_block,
    "block without jobs": _block_without_jobs,
    "block of no child": lambda flow, tx: tx.put(keyspace.CHILDREN, flow.block[:-1] + b"\0", b"\1nonsense"),
    "parents cannot be read": lambda flow, tx: tx.put(keyspace.PARENTS, flow.named, b"\1nonsense"),
    "parent does not know of its child": lambda flow, tx: _forget_children(flow, tx),
    "counts too few": lambda flow, tx: tx.put(keyspace.BLOCKED, flow.at(flow.child), records.encode_blocked(9, 0)),
}


@pytest.mark.parametrize("damage", BLOCK_DAMAGE)
def test_damage_to_blocks_is_found_and_mended(damage: str) -> None:
    with tenure.open("memory:", sweep=False) as store:
        flow = Blocks(store)
        flow.queue.ack_many(list(flow.queue.claim(limit=120)))
        if damage == "parent does not know of its child":
            flow.parents[0] = flow.parents[130]
        flow.change(lambda tx: BLOCK_DAMAGE[damage](flow, tx))
        assert not store.check().clean
        report = store.check(repair=True)
        assert report.ok, report.findings
        assert_sound(store)
        ran = []
        while claim := flow.queue.claim(limit=7):
            ran += [delivery.payload for delivery in claim]
            flow.queue.ack_many(list(claim))
        assert ran == [b"parent"] * 130 + [b"child"]
        assert_sound(store)
        left = engine_of(store).read(lambda reader: reader.keys(keyspace.CHILDREN, b"", keyspace.LAST, 10))
        assert not left, "rows of children are left without their jobs"


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_found_and_mended(damage: str) -> None:
    with tenure.open("memory:", sweep=False) as store:
        flow = Flow(store)
        flow.change(lambda tx: DAMAGE[damage](flow, tx))
        assert not store.check().clean
        report = store.check(repair=True)
        assert report.ok, report.findings
        assert_sound(store)
        ran = []
        while claim := flow.queue.claim():
            ran += [delivery.payload for delivery in claim]
            flow.queue.ack_many(list(claim))
        assert sorted(ran[:2]) == [b"a", b"b"]
        assert ran[2:] == [b"child"]


def test_a_lost_link_makes_the_child_ready_when_the_others_have_ended() -> None:
    """The lost parent is unknown: the child waits for the others."""
    with tenure.open("memory:", sweep=False) as store:
        flow = Flow(store)
        flow.change(lambda tx: tx.delete(keyspace.CHILDREN, flow.link(0)))
        assert store.check(repair=True).ok
        assert_sound(store)
        flow.queue.cancel(flow.parents[0].hex())
        (delivery,) = flow.queue.claim()
        flow.queue.ack(delivery)
        assert [d.payload for d in flow.queue.claim()] == [b"child"]
