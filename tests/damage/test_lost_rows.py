"""Rare losses that repair mends: parts of large results, rows of jobs without a journal, places in turns, whole spaces."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import tenure
from tenure import GroupPolicy, NewJob, Policy
from tenure.errors import Corrupt
from tenure.model.report import Report
from tenure.queueing import checking, turns
from tenure.queueing.checking import counters, look, quota_usage
from tenure.queueing.checking.repair import mend
from tenure.queueing.checking.survey import Fault, Survey
from tenure.queueing.queue_turns import queue_sub
from tenure.queueing.turns import Status
from tenure.queueing.unit_of_work import UnitOfWork
from tenure.storage import keyspace, records
from tenure.storage.keyspace import (
    BLOCKED,
    CHILDREN,
    COUNTERS,
    DUE,
    GROUP_READY,
    GROUPS,
    JOB_QUEUES,
    JOBS,
    JOURNAL,
    LEASE_JOBS,
    LIMITS,
    META,
    NOTES,
    PARENTS,
    PAYLOAD,
    QUEUES,
    READY,
    SEGMENTS,
    STATE,
    STEPS,
    TURNS,
    Counter,
    Due,
)
from tenure.testing.conformance.world import assert_sound
from tenure.testing.harness import backend_of, engine_of
from tests.damage.planting import BIG, Garden, garden

NOBODY = bytes(range(16))


@pytest.fixture
def grown(tmp_path: Path) -> Iterator[Garden]:
    made = garden("memory", tmp_path)
    yield made
    made.close()


def core_of(grown: Garden) -> Any:
    return backend_of(grown.store)._core  # type: ignore[attr-defined]  # it is embedded


def repaired(grown: Garden) -> Report:
    report = grown.store.check(repair=True)
    assert report.ok, report.findings
    assert_sound(grown.store)
    return report


def repairs(grown: Garden) -> set[str]:
    return {finding.repair or "" for finding in repaired(grown).findings}


# ── large results ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def with_result(grown: Garden) -> Garden:
    """A done job of a tenant with a quota, whose result has three parts; its name is "result"."""
    other = grown.other
    other.configure(Policy(retention=3600))
    grown.ids["result"] = other.enqueue(NewJob(b"x", priority=9)).id
    (delivery,) = other.claim(1, lease=60)
    assert delivery.id == grown.ids["result"]
    other.ack(delivery, BIG)
    grown.number = next(q.number for q in grown.store.queues() if q.tenant == "acme")
    assert grown.store.check().clean
    return grown


def result_part(grown: Garden, name: str, part: int) -> bytes:
    return keyspace.payload_part(grown.number, grown.job(name), keyspace.RESULT_PARTS + part)


def test_a_part_behind_the_last_of_a_result_is_deleted(with_result: Garden) -> None:
    stray = result_part(with_result, "result", 2)  # parts 0 and 1 belong to it
    with_result.put(PAYLOAD, stray, b"stray")
    assert repairs(with_result) == {"deleted the row from payload"}
    assert with_result.other.get(with_result.ids["result"]).result == BIG  # type: ignore[union-attr]  # it is there


def test_a_part_of_a_result_that_a_job_does_not_have_is_deleted(grown: Garden) -> None:
    grown.put(PAYLOAD, result_part(grown, "ready", 0), b"stray")
    assert repairs(grown) == {"deleted the row from payload"}


@pytest.mark.parametrize("how", ["a part is gone", "a part is damaged", "the notes are damaged", "the notes are gone"])
def test_a_result_that_is_not_whole_is_removed_with_all_its_parts(with_result: Garden, how: str) -> None:
    part = result_part(with_result, "result", 1)
    {
        "a part is gone": lambda: with_result.delete(PAYLOAD, part),
        "a part is damaged": lambda: with_result.spoil(PAYLOAD, part),
        "the notes are damaged": lambda: with_result.spoil(NOTES, with_result.at("result")),
        "the notes are gone": lambda: with_result.delete(NOTES, with_result.at("result")),
    }[how]()
    assert any("progress and result are lost" in said for said in repairs(with_result))
    job = with_result.other.get(with_result.ids["result"])
    assert job is not None
    assert (job.state, job.result) == ("done", None)
    assert not [key for space, key in with_result.rows() if space == PAYLOAD and with_result.job("result") in key]
    (quota,) = with_result.store.quotas("acme")
    assert quota.bytes < 100  # the result no longer counts for its tenant


def test_a_payload_whose_parts_its_state_does_not_know_is_lost(grown: Garden) -> None:
    state = grown.state("big")
    grown.put(STATE, grown.at("big"), records.encode_state(state._replace(flags=state.flags & ~records.HAS_PARTS)))
    assert "removed the job: its payload is lost" in repairs(grown)
    assert grown.queue.get(grown.ids["big"]) is None


# ── jobs without a journal ───────────────────────────────────────────────────────────────────────────────────────────


def test_what_is_left_of_a_job_that_no_row_tells_about_is_removed(grown: Garden) -> None:
    at = keyspace.of_queue(grown.number, NOBODY)
    grown.put(STATE, at, b"\1nonsense")
    grown.put(JOBS, at, b"\1nonsense")
    assert "removed what was left of it" in repairs(grown)
    assert not {at for at in grown.rows() if at[1][4:20] == NOBODY}


def test_a_lost_state_of_a_job_whose_payload_is_gone_too(grown: Garden) -> None:
    grown.spoil(STATE, grown.at("ready"))
    grown.delete(JOBS, grown.at("ready"))
    assert "removed the job: its state and payload are lost" in repairs(grown)


def test_a_done_job_whose_state_and_due_row_are_lost_is_kept_by_the_policy(grown: Garden) -> None:
    before = grown.state("done")
    grown.delete(STATE, grown.at("done"))
    grown.delete(DUE, keyspace.due(Due.RETENTION, before.due_at_ms, grown.number, grown.job("done")))
    repaired(grown)
    after = grown.state("done")
    kept_ms = 86_400_000  # the result's retention, which is longer than the job's
    assert after.due_at_ms == backend_of(grown.store).now_ms() + kept_ms


def test_a_lost_state_of_a_blocked_job_counts_its_parents_again(grown: Garden) -> None:
    parent, child = grown.queue.enqueue_many([NewJob(b"p", name="p", priority=9), NewJob(b"c", after=["#p"])])
    grown.ids["child"] = child.id
    grown.delete(STATE, grown.at("child"))
    grown.delete(BLOCKED, grown.at("child"))
    repaired(grown)
    (delivery,) = grown.queue.claim()
    assert delivery.id == parent.id
    grown.queue.ack(delivery)
    assert grown.queue.get(child.id).state == "ready"  # type: ignore[union-attr]  # it is there


def test_a_job_that_lost_its_state_and_its_queue_gets_both_back(grown: Garden) -> None:
    grown.delete(STATE, grown.at("ready"))
    grown.delete(QUEUES, keyspace.queue_row("default", "work"))
    repaired(grown)
    assert grown.ids["ready"] in {job.id for job in grown.queue.list("ready").jobs}


# ── repair after others ──────────────────────────────────────────────────────────────────────────────────────────────


def test_jobs_that_are_gone_by_now_need_no_repair(grown: Garden) -> None:
    block = keyspace.child_block(keyspace.of_queue(grown.number, NOBODY)) + keyspace.of_queue(grown.number, NOBODY)
    parents = keyspace.parents_row(keyspace.of_queue(grown.number, NOBODY), 0)
    faults = [
        Fault("index", "", "recount_parents", grown.number, NOBODY),
        Fault("index", "", "recount_parents", grown.number, grown.job("ready")),  # it is not blocked any more
        Fault("index", "", "note_links", grown.number, NOBODY),
        Fault("index", "", "recount_steps", grown.number, NOBODY, STEPS),
        Fault("index", "", "thin_block", space=CHILDREN, key=block),
        Fault("damaged", "", "drop_notes", grown.number, NOBODY),
    ]
    before = grown.rows()
    done = mend(core_of(grown), faults)
    assert len(done) == len(faults)
    assert all("nothing to do any more" in said for said in done.values()), done
    assert grown.rows() == before
    for fault in (
        Fault("damaged", "", "replace_block", space=CHILDREN, key=block),
        Fault("damaged", "", "rebuild_parents", space=PARENTS, key=parents),
        Fault("damaged", "", "remove_job", grown.number, NOBODY, JOBS, keyspace.of_queue(grown.number, NOBODY)),
    ):
        grown.put(fault.space, fault.key, b"\1nonsense")
        (said,) = mend(core_of(grown), [fault]).values()
        assert "gone" in said or "left" in said
        assert grown.rows() == before


def test_a_blocked_job_whose_parents_have_all_ended_becomes_ready(grown: Garden) -> None:
    parent, child = grown.queue.enqueue_many([NewJob(b"p", name="p"), NewJob(b"c", after=["#p"])])
    number, job = grown.number, bytes.fromhex(child.id)
    link = keyspace.child(number, bytes.fromhex(parent.id), number, job)
    grown.delete(CHILDREN, link)
    grown.delete(PARENTS, keyspace.parents_row(keyspace.of_queue(number, job), 0))
    assert "made it ready: its parents have all ended" in repairs(grown)
    assert grown.queue.get(child.id).state == "ready"  # type: ignore[union-attr]  # it is there


def test_an_engine_without_segments_breaks_none_up(tmp_path: Path) -> None:
    with contextlib.closing(garden("lmdb", tmp_path)) as grown:
        before = grown.rows()
        fault = Fault("damaged", "", "break_up", grown.number, space=SEGMENTS, key=grown.at("ready"))
        assert mend(core_of(grown), [fault]) == {}
        assert grown.rows() == before


def test_repair_ends_though_faults_keep_coming(grown: Garden, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that damages the same row again after each repair."""
    looked = look

    def spoiled_again(core: Any, progress: Any = None) -> Survey:
        grown.put(READY, keyspace.ready(grown.number, 9, 1, NOBODY))
        return looked(core, progress)

    monkeypatch.setattr(checking, "look", spoiled_again)
    report = grown.store.check(repair=True)
    assert "index" in {finding.rule for finding in report.findings}
    monkeypatch.undo()
    repaired(grown)


