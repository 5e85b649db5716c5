"""Requests that a server has at hand together: one transaction, or each alone, and never one refused for another."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tenure import NewJob, Policy, QueueFull
from tenure.api.opening import open as open_store
from tenure.api.store import Store
from tenure.model.names import QueueName
from tenure.model.request import PlainRequests, RequestedJobs, job_request
from tenure.queueing.merged_enqueue import enqueue_merged

NAME = QueueName("default", "q")


@pytest.fixture
def store() -> Iterator[Store]:
    with open_store("memory:", sweep=False) as made:
        yield made
        assert made.check(specification=True).clean


def plain(number: int, *payloads: bytes) -> RequestedJobs:
    return RequestedJobs(bytes([number]) * 16, PlainRequests(list(payloads)))


def commits(store: Store) -> int:
    return store.events().events[-1].commit


def test_requests_share_a_transaction_and_are_remembered_each_under_its_own_id(store: Store) -> None:
    store.queue("q").resume()
    before = commits(store)
    requests = [plain(1, b"a"), plain(2, b"b", b"c")]
    first, second = store.backend.enqueue_each(NAME, requests)
    assert commits(store) == before + 1
    assert [store.queue("q").get(job.id).payload for job in [*first, *second]] == [b"a", b"b", b"c"]
    assert [len(first), len(second)] == [1, 2]
    for request, answer in zip(requests, (first, second), strict=True):
        assert store.backend.once(request.id).enqueue(NAME, request.jobs) == answer
    assert store.queue("q").counts().waiting == 3


def test_a_repeat_among_them_is_answered_as_before_and_the_others_are_carried_out(store: Store) -> None:
    (first,) = store.backend.enqueue_each(NAME, [plain(1, b"a")])
    again, other = store.backend.enqueue_each(NAME, [plain(1, b"a"), plain(2, b"b")])
    assert again == first
    assert other != first
    assert store.queue("q").counts().waiting == 2


def test_one_id_twice_makes_one_job(store: Store) -> None:
    first, second = store.backend.enqueue_each(NAME, [plain(1, b"a"), plain(1, b"a")])
    assert first == second
    assert store.queue("q").counts().waiting == 1


def test_a_batch_that_does_not_fit_is_cut_where_the_queue_is_full(store: Store) -> None:
    store.apply({"q": Policy(max_waiting=2)})
    outcomes = store.backend.enqueue_each(NAME, [plain(n, b"x") for n in range(3)])
    assert [isinstance(outcome, QueueFull) for outcome in outcomes] == [False, False, True]
    assert store.queue("q").counts().waiting == 2


def test_jobs_with_a_key_are_not_merged(store: Store) -> None:
    store.queue("q").resume()
    before = commits(store)
    requests = [RequestedJobs(b"k" * 16, [job_request(NewJob(b"x", key="one"))]), plain(1, b"a")]
    assert enqueue_merged(store.backend._core, NAME, requests) is None  # type: ignore[attr-defined]  # it is embedded
    assert commits(store) == before
    first, second = store.backend.enqueue_each(NAME, requests)
    assert [not isinstance(outcome, Exception) and len(outcome) for outcome in (first, second)] == [1, 1]
    assert commits(store) == before + 2
