"""Fairness and limits, with figures: groups inside a queue, tenants and queues of a store.

    max_leased=1      many threads, many groups: never two leased jobs of a group
    weights           1 : 2 : 4 under saturation
    small ones        groups or tenants with one job each, beside one with very many: when each is served, in shares
    empty queues      the cost that very many of them add to `claim_any`

The same for tenants on Valkey, at a tenth of the sizes.

The short run is in `make test`; `make test-crash` (FAIR=1) runs the large sizes. Each prints its figures (pytest -rP).
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

import tenure
from tenure import GroupPolicy, NewJob, Policy
from tenure.api.claim import Claim
from tests.backends.redis.servers import Server, running

pytestmark = [pytest.mark.crash, pytest.mark.timeout(3600 if "FAIR" in os.environ else 300)]

FULL = "FAIR" in os.environ
GROUPS = 10_000 if FULL else 200
THREADS = 64 if FULL else 8
EACH = 2 if FULL else 3
SMALL = 10_000 if FULL else 200
BIG = 1_000_000 if FULL else 5_000
CLAIMS = 10_000 if FULL else 1_400
EMPTY = 1_000_000 if FULL else 2_000


@pytest.fixture
def store(tmp_path: Path) -> Iterator[tenure.Store]:
    with tenure.open(f"rocksdb:{tmp_path}/store", durability="os", sweep=False, listen=False) as opened:
        yield opened


@pytest.fixture
def valkey() -> Iterator[tuple[tenure.Store, Server]]:
    """A store on a Valkey server of its own, which keeps nothing on disk."""
    with running(Server(appendonly=False)) as server, tenure.open(server.url, sweep=False) as opened:
        yield opened, server


def in_batches(jobs: Sequence[bytes | NewJob], queue: tenure.Queue, size: int = 5_000) -> None:
    for at in range(0, len(jobs), size):
        queue.enqueue_many(jobs[at : at + size])


def worked_off(queue: tenure.Queue, jobs: int, look: Callable[[str, int], None]) -> float:
    """Claim and ack single jobs in `THREADS` threads. Returns jobs per second. `look(group, ±1)` is called for each."""
    left = threading.Semaphore(jobs)
    failed: list[BaseException] = []

    def work() -> None:
        try:
            while left.acquire(blocking=False):
                claim = queue.claim(wait=60)
                assert claim, "a job was left waiting"
                group = claim[0].payload.decode()
                look(group, 1)
                look(group, -1)  # before the ack: after it another thread may lease the group's next job
                queue.ack(claim[0])
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(THREADS)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    return jobs / (time.perf_counter() - began)


def test_a_group_of_one_never_has_two(store: tenure.Store) -> None:
    names = [f"g{n}" for _ in range(EACH) for n in range(GROUPS)]
    lock = threading.Lock()

    def watched(most: int) -> Callable[[str, int], None]:
        """Both queues are watched, so that the bookkeeping costs both the same."""
        held: Counter[str] = Counter()

        def look(group: str, change: int) -> None:
            with lock:
                held[group] += change
                assert held[group] <= most, f"{held[group]} jobs of {group} were leased at once"

        return look

    grouped = store.queue("grouped")
    grouped.configure(Policy(group=GroupPolicy(max_leased=1)))
    in_batches([NewJob(name.encode(), group=name) for name in names], grouped)
    plain = store.queue("plain")
    in_batches([NewJob(name.encode(), headers={"as": "rows"}) for name in names], plain)
    without = worked_off(plain, len(names), watched(EACH))
    with_groups = worked_off(grouped, len(names), watched(1))
    assert grouped.counts().waiting == 0
    assert store.check().clean
    print(
        f"{THREADS} threads, {GROUPS:,} groups of {EACH} jobs, max_leased=1: {with_groups:,.0f} jobs/s,"
        f" {with_groups / without:.2f} of the {without:,.0f} without groups"
    )


def test_weights_are_shares(store: tenure.Store) -> None:
    weights = {"one": 1, "two": 2, "four": 4}
    queue = store.queue("q")
    queue.configure(Policy(groups={name: GroupPolicy(weight=weight) for name, weight in weights.items()}))
    for name in weights:
        in_batches([NewJob(name.encode(), group=name)] * (CLAIMS * 4 // 7 + 10), queue)
    served: Counter[str] = Counter()
    for _ in range(CLAIMS):
        claim = queue.claim()
        served[claim[0].payload.decode()] += 1
        queue.ack(claim[0])
    assert_shares("weights 1:2:4", served, weights)


def assert_shares(what: str, served: Counter[str], weights: dict[str, int]) -> None:
    off = max(abs(served[name] * sum(weights.values()) / (CLAIMS * weight) - 1) for name, weight in weights.items())
    print(f"{what} over {CLAIMS:,} claims: {dict(served)}, off by {off:.2%} at most")
    assert off <= 0.05


def told(what: str, places: list[float]) -> None:
    places.sort()
    at = [(p, places[min(len(places) - 1, len(places) * p // 100)]) for p in (50, 90, 99, 100)]
    print(f"{what}: claimed at {', '.join(f'p{p} {share:.2f}' for p, share in at)} of a fair share")


def places_of(claims: Callable[[], Claim], small: int, is_small: Callable[[Claim], bool]) -> list[float]:
    """When each of the small ones was served, in shares. A share is one turn of each small one and of the big one."""
    share = small + 1
    places = []
    for place in range(1, 2 * share + 1):
        claim = claims()
        if is_small(claim):
            places.append(place / share)
        claim.queue.ack(claim[0])
    assert len(places) == small, "every small one was served within two shares"
    return places


def test_small_groups_beside_a_big_one(store: tenure.Store) -> None:
    queue = store.queue("q")
    in_batches([NewJob(b"big", group="big")] * BIG, queue)
    in_batches([NewJob(b"small", group=f"small{n}") for n in range(SMALL)], queue)
    places = places_of(lambda: queue.claim(), SMALL, lambda claim: claim[0].payload == b"small")
    told(f"{SMALL:,} groups with one job beside one with {BIG:,}", places)
    assert places[-1] <= 2


def test_small_tenants_beside_a_big_one(store: tenure.Store) -> None:
    assert_small_tenants_served(store, "", SMALL, BIG)


def assert_small_tenants_served(store: tenure.Store, what: str, small: int, big: int) -> None:
    in_batches([b"big"] * big, store.queue("all", "big"))
    for n in range(small):
        store.queue("one", f"small{n}").enqueue(b"small")
    places = places_of(store.claim_any, small, lambda claim: claim[0].payload == b"small")
    told(f"{what}{small:,} tenants with one job beside one with {big:,}", places)
    assert places[-1] <= 2


def test_empty_queues_cost_a_claim_from_any_nothing(store: tenure.Store) -> None:
    busy = [store.queue(f"busy{n}", f"t{n}") for n in range(100)]

    def measured() -> float:
        for queue in busy:
            queue.enqueue_many([b"x"] * 20)
        began = time.thread_time()
        for _ in range(1_000):
            claim = store.claim_any()
            claim.queue.ack(claim[0])
        return (time.thread_time() - began) * 1000

    measured()
    alone = min(measured() for _ in range(3))
    for at in range(0, EMPTY, 1_000):
        store.apply({f"empty{n}": Policy() for n in range(at, at + 1_000)}, "t0")
    assert_cost("a claim from any of 100 busy queues", alone, EMPTY, min(measured() for _ in range(3)))


def assert_cost(what: str, alone: float, empty: int, beside: float) -> None:
    """Processor time of a claim, in microseconds, alone and beside empty queues."""
    print(
        f"{what}: {alone:.0f} µs of processor time; beside {empty:,} empty ones {beside:.0f} µs, {beside / alone:.2f} ×"
    )
    if FULL:
        assert beside < alone * 1.3


def test_a_claim_over_many_named_queues_costs_little_more_than_from_one(store: tenure.Store) -> None:
    busy, quiet = store.queue("busy"), [store.queue(f"quiet{n}") for n in range(1_000)]
    store.apply({queue.name.queue: Policy() for queue in quiet})
    everywhere = [*quiet, busy]

    def measured(claim: Callable[[], Claim]) -> float:
        for _ in range(500):
            busy.enqueue(b"x")
        began = time.thread_time()
        for _ in range(500):
            busy.ack(claim()[0])
        return (time.thread_time() - began) * 2000

    measured(lambda: store.claim(everywhere))
    one, many = [], []
    for _ in range(4):  # in turn, since the machine may be loaded
        one.append(measured(busy.claim))
        many.append(measured(lambda: store.claim(everywhere)))
    print(
        f"a claim and an ack of one queue: {min(one):.0f} µs of processor time; over 1,001 named queues {min(many):.0f} µs,"
        f" {min(many) / min(one):.2f} ×"
    )
    if FULL:
        assert min(many) < min(one) * 1.5


# ── the same on Valkey, at sizes that a server loads in seconds ──────────────────────────────────────────────────────


def test_small_tenants_beside_a_big_one_on_valkey(valkey: tuple[tenure.Store, Server]) -> None:
    store, _ = valkey
    assert_small_tenants_served(store, "Valkey: ", *((SMALL // 10, BIG // 10) if FULL else (SMALL, BIG)))


def test_weights_of_tenants_are_shares_on_valkey(valkey: tuple[tenure.Store, Server]) -> None:
    store, _ = valkey
    weights = {"one": 1, "two": 2, "four": 4}
    for name in weights:
        in_batches([name.encode()] * (CLAIMS * 4 // 7 + 10), store.queue("q", name))
    served: Counter[str] = Counter()
    for _ in range(CLAIMS):
        claim = store.claim_any(weights=weights)
        served[claim[0].payload.decode()] += 1
        claim.queue.ack(claim[0])
    assert_shares("Valkey: weights 1:2:4", served, weights)


def test_empty_queues_cost_a_claim_from_any_nothing_on_valkey(valkey: tuple[tenure.Store, Server]) -> None:
    store, server = valkey
    empty, claims = (EMPTY // 10, 1_000) if FULL else (1_000, 200)

    def measured(store: tenure.Store) -> float:
        """Microseconds that the server spends in a claim."""
        for n in range(100):
            store.queue(f"busy{n}", f"t{n}").enqueue_many([b"x"] * (claims // 100))
        before = _function_time(server)
        held = [store.claim_any() for _ in range(claims)]
        spent = _function_time(server) - before
        for claim in held:
            claim.queue.ack(claim[0])
        return spent / claims

    with tenure.open(f"{server.url}?prefix=beside", sweep=False) as beside:
        for at in range(0, empty, 1_000):
            beside.apply({f"empty{n}": Policy() for n in range(at, at + 1_000)}, f"t{at // 1_000 % 100}")
        pairs = [(measured(store), measured(beside)) for _ in range(5)]  # in turn, since the machine may be loaded
    alone, crowded = (min(times) for times in zip(*pairs[1:], strict=True))
    assert_cost("Valkey: a claim from any of 100 busy queues", alone, empty, crowded)


def _function_time(server: Server) -> int:
    """Microseconds that a server has spent in Tenure's functions."""
    return int(server.client().info("commandstats")["cmdstat_fcall"]["usec"])