# ── leases, limits, quotas ───────────────────────────────────────────────────────────────────────────────────────────


def test_a_lease_that_was_not_given_a_job_that_names_it_ends(grown: Garden) -> None:
    lease, at, _ = grown.lease(grown.claim)
    rows = records.decode_lease_jobs(grown.get(LEASE_JOBS, at), lease)
    grown.put(LEASE_JOBS, at, records.encode_lease_jobs(*zip(*rows[:2], strict=True)))
    assert "was given 2 of the 3 jobs" in next(f.detail for f in grown.store.check().findings if f.rule == "lease")
    assert "ended the lease, and gave 3 jobs back" in repairs(grown)


def test_a_lease_of_a_queue_without_a_row_ends(grown: Garden) -> None:
    """The jobs come back even if the journal does not tell the queue's name any more."""
    grown.delete(LEASE_JOBS, keyspace.of_queue(grown.number, grown.claim.lease))
    grown.delete(QUEUES, keyspace.queue_row("default", "work"))
    fault = next(f for f in look(core_of(grown)).faults if f.mend == "give_back")
    assert mend(core_of(grown), [fault])[fault] == "ended the lease, and gave 3 jobs back"
    repaired(grown)
    assert {d.id for d in grown.queue.claim(3)} == {grown.ids[f"held-{n}"] for n in (1, 2, 3)}


