"""What repair does when the store has moved on since the check looked, and when two rows of one job are lost at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tenure import NewJob, Policy
from tenure.errors import AlreadySettled, Corrupt, LeaseLost
from tenure.model.ids import job_id_bytes
from tenure.model.report import Report
from tenure.queueing.checking import look
from tenure.queueing.checking.repair import mend
from tenure.queueing.checking.survey import Fault, Survey
from tenure.storage import keyspace, records
from tenure.storage.keyspace import (
    CHILDREN,
    DEDUP,
    DUE,
    JOBS,
    JOURNAL,
    LEASE_JOBS,
    LEASES,
    META,
    NOTES,
    PARENTS,
    QUEUES,
    READY,
    REQUESTS,
    STATE,
    TURNS,
    Due,
)
from tenure.testing.conformance.world import assert_sound
from tenure.testing.harness import backend_of
from tests.damage.planting import Garden, garden

Step = Callable[[Garden], None]


@pytest.fixture
def grown(tmp_path: Path) -> Iterator[Garden]:
    made = garden("memory", tmp_path)
    yield made
    made.close()


def core_of(grown: Garden) -> Any:
    return backend_of(grown.store)._core  # type: ignore[attr-defined]  # it is embedded


def restore(grown: Garden, before: dict[tuple[int, bytes], bytes]) -> None:
    """Every row as it was."""
    now = grown.rows()
    for space, key in now.keys() - before.keys():
        grown.delete(space, key)
    for (space, key), value in before.items():
        if now.get((space, key)) != value:
            grown.put(space, key, value)


def _restate(grown: Garden, name: str, **fields: Any) -> None:
    grown.put(STATE, grown.at(name), records.encode_state(grown.state(name)._replace(**fields)))


def _relabel(grown: Garden, **fields: Any) -> None:
    _, at, record = grown.lease(grown.claim)
    grown.put(LEASES, at, records.encode_lease(record._replace(**fields)))


def _lease_due(grown: Garden) -> bytes:
    lease, _, record = grown.lease(grown.claim)
    return keyspace.due(Due.LEASE, record.expires_at_ms, grown.number, lease)


def _request_due(grown: Garden) -> bytes:
    key = keyspace.digest(b"small")
    record = records.decode_request(grown.get(REQUESTS, keyspace.request(key, 0)))
    return keyspace.due(Due.REQUEST, record.until_ms, record.parts, key)


def _no_place(grown: Garden) -> None:
    for space, key in grown.rows():
        if space == TURNS and key[-4:] == grown.number.to_bytes(4, "big"):
            grown.delete(space, key)


RIGHT_AGAIN: dict[str, Step] = {
    "a ready row": lambda g: _restate(g, "ready", visible_at_ms=5),
    "a ready row that was missing": lambda g: g.delete(READY, g.ready_key("ready")),
    "a state": lambda g: g.spoil(STATE, g.at("ready")),
    "a lease's number of cancelled jobs": lambda g: _relabel(g, lost=2),
}


@pytest.mark.parametrize("what", RIGHT_AGAIN)
def test_what_came_right_since_the_check_is_left_as_it_is(grown: Garden, what: str) -> None:
    before = grown.rows()
    RIGHT_AGAIN[what](grown)
    faults = look(core_of(grown)).faults
    assert faults
    restore(grown, before)
    mend(core_of(grown), [fault for fault in faults if fault.rule not in ("journal", "counters")])
    assert {at for at in grown.rows().items() ^ before.items() if at[0][0] != JOURNAL} == set()
    assert_sound(grown.store)


MOVED_ON: dict[str, tuple[Step, Step, str]] = {
    "the lease was extended": (
        lambda g: g.delete(DUE, _lease_due(g)), lambda g: _extended(g), "the lease has moved on",
    ),
    "the lease has ended": (
        lambda g: _relabel(g, lost=2), lambda g: _all_settled(g), "the lease has ended",
    ),
    "the request is forgotten": (
        lambda g: g.delete(DUE, _request_due(g)),
        lambda g: g.delete(REQUESTS, keyspace.request(keyspace.digest(b"small"), 0)), "the request is forgotten",
    ),
    "the job with the key has ended": (
        lambda g: g.delete(DEDUP, keyspace.of_queue(g.number, keyspace.digest(b"order-17"))),
        lambda g: _cancelled(g, "keyed"), "the job has ended",
    ),
    "the job with the notes has ended": (
        lambda g: g.delete(NOTES, g.at("retried")), lambda g: _cancelled(g, "retried"), "the job is gone",
    ),
    "the job that waits has ended": (
        lambda g: g.delete(READY, g.ready_key("ready")), lambda g: _cancelled(g, "ready"), "the job has moved on",
    ),
}  # fmt: skip


def _extended(grown: Garden) -> None:
    _, at, record = grown.lease(grown.claim)
    until = record.expires_at_ms + 1000
    grown.put(LEASES, at, records.encode_lease(record._replace(expires_at_ms=until)))
    grown.put(DUE, keyspace.due(Due.LEASE, until, grown.number, grown.claim.lease))


def _all_settled(grown: Garden) -> None:
    _relabel(grown, lost=0)
    assert grown.queue.ack_many(list(grown.claim)).lost == []


def _cancelled(grown: Garden, name: str) -> None:
    assert grown.queue.cancel(grown.ids[name])


@pytest.mark.parametrize("what", MOVED_ON)
def test_a_fault_of_what_moved_on_since_the_check_is_not_mended(grown: Garden, what: str) -> None:
    plant, move, said = MOVED_ON[what]
    plant(grown)
    faults = [fault for fault in look(core_of(grown)).faults if fault.mend]
    assert faults
    move(grown)
    before = grown.rows()
    done = mend(core_of(grown), faults)
    assert any(said in text for text in done.values()), done
    assert grown.rows() == before
    assert_sound(grown.store)


def test_faults_of_a_queue_and_a_job_that_are_gone_are_not_mended(grown: Garden) -> None:
    core, before = core_of(grown), grown.rows()
    nobody = bytes(range(16))
    faults = [
        Fault("index", "", "offer_turn", 99),
        Fault("quota", "", "set_meter", 99),
        Fault("index", "", "note_queue", grown.number, nobody),
        Fault("index", "", "hold_key", 99, nobody),
        Fault("journal", "", "gone", grown.number, grown.job("ready")),
        Fault("damaged", "", "queue_row", 99),
    ]
    done = mend(core, faults)
    assert all("nothing to do any more" in text for text in done.values())
    assert {fault.mend for fault in faults} - {fault.mend for fault in done} == {"queue_row"}  # no journal names it
    assert grown.rows() == before


# ── two rows of one job ──────────────────────────────────────────────────────────────────────────────────────────────


def repaired(grown: Garden) -> Report:
    report = grown.store.check(repair=True)
    assert report.ok, report.findings
    assert_sound(grown.store)
    return report


def test_a_job_whose_state_and_payload_are_lost_is_removed_with_an_event(grown: Garden) -> None:
    grown.spoil(STATE, grown.at("ready"))
    grown.spoil(JOBS, grown.at("ready"))
    report = repaired(grown)
    assert "removed the job: its state and payload are lost" in [finding.repair for finding in report.findings]
    assert grown.queue.get(grown.ids["ready"]) is None
    assert grown.queue.timeline(grown.ids["ready"])[-1].type == "repaired"


@pytest.mark.parametrize("gone", [False, True], ids=["damaged", "gone"])
@pytest.mark.parametrize("space", [LEASES, LEASE_JOBS])
def test_a_job_whose_state_and_lease_are_lost_waits_again(grown: Garden, space: int, gone: bool) -> None:
    token = grown.claim[1].token
    grown.delete(STATE, grown.at("held-2"))
    (grown.delete if gone else grown.spoil)(space, keyspace.of_queue(grown.number, grown.claim.lease))
    repaired(grown)
    job = grown.queue.get(grown.ids["held-2"])
    assert job is not None
    assert (job.state, job.token) == ("ready", token)
    assert {d.id for d in grown.queue.claim(limit=3, lease=60)} == {grown.ids[f"held-{n}"] for n in (1, 2, 3)}


@pytest.mark.parametrize("gone", [False, True], ids=["damaged", "gone"])
def test_a_lost_state_whose_first_event_is_lost_too_comes_back_all_the_same(grown: Garden, gone: bool) -> None:
    first, last = grown.queue.timeline(grown.ids["done"])[0], grown.state("done")
    grown.spoil(STATE, grown.at("done"))
    (grown.delete if gone else grown.spoil)(JOURNAL, keyspace.commit(first.commit))
    report = grown.store.check(repair=True)
    assert not report.ok  # what the journal has lost stays lost
    after = grown.state("done")
    assert (after.state, after.token, after.ended_at_ms) == (last.state, last.token, last.ended_at_ms)
    assert after.visible_at_ms == 0
    assert grown.queue.get(grown.ids["done"]).result == b"the result"  # type: ignore[union-attr]  # it is there


def test_a_state_and_the_journal_that_disagree_are_told(grown: Garden) -> None:
    _restate(grown, "dead", token=grown.state("dead").token + 5, reason=1)
    (finding,) = [f for f in grown.store.check().findings if f.rule == "journal"]
    assert "token" in finding.detail
    assert "reason" in finding.detail
    assert finding.job_id == grown.ids["dead"]


def test_a_state_that_names_an_event_which_is_not_its_own_is_told(grown: Garden) -> None:
    _restate(grown, "dead", last_event=grown.state("dead").last_event + 1)
    details = [f.detail for f in grown.store.check().findings]
    assert any("name a last event that is still kept" in detail for detail in details), details


def test_rows_of_the_journal_out_of_line_are_told(grown: Garden) -> None:
    key = keyspace.commit(5)
    row = records.decode_journal(grown.get(JOURNAL, key), 5)
    number, time_ms = row.header.first_number, row.header.time_ms
    value = records.rebase_journal(grown.get(JOURNAL, key), number + 1, time_ms - 1000, lambda ref: ref)
    grown.put(JOURNAL, key, value)
    details = [f.detail for f in grown.store.check().findings]
    assert f"row 5 starts at event {number + 1} instead of {number}" in details
    assert "row 5 is earlier than the one before it" in details


def test_a_lease_that_counts_its_cancelled_jobs_wrong_is_set_right(grown: Garden) -> None:
    before = grown.rows()
    _relabel(grown, lost=2)
    report = repaired(grown)
    assert [f.rule for f in report.findings] == ["lease"]
    assert grown.rows() == before


def test_a_queue_without_a_place_gets_one(grown: Garden) -> None:
    _no_place(grown)
    assert {f.rule for f in grown.store.check().findings} == {"index"}
    repaired(grown)
    assert grown.store.claim(["work"], limit=1)


def test_a_damaged_place_is_made_again(grown: Garden) -> None:
    places = [key for space, key in grown.rows() if space == TURNS and key[:1] == keyspace.turn_place(b"", b"")[:1]]
    for key in places:
        grown.spoil(TURNS, key)
    repaired(grown)
    assert grown.store.claim(["work"], limit=1)


def test_a_name_of_a_queue_that_cannot_be_read_is_shown_as_bytes(grown: Garden) -> None:
    grown.put(QUEUES, b"\xff\xfe", b"no record")
    details = [f.detail for f in grown.store.check().findings]
    assert any("fffe" in detail for detail in details), details
    grown.delete(QUEUES, b"\xff\xfe")


# ── rows that the engine cannot read ─────────────────────────────────────────────────────────────────────────────────


class _Unreadable:
    """A snapshot that meets damage at one key."""

    def __init__(self, damage: Corrupt, *, at_once: bool = False) -> None:
        self._damage = damage
        self._at_once = at_once

    def salvage(self, space: int, begin: bytes, limit: int) -> tuple[list[tuple[bytes, bytes]], list[Corrupt]]:
        if self._at_once:
            raise self._damage
        return [], [self._damage]


JOB = keyspace.of_queue(7, bytes(range(16)))
DAMAGE: dict[str, tuple[int, bytes, str, bool]] = {
    "a state": (STATE, JOB, "rebuild_state", False),
    "a payload": (JOBS, JOB, "delete_row", False),
    "a child block": (CHILDREN, keyspace.child_block(JOB) + JOB, "replace_block", False),
    "a parents row": (PARENTS, keyspace.parents_row(JOB, 0), "rebuild_parents", False),
    "an index row": (READY, b"r", "delete_row", True),
    "an index row as long as a parents row": (READY, b"r" * 24, "delete_row", True),
    "a setting": (META, b"clock", "", True),
    "a row whose key is not told": (READY, b"", "", True),
}


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("what", DAMAGE)
def test_a_row_that_the_engine_cannot_read_is_a_fault(what: str, at_once: bool) -> None:
    space, key, repair, unreadable = DAMAGE[what]
    survey = Survey(_Unreadable(Corrupt("bad block", key=key or None), at_once=at_once))  # type: ignore[arg-type]
    assert list(survey.rows(space)) == []
    (fault,) = survey.faults
    assert (fault.rule, fault.mend, fault.key) == ("damaged", repair, key)
    assert (space in survey.unreadable) is unreadable
    assert survey.unknown == ({keyspace.split_of_queue(JOB)} if space == STATE else set())
    assert fault.detail == f"{keyspace.NAMES[space]}: bad block"


def test_faults_past_the_limit_are_not_listed(grown: Garden, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Survey, "LISTED", 2)
    for number in range(5):
        grown.put(READY, keyspace.ready(grown.number, 9, number, bytes([number]) * 16))
    report = grown.store.check()
    assert len(report.findings) == 2
    assert report.truncated


def test_progress_is_told(grown: Garden) -> None:
    seen: list[int] = []
    grown.queue.enqueue_many([NewJob(b"x")] * 3)
    look(core_of(grown), lambda done, _: seen.append(done))
    assert seen == sorted(seen)
    assert seen[-1] > 3


# ── what is made again, to the field ─────────────────────────────────────────────────────────────────────────────────


def test_a_state_is_made_again_from_its_own_last_event_though_the_row_behind_it_is_damaged(grown: Garden) -> None:
    last = grown.queue.timeline(grown.ids["later"])[-1]
    grown.spoil(STATE, grown.at("later"))
    grown.spoil(JOURNAL, keyspace.commit(last.commit + 1))
    grown.store.check(repair=True)
    after = grown.queue.timeline(grown.ids["later"])[-1]
    assert (after.type, after.previous) == ("repaired", (last.commit, last.index))


def test_a_job_that_the_journal_does_not_know_begins_anew_under_its_queues_policy(grown: Garden) -> None:
    nobody = bytes(range(16))
    row, _ = records.encode_job(5, b"who am I", b"", b"")
    grown.put(JOBS, keyspace.of_queue(grown.number, nobody), row)
    repaired(grown)
    state = records.decode_state(grown.get(STATE, keyspace.of_queue(grown.number, nobody)), nobody)
    now = backend_of(grown.store).now_ms()
    assert (state.attempt, state.max_attempts, state.priority, state.reason) == (0, 3, 0, 0)
    assert (state.visible_at_ms, state.ended_at_ms, state.due_at_ms) == (now, 0, 0)
    assert state.token == now << 16  # above every token that was handed out


def test_a_queue_that_the_last_row_of_the_journal_made_is_made_again(grown: Garden) -> None:
    late = grown.store.queue("late")
    late.resume()
    number = next(q.number for q in grown.store.queues() if q.queue == "late")
    grown.spoil(QUEUES, keyspace.queue_row("default", "late"))
    repaired(grown)
    assert next(q.number for q in grown.store.queues() if q.queue == "late") == number


def test_a_rate_that_is_used_up_is_not_overdrawn(grown: Garden) -> None:
    limited = grown.store.queue("limited")
    limited.configure(Policy(rate="3/h"))
    limited.enqueue_many([b"x"] * 5)
    assert len(limited.claim(5)) == 3
    assert grown.store.check().clean


@pytest.mark.parametrize("lost", [False, True], ids=["payload", "state"])
def test_usage_of_a_tenant_with_a_damaged_job_is_not_said_to_be_wrong(grown: Garden, lost: bool) -> None:
    number = next(q.number for q in grown.store.queues() if q.tenant == "acme")
    job = next(key for space, key in grown.rows() if space == STATE and keyspace.queue_of(key) == number)
    grown.spoil(STATE if lost else JOBS, job)
    assert {f.rule for f in grown.store.check().findings} == {"damaged"}
    repaired(grown)


@pytest.mark.parametrize("name", ["done", "dead", "ready", "later", "mortal", "held-1", "retried"])
def test_a_lost_state_is_made_again_in_every_field(grown: Garden, name: str) -> None:
    before = grown.state(name)
    grown.delete(STATE, grown.at(name))
    repaired(grown)
    assert grown.state(name)._replace(last_event=0) == before._replace(last_event=0)


@pytest.mark.parametrize("failed", [False, True], ids=["expired", "failed"])
def test_a_late_settle_after_a_repair_is_told_whether_the_job_was_settled(grown: Garden, failed: bool) -> None:
    """A job that died because its lease expired was never settled: `AlreadySettled` would be a false receipt."""
    queue = grown.store.queue("mortal")
    job = queue.enqueue(NewJob(b"x", max_attempts=1)).id
    (delivery,) = queue.claim(lease=10)
    if failed:
        queue.nack(delivery, "broken")
    else:
        grown.clock.advance(11)
        grown.store.sweep()
    number = next(q.number for q in grown.store.queues() if q.queue == "mortal")
    grown.delete(STATE, keyspace.of_queue(number, job_id_bytes(job)))
    repaired(grown)
    with pytest.raises(LeaseLost) as told:
        queue.ack(delivery)
    assert type(told.value) is (AlreadySettled if failed else LeaseLost)
    assert_sound(grown.store)
