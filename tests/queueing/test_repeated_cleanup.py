"""A repeated `cleanup` request gets its first answer, even if a queue was deleted in between."""

from __future__ import annotations

import tenure
from tenure import Policy
from tenure.testing.harness import backend_of


def test_a_cleanup_can_be_repeated_after_its_queue_was_deleted() -> None:
    with tenure.open("memory:") as store:
        queue = store.queue("work")
        queue.configure(Policy(retention=3600))
        queue.enqueue_many([b"1", b"2", b"3"])
        queue.ack_many(queue.claim(limit=3))
        before_ms = backend_of(store).now_ms() + 10**9

        def cleanup() -> int:
            return backend_of(store).once(b"request-1").cleanup(before_ms, 100)

        assert cleanup() == 3
        assert store.delete_queue("work")
        assert cleanup() == 3, "the outcome of the first request"