def test_a_limit_of_an_unknown_kind_is_deleted(grown: Garden) -> None:
    stray = bytes((200,)) + keyspace.limit(keyspace.Limit.QUEUE_RATE, grown.number)[1:]
    grown.put(LIMITS, stray, records.encode_bucket(5))
    assert any("unknown kind, 200" in finding.detail for finding in repaired(grown).findings)


def test_a_lost_quota_leaves_queues_that_it_did_not_meter(grown: Garden) -> None:
    late = grown.store.queue("late", tenant="acme")
    late.resume()
    row = keyspace.queue_row("acme", "late")
    record = records.decode_struct(records.QueueRecord, grown.get(QUEUES, row), "a queue")
    assert record.meter
    grown.put(QUEUES, row, records.encode_struct(msgspec.structs.replace(record, meter=0)))
    grown.spoil(META, keyspace.quota_row("acme"))
    assert any("lifted the quota of tenant acme" in said for said in repairs(grown))
    assert grown.store.quotas("acme") == []


# ── turns and groups ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_tenant_without_a_place_gets_one(grown: Garden) -> None:
    """Its queue keeps its place: only the tenant's rows are lost."""
    scope = keyspace.TENANT_TURNS
    for space, key in list(grown.rows()):
        if space == TURNS and (key[1:9] == scope or key.startswith(keyspace.turn(scope, 0, b"")[:9])):
            grown.delete(space, key)
    assert {f.rule for f in grown.store.check().findings} == {"index"}
    assert "gave it a place among those that take turns" in repairs(grown)
    assert {grown.store.claim_any(limit=1).queue.name.tenant for _ in range(4)} == {"default", "acme"}


