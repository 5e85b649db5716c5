"""The simulated cluster behaves as FoundationDB documents; and planted defects are found."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from tenure.testing import fdb
from tenure.testing.fdb.cluster import Cluster, Request
from tenure.testing.fdb.transaction import KeySelector, Transaction
from tests.fdbsim import checks


@pytest.mark.parametrize("check", checks.ALL, ids=lambda check: check.__name__)
def test_the_simulator_passes(check):
    check(checks.still)


# ── defects ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class MissesConflicts(Cluster):
    """Forgets the last range that a transaction read."""

    def conflicts(self, request: Request) -> bool:
        return super().conflicts(request._replace(reads=request.reads[:-1]))


class ReordersStamps(Cluster):
    """Gives every fourth commit a stamp that its predecessor should have had."""

    def stamp(self, version: int) -> bytes:
        return super().stamp(version if version % 4 else version - 2)[:9] + bytes((version % 4 == 0,))


class LosesWatches(Cluster):
    """Fires watches only when a commit changes two keys or more."""

    def fire_watches(self, changed: Iterable[bytes]) -> None:
        keys = list(changed)
        if len(keys) > 1:
            super().fire_watches(keys)


class ForgetsTheSizeLimit(Cluster):
    def check_limits(self, request: Request) -> None:
        return


class WrongSelector(Transaction):
    """Inverts `or_equal` when it searches backward."""

    def _resolve(self, selector: KeySelector, snapshot: bool) -> bytes:
        if selector.offset < 0:
            selector = KeySelector(selector.key, not selector.or_equal, selector.offset)
        return super()._resolve(selector, snapshot)


class _Selecting(fdb.Database):
    def create_transaction(self) -> Transaction:
        return WrongSelector(self, self.cluster)


def _broken(cluster: type[Cluster]) -> checks.Make:
    return lambda: fdb.Database(cluster(time_us=lambda: 0))


DEFECTS = {
    "a missed conflict": (_broken(MissesConflicts), {"conflicts", "streams"}),
    "a reordered stamp": (_broken(ReordersStamps), {"stamps", "streams"}),
    "a lost watch": (_broken(LosesWatches), {"watches"}),
    "a wrong key selector": (lambda: _Selecting(Cluster(time_us=lambda: 0)), {"selectors", "streams"}),
    "a forgotten limit": (_broken(ForgetsTheSizeLimit), {"limits"}),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_is_found(defect):
    make, finders = DEFECTS[defect]
    found = set()
    for check in checks.ALL:
        try:
            check(make)
        except (AssertionError, pytest.fail.Exception, fdb.FDBError):
            found.add(check.__name__)
    assert found == finders


# ── faults ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_unknown_result_has_both_outcomes():
    cluster = fdb.Cluster(faults=fdb.Faults(1, fdb.Rates(unknown=1.0)))
    db = fdb.Database(cluster)
    seen = set()
    for number in range(50):
        tr = db.create_transaction()
        tr.set(b"%d" % number, b"")
        with pytest.raises(fdb.FDBError, match="1021"):
            tr.commit().wait()
        seen.add(cluster.get(cluster.current_version(), b"%d" % number) is not None)
    assert seen == {True, False}


def test_automatic_idempotency_tells_what_became_of_it():
    cluster = fdb.Cluster(faults=fdb.Faults(1, fdb.Rates(unknown=1.0)))
    cluster.idempotency = True
    db = fdb.Database(cluster)
    db.options.set_transaction_automatic_idempotency()
    told = set()
    for number in range(50):
        tr = db.create_transaction()
        tr.set(b"%d" % number, b"")
        code = 0
        try:
            tr.commit().wait()
        except fdb.FDBError as error:
            code = error.code
        told.add((code, cluster.get(cluster.current_version(), b"%d" % number) is not None))
    assert told == {(0, True), (1020, False)}


def test_a_late_commit_arrives_behind_others_or_not_at_all():
    cluster = fdb.Cluster(faults=fdb.Faults(3, fdb.Rates(late=1.0)))
    db = fdb.Database(cluster)
    for key, reads in ((b"blind", False), (b"reads", True)):
        tr = db.create_transaction()
        if reads:
            tr.get(b"x").wait()
        tr.set(key, b"")
        with pytest.raises(fdb.FDBError, match="1039"):
            tr.commit().wait()
    cluster.faults.on = False
    for _ in range(10):
        db.set(b"x", b"")  # what the second one read
    assert cluster.get(cluster.current_version(), b"blind") is not None
    assert cluster.get(cluster.current_version(), b"reads") is None


def test_the_same_seed_draws_the_same_faults():
    rates = fdb.Rates(0.1, 0.1, 0.1, 0.1, 0.1)
    one, other = fdb.Faults(9, rates), fdb.Faults(9, rates)
    assert [one.of_commit() for _ in range(200)] == [other.of_commit() for _ in range(200)]
    assert set(one.drawn) == {"conflict", "unknown_done", "unknown_not_done", "late", "recovery"}
