"""Named snapshots: kept while they are used, and found by a name, never by a path."""

from __future__ import annotations

import pytest

from tenure.api.store import Store
from tenure.clock import ManualClock
from tenure.errors import InvalidArgument, SnapshotExpired
from tenure.testing.conformance.world import World


def _keeps(store: Store) -> None:
    if store.traits.snapshot != "store":
        pytest.skip("this store has no moment of its whole")


def test_a_snapshot_is_listed_until_it_is_dropped(store: Store) -> None:
    _keeps(store)
    taken = store.take_snapshot("nightly", ttl=60)
    assert taken.name == "nightly"
    assert taken.ttl_ms == 60_000
    assert store.snapshots() == [taken]
    assert store.drop_snapshot(taken.id) is True
    assert store.drop_snapshot(taken.id) is False
    assert store.snapshots() == []
    with pytest.raises(SnapshotExpired) as expired:
        store.renew_snapshot(taken.id)
    assert expired.value.id == taken.id


def test_two_snapshots_may_share_a_name(store: Store) -> None:
    _keeps(store)
    first, second = store.take_snapshot("nightly"), store.take_snapshot("nightly")
    assert first.id != second.id
    assert {info.id for info in store.snapshots()} == {first.id, second.id}


def test_use_renews_a_snapshot_and_the_clock_ends_it(store: Store, clock: ManualClock) -> None:
    _keeps(store)
    taken = store.take_snapshot("nightly", ttl=10)
    clock.advance(9)
    renewed = store.renew_snapshot(taken.id)
    assert renewed.expires_at_ms == taken.expires_at_ms + 9_000
    clock.advance(9.999)
    assert store.snapshots() == [renewed]
    clock.advance(0.001)  # nobody has swept yet
    assert store.snapshots() == []
    with pytest.raises(SnapshotExpired):
        store.renew_snapshot(taken.id)


def test_a_sweep_removes_what_has_expired_and_nothing_else(store: Store, clock: ManualClock) -> None:
    _keeps(store)
    short, long = store.take_snapshot("short", ttl=10), store.take_snapshot("long", ttl=100)
    clock.advance(11)
    store.sweep()
    assert store.drop_snapshot(short.id) is False
    assert store.drop_snapshot(long.id) is True


def test_a_snapshot_outlives_the_process_that_took_it(world: World) -> None:
    _keeps(world.store)
    if world.store.traits.scope == "cluster":
        pytest.skip("a snapshot of this store is in the memory of the process that took it")
    kept, gone = world.store.take_snapshot("kept", ttl=3600), world.store.take_snapshot("gone", ttl=1)
    if world.clock is None:
        pytest.skip("this store takes no manual clock")
    world.close()
    world.clock.advance(2)
    store = world.reopen()
    assert store.snapshots() == [kept]
    assert store.drop_snapshot(gone.id) is False, "opening removes what has expired"


@pytest.mark.parametrize("name", ["", "../x", "/etc", "a/b", "A", ".hidden", "x" * 65, "a\0b"])
def test_a_snapshot_takes_a_name_and_never_a_path(store: Store, name: str) -> None:
    with pytest.raises(InvalidArgument):
        store.take_snapshot(name)


@pytest.mark.parametrize("id", ["", "..", "../db", ".", "nightly", "/"])
def test_an_unknown_snapshot_id(store: Store, id: str) -> None:
    _keeps(store)
    store.queue("work").enqueue(b"x")
    with pytest.raises(SnapshotExpired):
        store.renew_snapshot(id)
    assert store.drop_snapshot(id) is False
    assert store.queue("work").counts().ready == 1


@pytest.mark.parametrize("ttl", [0, -1, float("nan")])
def test_a_snapshot_with_an_invalid_ttl_is_refused(store: Store, ttl: float) -> None:
    with pytest.raises(InvalidArgument):
        store.take_snapshot("nightly", ttl=ttl)