def test_a_queue_that_nothing_holds_up_gets_its_turn(grown: Garden) -> None:
    """A release that did not bring it back left it so, when it was no longer at its limit."""

    def hold_up(unit: UnitOfWork) -> None:
        queue = unit.numbered(grown.number)
        assert queue is not None
        before = turns.place(unit.tx, queue_sub(queue))
        assert before is not None
        turns.move(unit.tx, queue_sub(queue), before, turns.blocked(before))

    grown.queue.enqueue(b"x")
    core_of(grown).write(hold_up)
    assert {f.rule for f in grown.store.check().findings} == {"index"}
    assert "gave it a place among those that take turns" in repairs(grown)
    assert grown.queue.name in {grown.store.claim_any(limit=1).queue.name for _ in range(4)}


def test_a_turn_that_came_right_is_left(grown: Garden) -> None:
    before = grown.rows()
    mend(core_of(grown), [Fault("index", "", "offer_turn", grown.number)])
    assert grown.rows() == before


def parked_group(grown: Garden) -> bytes:
    """A group whose jobs are all scheduled, or at its limit: its turn is parked. Returns the key of its row."""
    grown.queue.configure(Policy(group=GroupPolicy(max_leased=1)))
    grown.queue.enqueue_many([NewJob(b"g", group="g", delay=1000, priority=3)] * 2)
    (key,) = [key for space, key in grown.rows() if space == GROUPS]
    places = records.decode_group(grown.get(GROUPS, key)).places
    assert {place.status for place in places.values()} == {Status.PARKED}
    return key


def test_the_parked_turn_of_a_lost_group_is_used_again(grown: Garden) -> None:
    key = parked_group(grown)
    before = {at for at in grown.rows() if at[0] == TURNS}
    grown.delete(GROUPS, key)
    assert any("counted the group's jobs anew" in said for said in repairs(grown))
    assert {at for at in grown.rows() if at[0] == TURNS} == before
    grown.clock.advance(1001)
    assert "g" in {d.group for d in grown.queue.claim(20)}


def test_a_group_that_lost_all_its_jobs_is_removed_with_its_turns(grown: Garden) -> None:
    job = bytes.fromhex(grown.queue.enqueue(NewJob(b"g", group="g")).id)
    lost = [at for at in grown.rows() if at[1][-16:] == job and at[0] != COUNTERS]
    assert {space for space, _ in lost} >= {JOBS, STATE, READY, GROUP_READY}
    for space, key in lost:
        grown.delete(space, key)
    repaired(grown)  # in one call
    assert not [key for space, key in grown.rows() if space == GROUPS]


def test_a_parked_turn_that_moved_is_deleted(grown: Garden) -> None:
    key = parked_group(grown)
    record = records.decode_group(grown.get(GROUPS, key))
    ((tier, place),) = record.places.items()
    stray = keyspace.turn(keyspace.parked_groups(grown.number), place.at_ms + 7, bytes((tier,)) + key[4:])
    grown.put(TURNS, stray)
    assert any("its place is another" in finding.detail for finding in repaired(grown).findings)


def test_a_turn_of_a_group_that_is_not_there_is_deleted(grown: Garden) -> None:
    parked_group(grown)
    grown.put(TURNS, keyspace.turn(keyspace.group_turns(grown.number, 6), 5, b"x" * 16))
    assert any("its place is another" in finding.detail for finding in repaired(grown).findings)


# ── rows that the engine cannot read ─────────────────────────────────────────────────────────────────────────────────


