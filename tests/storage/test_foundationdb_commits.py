"""The last try of a FoundationDB transaction: it committed, it did not, or nobody can say. And the gate."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any

import pytest

from tenure.errors import CommitUnknown, Corrupt, Unavailable
from tenure.storage.engines.foundationdb import FoundationEngine
from tenure.storage.engines.foundationdb.engine import _Attempts
from tenure.storage.keyspace import JOBS, JOURNAL, LAST, META, PAYLOAD
from tenure.testing import fdb
from tenure.testing.fdb.cluster import Cluster
from tenure.testing.fdb.faults import Fate, Faults


class Fated(Faults):
    """The next commits fail as a test says."""

    def __init__(self) -> None:
        super().__init__(0, None)
        self.next: list[Fate] = []
        #: The number of commits after which every read fails.
        self.commits_left: int | None = None

    def of_commit(self) -> Fate:
        if self.commits_left is not None:
            self.commits_left -= 1
        return self.next.pop(0) if self.next else ""

    def of_read(self) -> bool:
        return self.commits_left is not None and self.commits_left <= 0


@pytest.fixture
def faults() -> Fated:
    return Fated()


@pytest.fixture
def database(faults: Fated) -> Any:
    return fdb.Database(Cluster(0, time_us=lambda: 0, faults=faults))


@pytest.fixture
def engine(database: Any) -> Iterator[FoundationEngine]:
    """An engine whose transactions are tried once."""
    made = FoundationEngine(fdb, database, retry_limit=0)
    yield made
    made.close()


def write(engine: FoundationEngine, value: bytes) -> str:
    def put(tx: Any) -> str:
        tx.put(META, b"key", value)
        return "written " + value.decode()

    return engine.transact(put)


def stored(engine: FoundationEngine) -> bytes | None:
    return engine.read(lambda reader: reader.get(META, b"key"))


def test_the_last_try_had_committed(engine: FoundationEngine, faults: Fated) -> None:
    faults.next = ["unknown_done"]
    assert write(engine, b"one") == "written one"
    assert stored(engine) == b"one"


def test_the_last_try_had_not_committed(engine: FoundationEngine, faults: Fated) -> None:
    faults.next = ["unknown_not_done"]
    with pytest.raises(CommitUnknown):
        write(engine, b"one")
    assert stored(engine) is None


def test_a_cluster_that_cannot_be_asked_leaves_it_unknown(engine: FoundationEngine, faults: Fated) -> None:
    faults.next, faults.commits_left = ["unknown_done"], 1
    with pytest.raises(CommitUnknown):
        write(engine, b"one")
    faults.commits_left = None
    assert stored(engine) == b"one"


def test_a_last_try_that_met_a_conflict_is_no_doubt(engine: FoundationEngine, faults: Fated) -> None:
    faults.next = ["conflict"]
    with pytest.raises(Unavailable) as failed:
        write(engine, b"one")
    assert not isinstance(failed.value, CommitUnknown)
    assert stored(engine) is None


def test_a_number_that_another_transaction_has_is_chosen_again(
    engine: FoundationEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = [7, 7, 8]
    monkeypatch.setattr(secrets, "randbits", lambda bits: drawn.pop(0))
    assert engine.transact(lambda tx: tx.append(JOURNAL, b"of the first")) is not None
    assert write(engine, b"of the second") == "written of the second"
    assert drawn == []
    assert stored(engine) == b"of the second"


def test_a_value_that_was_uploaded_early_and_is_gone_is_reported(engine: FoundationEngine, database: Any) -> None:
    jobs = [b"%d" % number for number in range(30)]
    engine.transact(lambda tx: tx.put_many(PAYLOAD, [(job, bytes(60_000)) for job in jobs]))
    layout = engine._layout
    early = layout.early(PAYLOAD, jobs[3], b"")
    change = database.create_transaction()
    change.clear_range(early, early + b"\xff")
    change.commit().wait()
    assert engine.read(lambda reader: reader.get(PAYLOAD, jobs[2])) == bytes(60_000)
    for read in (
        lambda reader: reader.get(PAYLOAD, jobs[3]),
        lambda reader: reader.get_many(PAYLOAD, jobs),
        lambda reader: reader.scan(PAYLOAD, b"", LAST, 100),
    ):
        with pytest.raises(Corrupt, match="not there"):
            engine.read(read)


def test_an_empty_range_has_no_rows(engine: FoundationEngine) -> None:
    engine.transact(lambda tx: tx.put_many(JOBS, [(b"a", b"1"), (b"b", b"2")]))
    for begin, end, limit in ((b"b", b"a", 9), (b"a", b"a", 9), (b"", LAST, 0)):
        assert engine.read(lambda reader, at=(begin, end, limit): reader.scan(JOBS, *at)) == []  # type: ignore[misc]
        assert engine.read(lambda reader, at=(begin, end, limit): reader.keys(JOBS, *at)) == []  # type: ignore[misc]


def test_a_gate_that_another_has_shut_is_left_to_it(engine: FoundationEngine) -> None:
    one, other = _Attempts[None](engine), _Attempts[None](engine)
    engine._retrying(one._shut_gate)
    engine._retrying(other._shut_gate)
    assert one._gate
    assert not other._gate, "it waits for the one that was first"
    other._gate = other._nonce
    engine._retrying(other._open_gate)
    is_shut: Any = engine._retrying(lambda tr: tr.get(engine._layout.gate).value)
    assert is_shut[8:] == one._gate, "nobody opens another's gate"
    engine._retrying(one._open_gate)
    assert engine._retrying(lambda tr: tr.get(engine._layout.gate).value) is None
