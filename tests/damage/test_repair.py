"""check() finds each kind of damage and nothing else; with repair=True it reports its repairs, and saves all it can."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import msgspec
import pytest

from tenure import Quota
from tenure.errors import Corrupt, LeaseLost
from tenure.model.report import Report
from tenure.queueing.registry import registered
from tenure.storage import keyspace, records
from tenure.storage.keyspace import (
    CLAIMS,
    COUNTERS,
    DEAD,
    DEDUP,
    DONE,
    DUE,
    JOBS,
    JOURNAL,
    LEASE_JOBS,
    LEASES,
    LIMITS,
    META,
    NOTES,
    PAYLOAD,
    QUEUES,
    READY,
    REQUESTS,
    STATE,
    Counter,
    Due,
    Limit,
    Usage,
)
from tenure.testing.conformance.world import assert_sound
from tenure.testing.harness import backend_of
from tests.combinations import ALL_COMBINATIONS, in_turn
from tests.damage.planting import BIG, Garden, garden

NOBODY = bytes(range(16))  # the id of no job and no lease
Plant = Callable[[Garden], None]


ENGINES = ("memory", "rocksdb", "lmdb")


@pytest.fixture(params=ENGINES if ALL_COMBINATIONS else ["in turn"])
def grown(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Garden]:
    """What is checked and mended are rows, above the engines: each case runs on one of them."""
    made = garden(request.param if ALL_COMBINATIONS else in_turn(request.node.name, ENGINES), tmp_path)
    yield made
    made.close()


def findings_of(grown: Garden, report: Report) -> list[tuple[str, str | None]]:
    """(rule, job's name) of each finding."""
    names = {job_id: name for name, job_id in grown.ids.items()}
    return [(f.rule, None if f.job_id is None else names.get(f.job_id, f.job_id)) for f in report.findings]


def mended(grown: Garden) -> Report:
    """Repair the store: every finding is repaired, and a second check finds nothing."""
    looked = grown.store.check()
    assert not looked.clean
    assert not looked.ok
    assert all(finding.repair is None for finding in looked.findings)
    report = grown.store.check(repair=True)
    # Repair runs in passes, and a later pass may find more, but not of another job.
    first, all_of_them = findings_of(grown, looked), findings_of(grown, report)
    assert all_of_them[: len(first)] == first, "repair found other faults than check"
    assert {job for _, job in all_of_them} <= {job for _, job in first} | {None}
    assert all(finding.repair for finding in report.findings), report.findings
    assert report.ok
    assert_sound(grown.store)
    return report


def changes(before: dict[tuple[int, bytes], bytes], after: dict[tuple[int, bytes], bytes]) -> set[tuple[int, bytes]]:
    return {at for at in before.keys() | after.keys() if before.get(at) != after.get(at)}


# ── rows that can be made again, or are too many: afterwards the store is what it was, to the byte ───────────────────


def _ended(grown: Garden, name: str) -> bytes:
    return keyspace.ended(grown.number, grown.state(name).ended_at_ms, grown.job(name))


def _lease_due(grown: Garden) -> bytes:
    lease, _, record = grown.lease(grown.claim)
    return keyspace.due(Due.LEASE, record.expires_at_ms, grown.number, lease)


def _request_due(grown: Garden, request: bytes) -> bytes:
    key = keyspace.digest(request)
    record = records.decode_request(grown.get(REQUESTS, keyspace.request(key, 0)))
    return keyspace.due(Due.REQUEST, record.until_ms, record.parts, key)


def _meter(grown: Garden) -> int:
    return records.decode_struct(records.QuotaRecord, grown.get(META, keyspace.quota_row("acme")), "").number


def _miscount(grown: Garden, counter: Usage, delta: int) -> None:
    key = keyspace.counter(_meter(grown), counter)
    grown.write(lambda tx: tx.add(key, delta))


def _unmetered(grown: Garden) -> None:
    at = keyspace.queue_row("acme", "work")
    record = records.decode_struct(records.QueueRecord, grown.get(QUEUES, at), "")
    raw = records.encode_struct(msgspec.structs.replace(record, meter=0))
    grown.put(QUEUES, at, raw)
    grown.store._backend._core.registry.learn(registered(raw))  # type: ignore[attr-defined]


def _empty_lease(grown: Garden) -> None:
    at = keyspace.of_queue(grown.number, NOBODY)
    until = grown.lease(grown.claim)[2].expires_at_ms
    grown.put(LEASES, at, records.encode_lease(records.new_lease(until, 1, 1, bytes(16), "w3")))
    grown.put(LEASE_JOBS, at, records.encode_lease_jobs([grown.job("ready")], [99]))
    grown.put(DUE, keyspace.due(Due.LEASE, until, grown.number, NOBODY))


def _spoil_counter(grown: Garden, name: Counter) -> None:
    grown.spoil(COUNTERS, keyspace.counter(grown.number, name))


def _spoil_job(grown: Garden, name: str) -> None:
    grown.spoil(JOBS, grown.at(name))


RESTORED: dict[str, tuple[str, str | None, Plant]] = {
    "no ready row": ("index", "ready", lambda g: g.delete(READY, g.ready_key("ready"))),
    "no ready row of a delayed job": ("index", "later", lambda g: g.delete(READY, g.ready_key("later"))),
    "no done row": ("index", "done", lambda g: g.delete(DONE, _ended(g, "done"))),
    "no dead row": ("index", "dead", lambda g: g.delete(DEAD, _ended(g, "dead"))),
    "a ready row of no job": ("index", NOBODY.hex(), lambda g: g.put(READY, keyspace.ready(g.number, 9, 1, NOBODY))),
    "a second ready row": ("index", "ready", lambda g: g.put(READY, keyspace.ready(g.number, 0, 1, g.job("ready")))),
    "a ready row of a leased job": (
        "index", "held-1", lambda g: g.put(READY, keyspace.ready(g.number, 8, 1, g.job("held-1"))),
    ),
    "a dead row of a ready job": ("index", "ready", lambda g: g.put(DEAD, keyspace.ended(g.number, 5, g.job("ready")))),
    "a done row of no job": ("index", NOBODY.hex(), lambda g: g.put(DONE, keyspace.ended(g.number, 5, NOBODY))),
    "a lease nothing ends": ("due", None, lambda g: g.delete(DUE, _lease_due(g))),
    "a ttl nothing ends": (
        "due", "mortal", lambda g: g.delete(DUE, keyspace.due(Due.TTL, g.state("mortal").due_at_ms, g.number, g.job("mortal"))),
    ),
    "a retention nothing ends": (
        "due", "done", lambda g: g.delete(DUE, keyspace.due(Due.RETENTION, g.state("done").due_at_ms, g.number, g.job("done"))),
    ),
    "a due row of no lease": ("orphan", None, lambda g: g.put(DUE, keyspace.due(Due.LEASE, 2**44, g.number, NOBODY))),
    "a due row of a job without ttl": (
        "orphan", "ready", lambda g: g.put(DUE, keyspace.due(Due.TTL, 2**44, g.number, g.job("ready"))),
    ),
    "a due row of no job": (
        "orphan", NOBODY.hex(), lambda g: g.put(DUE, keyspace.due(Due.RETENTION, 2**44, g.number, NOBODY)),
    ),
    "a lease with no job": ("empty_lease", None, _empty_lease),
    "a lost job of no lease": (
        "orphan", None, lambda g: g.put(LEASE_JOBS, keyspace.lost_job(g.number, NOBODY, NOBODY)),
    ),
    "notes of no job": (
        "orphan", NOBODY.hex(),
        lambda g: g.put(NOTES, keyspace.of_queue(g.number, NOBODY), records.encode_struct(records.Notes(error="x"))),
    ),
    "notes the state does not know": (
        "orphan", "ready", lambda g: g.put(NOTES, g.at("ready"), records.encode_struct(records.Notes(error="x"))),
    ),
    "a payload part of no job": (
        "orphan", NOBODY.hex(), lambda g: g.put(PAYLOAD, keyspace.payload_part(g.number, NOBODY, 1), records.seal(b"\1x")),
    ),
    "a payload part of a small job": (
        "orphan", "ready",
        lambda g: g.put(PAYLOAD, keyspace.payload_part(g.number, g.job("ready"), 1), records.seal(b"\1x")),
    ),
    "a payload part past the last": (
        "orphan", "big", lambda g: g.put(PAYLOAD, keyspace.payload_part(g.number, g.job("big"), 9), records.seal(b"\1x")),
    ),
    "an outcome nothing forgets": ("due", None, lambda g: g.delete(DUE, _request_due(g, b"small"))),
    "a large outcome nothing forgets": ("due", None, lambda g: g.delete(DUE, _request_due(g, b"large"))),
    "a due row of no request": ("orphan", None, lambda g: g.put(DUE, keyspace.due(Due.REQUEST, 2**44, 0, NOBODY))),
    "a part of no outcome": (
        "orphan", None, lambda g: g.put(REQUESTS, keyspace.request(NOBODY, 1), records.seal(b"\1x")),
    ),
    "a part past an outcome's last": (
        "orphan", None, lambda g: g.put(REQUESTS, keyspace.request(keyspace.digest(b"large"), 9), records.seal(b"\1x")),
    ),
    "a bucket of a queue without a rate": (
        "limit", None,
        lambda g: g.put(LIMITS, keyspace.limit(Limit.QUEUE_RATE, g.number), records.encode_bucket(10**18)),
    ),
    "a bucket of no queue": (
        "limit", None, lambda g: g.put(LIMITS, keyspace.limit(Limit.QUEUE_RATE, 99), records.encode_bucket(1)),
    ),
    "a tenant's counter too high": (
        "counters", None, lambda g: _miscount(g, Usage.JOBS, 3),
    ),
    "a tenant's counter of bytes too low": (
        "counters", None, lambda g: _miscount(g, Usage.STORED, -1),
    ),
    "a tenant's counter damaged": ("counters", None, lambda g: g.spoil(COUNTERS, keyspace.counter(_meter(g), Usage.STORED))),
    "a queue of the tenant that is not counted": ("quota", None, _unmetered),
    "a bucket of no tenant": (
        "limit", None, lambda g: g.put(LIMITS, keyspace.limit(Limit.TENANT_REQUESTS, 99), records.encode_bucket(1)),
    ),
    "a counter too high": (
        "counters", None, lambda g: g.write(lambda tx: tx.add(keyspace.counter(g.number, Counter.WAITING), 5)),
    ),
    "a counter too low": (
        "counters", None, lambda g: g.write(lambda tx: tx.add(keyspace.counter(g.number, Counter.LEASED), -2)),
    ),
    "a counter gone": ("counters", None, lambda g: g.delete(COUNTERS, keyspace.counter(g.number, Counter.DEAD))),
    "removed too high": (
        "conservation", None, lambda g: g.write(lambda tx: tx.add(keyspace.counter(g.number, Counter.REMOVED), 5)),
    ),
    **{
        f"counter {name.name.lower()} damaged": (
            "counters", None, partial(_spoil_counter, name=name),
        )
        for name in Counter
        if name is not Counter.BLOCKED  # no row: the store has no blocked job
    },
}  # fmt: skip


@pytest.mark.parametrize("what", RESTORED)
def test_a_row_is_restored(grown: Garden, what: str) -> None:
    rule, job, plant = RESTORED[what]
    before = grown.rows()
    plant(grown)
    assert grown.rows() != before
    report = mended(grown)
    assert findings_of(grown, report) == [(rule, job)]
    changed = changes(before, grown.rows())
    if rule == "conservation":  # either of the two counters may be the wrong one
        assert {space for space, _ in changed} <= {COUNTERS}
    else:
        assert changed == set()


# ── leases ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _wrong_open(grown: Garden) -> None:
    _, at, record = grown.lease(grown.claim)
    grown.put(LEASES, at, records.encode_lease(record._replace(open=7)))


BROKEN_LEASES: dict[str, tuple[str, Plant]] = {
    "its row is gone": ("lease", lambda g: g.delete(LEASES, g.lease(g.claim)[1])),
    "its row is damaged": ("damaged", lambda g: g.spoil(LEASES, g.lease(g.claim)[1])),
    "its jobs are gone": ("damaged", lambda g: g.delete(LEASE_JOBS, g.lease(g.claim)[1])),
    "its jobs are damaged": ("damaged", lambda g: g.spoil(LEASE_JOBS, g.lease(g.claim)[1])),
    "it counts wrong": ("lease", _wrong_open),
}


@pytest.mark.parametrize("what", BROKEN_LEASES)
def test_the_jobs_of_a_broken_lease_are_ready_again(grown: Garden, what: str) -> None:
    rule, plant = BROKEN_LEASES[what]
    other, tokens = grown.lease(grown.second), {d.id: d.token for d in grown.claim}
    before = grown.queue.counts()
    plant(grown)
    report = mended(grown)
    assert findings_of(grown, report)[0] == (rule, None)
    assert {job for _, job in findings_of(grown, report)} == {None}
    assert "3 jobs" in str(report.findings[0].repair)
    after = grown.queue.counts()
    assert (after.ready, after.leased) == (before.ready + 3, before.leased - 3)
    for delivery in grown.claim:
        with pytest.raises(LeaseLost):
            grown.queue.ack(delivery)
    assert grown.lease(grown.second) == other, "another lease was touched"
    again = grown.queue.claim(limit=3, lease=60)
    assert {d.id: d.token for d in again} == {job_id: token + 1 for job_id, token in tokens.items()}
    assert grown.queue.ack_many(list(again)).lost == []
    assert grown.queue.ack_many([grown.second[0], grown.second[1]]).lost == []
    assert_sound(grown.store)


# ── states ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("gone", [False, True], ids=["damaged", "gone"])
@pytest.mark.parametrize("name", ["ready", "later", "retried", "keyed", "mortal", "big", "done", "dead"])
def test_a_lost_state_comes_back_from_the_journal(grown: Garden, name: str, gone: bool) -> None:
    job_before = grown.queue.get(grown.ids[name])
    counts = grown.queue.counts()
    assert job_before is not None
    (grown.delete if gone else grown.spoil)(STATE, grown.at(name))
    report = mended(grown)
    found = findings_of(grown, report)
    assert ("orphan" if gone else "damaged", name) in found
    assert {job for _, job in found} <= {name, None}, "another job was found wrong"
    assert any("journal" in str(finding.repair) for finding in report.findings)
    job = grown.queue.get(grown.ids[name])
    assert job is not None
    for field in ("state", "token", "attempt", "max_attempts", "priority", "visible_at_ms", "ended_at_ms", "reason",
                  "payload", "headers", "key", "created_at_ms", "error", "result"):  # fmt: skip
        assert getattr(job, field) == getattr(job_before, field), field
    assert grown.queue.counts() == counts
    if name == "mortal":  # its ttl is kept
        grown.clock.advance(3700)
        grown.store.sweep()
        assert grown.queue.get(grown.ids[name]) is None
    if name == "done":  # and its retention
        grown.clock.advance(100_000)
        grown.store.sweep()
        assert grown.queue.get(grown.ids[name]) is None
    assert_sound(grown.store)


@pytest.mark.parametrize("gone", [False, True], ids=["damaged", "gone"])
def test_a_lost_state_under_a_lease_stays_under_it(grown: Garden, gone: bool) -> None:
    before = grown.queue.get(grown.ids["held-2"])
    lease = grown.lease(grown.claim)
    (grown.delete if gone else grown.spoil)(STATE, grown.at("held-2"))
    report = mended(grown)
    assert {job for _, job in findings_of(grown, report)} <= {"held-2", None}
    assert grown.queue.get(grown.ids["held-2"]) == before
    assert grown.lease(grown.claim) == lease
    assert grown.queue.ack_many(list(grown.claim)).lost == []
    assert_sound(grown.store)


def test_a_batch_tells_damaged_jobs_from_lost_ones(grown: Garden) -> None:
    grown.spoil(keyspace.STATE, grown.at("held-2"))
    grown.queue.cancel(grown.ids["held-3"])
    settled = grown.queue.ack_many(list(grown.claim))
    held = [grown.ids[name] for name in ("held-1", "held-2", "held-3")]
    assert (settled.done, settled.damaged, settled.lost) == ([held[0]], [held[1]], [held[2]])


@pytest.mark.parametrize("loss", ["missing", "unreadable"])
def test_a_batch_settles_the_jobs_of_other_leases_than_the_damaged_one(grown: Garden, loss: str):
    """Jobs without a readable lease are damaged, and do not keep the other jobs of the call from being settled."""
    grown.queue.enqueue(b"other")
    other = grown.queue.claim(lease=600)
    at = keyspace.of_queue(grown.number, grown.claim[0].lease)
    if loss == "missing":
        grown.delete(keyspace.LEASES, at)
    else:
        grown.spoil(keyspace.LEASES, at)
    settled = grown.queue.ack_many([*grown.claim, *other])
    assert settled.done == [other[0].id]
    assert settled.damaged == [delivery.id for delivery in grown.claim]
    assert settled.lost == []
    with pytest.raises(Corrupt) as corrupt:
        grown.queue.ack(grown.claim[0])
    assert corrupt.value.job_id == grown.claim[0].id


def test_a_job_without_state_and_events_waits_again(grown: Garden) -> None:
    """Only its row in `jobs` exists: it is kept, and gets a token larger than any that was given."""
    row, _ = records.encode_job(5, b"who am I", b"", b"")
    grown.put(JOBS, keyspace.of_queue(grown.number, NOBODY), row)
    report = mended(grown)
    assert ("orphan", NOBODY.hex()) in findings_of(grown, report)
    job = grown.queue.get(NOBODY.hex())
    assert job is not None
    assert (job.payload, job.state) == (b"who am I", "ready")


# ── what is lost, is said to be lost ─────────────────────────────────────────────────────────────────────────────────

LOST: dict[str, tuple[str, Plant]] = {
    **{f"the payload of {name} is damaged": (name, partial(_spoil_job, name=name))
       for name in ("ready", "later", "keyed", "mortal", "big", "held-2", "done", "dead")},
    "a payload is gone": ("ready", lambda g: g.delete(JOBS, g.at("ready"))),
    "a part is gone": ("big", lambda g: g.delete(PAYLOAD, keyspace.payload_part(g.number, g.job("big"), 2))),
    "a part is damaged": ("big", lambda g: g.spoil(PAYLOAD, keyspace.payload_part(g.number, g.job("big"), 1))),
}  # fmt: skip


@pytest.mark.parametrize("what", LOST)
def test_a_job_without_its_payload_is_removed_with_an_event(grown: Garden, what: str) -> None:
    name, plant = LOST[what]
    others = {n: grown.queue.get(job_id) for n, job_id in grown.ids.items() if n != name}
    counts = grown.queue.counts()
    plant(grown)
    report = mended(grown)
    assert findings_of(grown, report) == [("damaged", name)]
    assert "payload is lost" in str(report.findings[0].repair)
    assert grown.queue.get(grown.ids[name]) is None
    assert grown.queue.timeline(grown.ids[name])[-1].type == "repaired"
    assert grown.queue.counts().removed == counts.removed + 1
    assert {n: grown.queue.get(job_id) for n, job_id in grown.ids.items() if n != name} == others
    leftover = [at for at in grown.rows() if grown.job(name) in at[1] and at[0] not in (LEASE_JOBS, JOURNAL)]
    assert leftover == []
    held = [d for d in grown.claim if d.id != grown.ids[name]]
    assert grown.queue.ack_many(held).lost == []
    assert_sound(grown.store)


@pytest.mark.parametrize("gone", [False, True], ids=["damaged", "gone"])
@pytest.mark.parametrize("name", ["done", "dead", "retried", "held-1"])
def test_lost_notes_cost_the_notes_only(grown: Garden, name: str, gone: bool) -> None:
    before = grown.queue.get(grown.ids[name])
    rows = grown.rows()
    assert before is not None
    (grown.delete if gone else grown.spoil)(NOTES, grown.at(name))
    report = mended(grown)
    assert findings_of(grown, report) == [("damaged", name)]
    assert "lost" in str(report.findings[0].repair)
    after = grown.queue.get(grown.ids[name])
    assert after is not None
    assert (after.state, after.token, after.payload) == (before.state, before.token, before.payload)
    assert (after.error, after.result, after.progress) == (None, None, None)
    assert changes(rows, grown.rows()) == {(NOTES, grown.at(name)), (STATE, grown.at(name))}


@pytest.mark.parametrize("gone", [False, True], ids=["damaged", "gone"])
def test_a_lost_queue_is_made_again_with_its_number(grown: Garden, gone: bool) -> None:
    at = keyspace.queue_row("default", "work")
    rows, policy = grown.rows(), grown.queue.policy()
    (grown.delete if gone else grown.spoil)(QUEUES, at)
    report = mended(grown)
    assert not {job for _, job in findings_of(grown, report)} - {None}, "its jobs are as they were"
    assert "policy" in str(report.findings[0].repair)
    assert grown.queue.policy() == policy
    info = next(q for q in grown.store.queues() if q.tenant == "default")
    assert (info.number, info.paused) == (grown.number, False)
    assert {space for space, _ in changes(rows, grown.rows())} <= {QUEUES, JOURNAL}
    assert grown.queue.ack_many(list(grown.claim)).lost == []


def test_a_damaged_claim_is_forgotten(grown: Garden) -> None:
    at = keyspace.of_queue(grown.number, keyspace.digest(b"claim-1"))
    rows = grown.rows()
    grown.spoil(CLAIMS, at)
    report = mended(grown)
    assert findings_of(grown, report) == [("damaged", None)]
    assert changes(rows, grown.rows()) == {(CLAIMS, at)}


def test_a_lost_quota_is_lifted_and_said_to_be(grown: Garden) -> None:
    grown.spoil(META, keyspace.quota_row("acme"))
    with pytest.raises(Corrupt):
        grown.other.enqueue(b"x")
    report = mended(grown)
    assert findings_of(grown, report)[0] == ("damaged", None)
    assert "set it again" in str(report.findings[0].repair)
    assert grown.store.quotas() == []
    grown.other.enqueue(b"x")
    grown.store.set_quota("acme", Quota(max_waiting=5))
    assert grown.store.quotas()[0].waiting == grown.other.counts().waiting
    assert_sound(grown.store)


@pytest.mark.parametrize("overdrawn", [False, True], ids=["damaged", "overdrawn"])
def test_an_invalid_bucket_is_full_again(grown: Garden, overdrawn: bool) -> None:
    number = next(q.number for q in grown.store.queues() if q.tenant == "acme")
    at = keyspace.limit(Limit.QUEUE_RATE, number)
    rows = grown.rows()
    if overdrawn:
        grown.put(LIMITS, at, records.encode_bucket(2**63))
    else:
        grown.spoil(LIMITS, at)
        with pytest.raises(Corrupt):
            grown.other.claim()
    report = mended(grown)
    assert findings_of(grown, report) == [("limit" if overdrawn else "damaged", None)]
    assert changes(rows, grown.rows()) == {(LIMITS, at)}
    assert len(grown.other.claim()) == 1


@pytest.mark.parametrize("gone", [False, True], ids=["damaged", "gone"])
@pytest.mark.parametrize(("request_id", "part"), [(b"small", 0), (b"large", 0), (b"large", 1)])
def test_a_lost_outcome_is_forgotten_whole(grown: Garden, request_id: bytes, part: int, gone: bool) -> None:
    key = keyspace.digest(request_id)
    rows = grown.rows()
    (grown.delete if gone else grown.spoil)(REQUESTS, keyspace.request(key, part))
    if not gone:
        with pytest.raises(Corrupt):
            backend_of(grown.store).once(request_id).cancel(grown.other.name, bytes(16))
    report = mended(grown)
    assert {job for _, job in findings_of(grown, report)} == {None}
    changed = changes(rows, grown.rows())
    assert {space for space, _ in changed} == {REQUESTS, DUE}
    assert all(key in at for _, at in changed)
    assert not any(key in at for _, at in grown.rows())


@pytest.mark.parametrize("gone", [False, True], ids=["damaged", "gone"])
def test_a_key_is_held_again_by_its_job(grown: Garden, gone: bool) -> None:
    at = keyspace.of_queue(grown.number, keyspace.digest(b"order-17"))
    rows = grown.rows()
    (grown.delete if gone else grown.spoil)(DEDUP, at)
    report = mended(grown)
    assert {job for _, job in findings_of(grown, report)} <= {"keyed", None}
    assert {space for space, _ in changes(rows, grown.rows())} <= {DEDUP, DUE}
    again = grown.queue.enqueue(b"keyed", key="order-17")
    assert (again.id, again.duplicate) == (grown.ids["keyed"], True)


@pytest.mark.parametrize("name", [b"next_queue", b"clock"])
def test_settings_of_the_store_are_made_again(grown: Garden, name: bytes) -> None:
    grown.spoil(META, name)
    report = mended(grown)
    assert findings_of(grown, report) == [("damaged", None)]
    grown.store.queue("new").enqueue(b"x")
    numbers = [q.number for q in grown.store.queues()]
    assert len(set(numbers)) == len(numbers) == 3


@pytest.mark.parametrize("gone", [False, True], ids=["damaged", "gone"])
def test_a_hole_in_the_journal_is_reported_and_not_repaired(grown: Garden, gone: bool) -> None:
    (grown.delete if gone else grown.spoil)(JOURNAL, keyspace.commit(5))
    for repair in (False, True, False):
        report = grown.store.check(repair=repair)
        assert findings_of(grown, report) == [("journal" if gone else "damaged", None)]
        assert "5" in report.findings[0].detail
        assert not report.ok
        assert report.findings[0].repair is None


# ── several at once ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_much_damage_at_once(grown: Garden) -> None:
    grown.delete(READY, grown.ready_key("ready"))
    grown.put(READY, keyspace.ready(grown.number, 9, 1, NOBODY))
    grown.spoil(STATE, grown.at("big"))
    grown.spoil(STATE, grown.at("dead"))
    grown.spoil(JOBS, grown.at("later"))
    grown.spoil(NOTES, grown.at("done"))
    grown.delete(LEASES, grown.lease(grown.claim)[1])
    grown.spoil(COUNTERS, keyspace.counter(grown.number, Counter.REMOVED))
    other = grown.other.counts()
    report = grown.store.check(repair=True)
    assert report.ok, report.findings
    assert_sound(grown.store)
    assert {"ready", NOBODY.hex(), "big", "dead", "later", "done"} <= {job for _, job in findings_of(grown, report)}
    big = grown.queue.get(grown.ids["big"])
    assert big is not None
    assert big.payload == BIG
    assert grown.other.counts() == other
    assert grown.queue.ack_many(list(grown.second)[:2]).lost == []


def test_repair_of_a_sound_store_writes_nothing(grown: Garden) -> None:
    before = grown.rows()
    report = grown.store.check(repair=True)
    assert report.clean
    assert grown.rows() == before