def unreadable(grown: Garden, monkeypatch: pytest.MonkeyPatch, space: int, key: bytes) -> None:
    """Let the engine refuse one row in every read, as RocksDB does for a block with a wrong checksum."""
    engine = engine_of(grown.store)
    snapshot = engine.snapshot

    def damaged(*arguments: Any) -> Any:
        moment = snapshot(*arguments)
        get_many, get, salvage = moment.get_many, moment.get, moment.salvage

        def refuse(of: int, keys: Any) -> None:
            if of == space and key in keys:
                raise Corrupt("bad block", key=key)

        def read_many(of: int, keys: Any) -> Any:
            refuse(of, keys)
            return get_many(of, keys)

        def read(of: int, at: bytes) -> Any:
            refuse(of, (at,))
            return get(of, at)

        def save(of: int, begin: bytes, limit: int) -> Any:
            rows, damage = salvage(of, begin, limit)
            if of == space and any(at == key for at, _ in rows):
                return [row for row in rows if row[0] != key], [*damage, Corrupt("bad block", key=key)]
            return rows, damage

        moment.get_many, moment.get, moment.salvage = read_many, read, save
        return moment

    monkeypatch.setattr(engine, "snapshot", damaged)


@pytest.mark.parametrize("space", [JOBS, NOTES], ids=["payload", "notes"])
def test_a_block_that_the_engine_cannot_read_is_one_fault_of_its_job(
    grown: Garden, monkeypatch: pytest.MonkeyPatch, space: int
) -> None:
    unreadable(grown, monkeypatch, space, grown.at("retried"))
    found = grown.store.check().findings
    assert {finding.job_id for finding in found} == {grown.ids["retried"]}, found
    assert {finding.rule for finding in found} == {"damaged"}


def test_the_place_of_a_queue_that_the_engine_cannot_read_is_one_fault(
    grown: Garden, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = next(key for space, key in grown.rows() if space == TURNS and key[:1] == keyspace.turn_place(b"", b"")[:1])
    unreadable(grown, monkeypatch, TURNS, place)
    assert {finding.rule for finding in grown.store.check().findings} == {"damaged"}


def test_nothing_is_recounted_from_states_that_cannot_be_read_as_a_whole(grown: Garden) -> None:
    grown.delete(COUNTERS, keyspace.counter(grown.number, Counter.WAITING))
    with engine_of(grown.store).snapshot() as moment:
        for recount in (counters, quota_usage):
            survey = Survey(moment)
            survey.queues = {queue.number: queue for queue in core_of(grown).registry.all(moment)}
            recount.check(survey)
            assert survey.faults  # it read no state, so that all counts are wrong
            survey.faults.clear()
            survey.unreadable.add(STATE)
            recount.check(survey)
            assert survey.faults == []


def test_a_row_that_leads_to_a_damaged_job_is_not_stray(grown: Garden) -> None:
    """A job that was restored into another queue: its id leads there by a row of its own."""
    job = grown.queue.get(grown.ids["later"])
    assert job is not None
    grown.store.queue("moved").restore([job])
    number = next(q.number for q in grown.store.queues() if q.queue == "moved")
    grown.number = number
    assert grown.store.get(grown.ids["later"]) is not None
    grown.spoil(STATE, grown.at("later"))
    grown.put(JOB_QUEUES, NOBODY, grown.get(JOB_QUEUES, grown.job("later")))
    stray = [finding for finding in grown.store.check().findings if finding.rule == "orphan"]
    assert len(stray) == 1
    repaired(grown)
    assert NOBODY not in {key for space, key in grown.rows() if space == JOB_QUEUES}


def test_lmdb_compares_its_own_count_of_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with tenure.open(f"lmdb:{tmp_path / 'data'}", sweep=False) as store:
        store.queue("work").enqueue_many([b"x"] * 5)
        engine = engine_of(store)
        with engine.snapshot() as moment:
            assert moment.entries(JOBS) is not None
            kind = type(moment)
        entries = kind.entries
        monkeypatch.setattr(kind, "entries", lambda self, space: entries(self, space) + (space == JOURNAL))
        (finding,) = store.check().findings
        assert "by the engine's own count" in finding.detail
