"""The bare layout is a fair limit only while it does what Tenure does: the same rows, by the same number of writes."""

from typing import Any

import pytest

import tenure
from bench.bare import Bare
from tenure.storage.keyspace import NAMES

#: Written once a store or a queue, or when a queue that was idle has jobs again: not by a life.
_NOT_A_LIFE = {"meta", "queues", "turns"}


def _rows(tables):
    """The widths of every row, space by space."""
    found = {}
    for name, table in zip(NAMES, tables, strict=True):
        if name in _NOT_A_LIFE:
            continue
        rows = []
        iterator = table.iter()
        iterator.seek_to_first()
        while iterator.valid():
            rows.append((len(iterator.key()), len(iterator.value())))
            iterator.next()
        found[name] = sorted(rows)
    return found


@pytest.mark.parametrize("batch", [1, 7])
def test_same_rows_and_as_many_writes(tmp_path, batch):
    payloads = [bytes(128)] * batch
    bare = Bare(tmp_path / "bare", "os")
    client = bare.client()
    with tenure.open(f"rocksdb:{tmp_path / 'ours'}", durability="os", sweep=False) as store:
        engine: Any = store._backend._engine.inner  # type: ignore[attr-defined]  # rows and writes are counted below the API
        queue = store.queue("bench")
        queue.configure(tenure.Policy())  # the queue is made: what follows is a life alone
        first = _rows(engine._tables)["journal"]
        queue.enqueue_many(payloads)  # and it has its turn among the queues
        queue.ack_many(queue.claim(limit=batch))
        client.enqueue(payloads)
        client.ack(client.claim(batch))

        def compare():
            ours, theirs = _rows(engine._tables), _rows(bare.tables)
            for row in first:
                ours["journal"].remove(row)
            assert theirs == ours

        def writes(do_ours, do_bare):
            before = engine._db.latest_sequence_number(), bare.db.latest_sequence_number()
            results = do_ours(), do_bare()
            after = engine._db.latest_sequence_number(), bare.db.latest_sequence_number()
            assert after[0] - before[0] == after[1] - before[1]
            compare()
            return results

        added = writes(
            lambda: queue.enqueue_many(payloads) if batch > 1 else queue.enqueue(payloads[0]),
            lambda: client.enqueue(payloads),
        )
        assert type(added[0]) is type(added[1])
        claim, claimed = writes(lambda: queue.claim(limit=batch), lambda: client.claim(batch))
        assert [d.payload for d in claimed] == [d.payload for d in claim]
        assert [(type(d), d.token, d.attempt, d.max_attempts) for d in claimed] == [
            (type(d), d.token, d.attempt, d.max_attempts) for d in claim
        ]
        settled = writes(
            lambda: queue.ack_many(claim) if batch > 1 else queue.ack(claim[0]), lambda: client.ack(claimed)
        )
        assert type(settled[0]) is type(settled[1])
        assert not client.claim(batch)
    bare.close()
