"""The transition relation accepts the journals of stores, and refuses journals that were tampered with."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import msgspec
import pytest

import tenure
from tenure import Backoff, ManualClock, Policy
from tenure.api.store import Store
from tenure.errors import TenureError
from tenure.model.event import Event
from tenure.model.lifecycle import TRANSITIONS, Change
from tenure.model.specification import RULES, WITHOUT_JOB, departure
from tenure.testing.conformance.world import all_events

MUTATIONS = 1000


def test_every_change_has_one_rule() -> None:
    assert RULES.keys() | WITHOUT_JOB == set(Change)
    assert not RULES.keys() & WITHOUT_JOB
    assert RULES.keys() == TRANSITIONS.keys()


# ── journals of real stores ──────────────────────────────────────────────────────────────────────────────────────────


def history(seed: int, steps: int = 120) -> list[Event]:
    """The journal of a store in memory after `steps` random verbs."""
    rng, clock = random.Random(seed), ManualClock()
    with tenure.open("memory:", clock=clock, sweep=False) as store:
        for name, policy in (("a", Policy(max_attempts=2, retention=5)), ("b", Policy(backoff=Backoff.fixed(0)))):
            store.queue(name).configure(policy)
        held: list[tenure.Claim] = []
        for _ in range(steps):
            _step(rng, clock, store, held)
        return all_events(store)


def _step(rng: random.Random, clock: ManualClock, store: Store, held: list[tenure.Claim]) -> None:
    queue = store.queue(rng.choice("ab"))
    claim = rng.choice(held) if held else None
    delivery = rng.choice(claim) if claim else None
    verb = rng.choice(["enqueue", "enqueue", "claim", "claim", "ack", "nack", "fail", "release", "extend", "advance",
                       "advance", "cancel", "replay", "sweep", "pause", "resume", "resume", "purge"])  # fmt: skip
    try:
        if verb == "enqueue":
            jobs = [tenure.NewJob(b"x", priority=rng.choice([0, 5]), ttl=rng.choice([None, 3])) for _ in range(3)]
            queue.enqueue_many(jobs[: rng.randint(1, 3)])
        elif verb == "claim":
            held.append(queue.claim(limit=rng.randint(1, 3), lease=rng.choice([1, 10])))
        elif verb == "advance":
            clock.advance(rng.choice([0, 0.5, 1, 3]))
        elif verb == "replay":
            queue.replay(limit=2)
        elif verb == "sweep":
            store.sweep()
        elif verb in ("pause", "resume"):
            getattr(queue, verb)()
        elif verb == "purge":
            queue.purge(rng.choice(["dead", "done", "ready"]))
        elif delivery is not None and claim is not None:
            owner = store.queue(delivery.queue)
            if verb == "extend":
                owner.extend(claim, 10)
            elif verb == "cancel":
                owner.cancel(delivery.id)
            else:
                getattr(owner, verb)(delivery)
    except TenureError:
        pass


@pytest.fixture(scope="module")
def journals() -> list[list[Event]]:
    return [history(seed) for seed in range(20)]


def test_real_journals_are_accepted(journals: list[list[Event]]) -> None:
    told = Counter(event.type for journal in journals for event in journal)
    assert len(told) > 15, told
    for journal in journals:
        assert departure(journal) is None
        assert departure(journal[len(journal) // 2 :]) is None  # trimmed


def test_a_store_says_where_its_journal_departs() -> None:
    with tenure.open("memory:", sweep=False) as store:
        store.queue("q").enqueue(b"x")
        assert store.check(specification=True).clean
        events = store.backend.events(None, 10, 0, None)
        told = [events.events[0], msgspec.structs.replace(events.events[1], token=3)]
        store.backend.events = lambda *_: msgspec.structs.replace(events, events=told)  # type: ignore[method-assign]
        report = store.check(specification=True)
    assert [finding.rule for finding in report.findings] == ["specification"]
    assert "event 2 (enqueued" in report.findings[0].detail
    assert "token" in report.findings[0].detail


# ── journals that were tampered with ─────────────────────────────────────────────────────────────────────────────────


def tampered(rng: random.Random, journal: Sequence[Event]) -> tuple[str, int, list[Event]]:
    """A journal with one event removed, doubled or moved: how, its index, and the journal."""
    events, at = list(journal), rng.randrange(len(journal))
    how = rng.choice(["removed", "doubled", "moved"])
    if how == "removed":
        del events[at]
    elif how == "doubled":
        events.insert(at, events[at])
    else:
        to = rng.choice([at + 1, rng.randrange(len(events))]) % len(events)
        events.insert(to, events.pop(at))
    return how, at, events


def disguised(events: Sequence[Event]) -> list[Event]:
    """The same events with consistent numbers, positions, times and predecessors: only their meaning can be wrong."""
    last: dict[tuple[str, str | None], tuple[int, int]] = {}
    clean = []
    times = sorted(event.time_ms for event in events)
    for number, (event, time_ms) in enumerate(zip(events, times, strict=True), 1):
        name = (event.queue, event.job_id)
        fitted = msgspec.structs.replace(
            event, number=number, commit=number, index=0, time_ms=time_ms,
            previous=last.get(name) if event.job_id and event.type not in ("enqueued", "restored") else None,
        )  # fmt: skip
        last[name] = number, 0
        clean.append(fitted)
    return clean


def test_a_thousand_tampered_journals(journals: list[list[Event]]) -> None:
    """Only trimmed journals are accepted unchanged. Disguised journals are accepted only if `is_legal` accepts them."""
    rng, refused, changed = random.Random(18), 0, 0
    accepted, disagreements = Counter[str](), 0
    for _ in range(MUTATIONS):
        journal = rng.choice(journals)
        how, at, events = tampered(rng, journal)
        if events == list(journal):
            continue
        changed += 1
        seen = departure(events)
        if seen is None:  # its first or last event was removed: a trimmed or shorter journal
            assert how == "removed"
            assert at in (0, len(journal) - 1)
        refused += seen is not None
        fitted = disguised(events)
        if departure(fitted) is None:
            assert is_legal(fitted), f"accepted, and not legal: {how} {at}: {journal[at]}"
            accepted[f"{how} {journal[at].type}"] += 1
        else:
            disagreements += is_legal(fitted)
    print(f"{changed} tampered journals: {refused} refused as they are ({refused / changed:.1%}).")
    print(
        f"Disguised: {1 - sum(accepted.values()) / changed:.1%} refused, {sum(accepted.values())} accepted, all legal:"
    )
    print("  " + ", ".join(f"{count} {what}" for what, count in accepted.most_common()))
    assert refused > 0.98 * changed
    assert 0 < sum(accepted.values()) < 0.5 * changed
    assert disagreements == 0


#: Every valid sequence of a job's events.
LIFE = re.compile(
    r"enqueued ttl_passed |"
    r"enqueued (claimed (retried|released|expired|died replayed) )*"
    r"(purged |cancelled |claimed (done (retired |purged )?|died (purged )?|cancelled )?)?"
)


def is_legal(events: Sequence[Event]) -> bool:
    """Whether the history is possible: decided without the transition relation, by looking backwards."""
    lives: dict[tuple[str, str], list[tuple[int, Event]]] = {}
    for place, event in enumerate(events):
        if event.job_id is not None:
            lives.setdefault((event.queue, event.job_id), []).append((place, event))
        elif event.type == "extended" and not _extendable(events, place):
            return False
    return all(_is_a_life(events, life) for life in lives.values())


def _is_a_life(events: Sequence[Event], life: Sequence[tuple[int, Event]]) -> bool:
    if not LIFE.fullmatch("".join(f"{event.type} " for _, event in life)):
        return False
    if [e.token for _, e in life if e.type == "claimed"] != list(
        range(1, 1 + sum(e.type == "claimed" for _, e in life))
    ):
        return False
    attempt = 0
    for (_, before), (place, event) in pairwise(life):
        attempt = {"claimed": attempt + 1, "released": attempt - 1, "replayed": 0}.get(event.type, attempt)
        if event.attempt != attempt:
            return False
        if event.type == "claimed":
            if not event.time_ms < (event.at_ms or 0) or _paused(events, place, event.queue):
                return False
            if (before.at_ms or 0) > event.time_ms:
                return False
            grants = [e for e in events if e.type == "claimed" and e.lease_id == event.lease_id]
            if any(grant.time_ms != event.time_ms for grant in grants) and not _alone(events, place):
                return False
        elif before.type == "claimed":
            if event.lease_id != before.lease_id:
                return False
            end = _end(events, place, before.lease_id)
            live = event.time_ms < end
            if event.type in ("done", "retried", "released") and not live:
                return False
            if event.type == "expired" and live:
                return False
            if event.type == "died" and event.reason == "failed" and not live:
                return False
        if event.type in ("retried", "expired", "replayed") and (event.at_ms or 0) < event.time_ms:
            return False
    first = life[0][1]
    return (first.at_ms or 0) >= first.time_ms


def _end(events: Sequence[Event], place: int, lease: str | None) -> int:
    """The end of the lease, by the events before this index."""
    return [e.at_ms or 0 for e in events[:place] if e.lease_id == lease and e.type in ("claimed", "extended")][-1]


def _holders(events: Sequence[Event], place: int, lease: str | None) -> int:
    """The number of jobs that the lease holds before this index."""
    last = {(e.queue, e.job_id): e for e in events[:place] if e.job_id is not None}
    return sum(event.type == "claimed" and event.lease_id == lease for event in last.values())


def _alone(events: Sequence[Event], place: int) -> bool:
    """Whether the lease that is granted at this index holds no other job."""
    return not _holders(events, place, events[place].lease_id)


def _extendable(events: Sequence[Event], place: int) -> bool:
    event = events[place]
    if not _holders(events, place, event.lease_id):
        return False
    return event.time_ms < _end(events, place, event.lease_id) < (event.at_ms or 0)


def _paused(events: Sequence[Event], place: int, queue: str) -> bool:
    settings = ("queue_created", "queue_paused", "queue_resumed", "queue_deleted")
    last = [event.type for event in events[:place] if event.queue == queue and event.type in settings]
    return last[-1:] == ["queue_paused"]
