"""Checks of a cluster's behaviour. Each takes a function that makes a database, perhaps one with a planted defect."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tenure.testing import fdb
from tenure.testing.fdb.cluster import Cluster
from tests.fdbsim.streams import compare, still

Make = Callable[[], fdb.Database]


def streams(make: Make) -> None:
    """Random instructions agree with the reference."""
    for seed in range(20):
        compare(seed, 500, make)


def conflicts(make: Make) -> None:
    """A commit conflicts if a range that it read has changed, but not for snapshot reads."""
    db = make()
    db.set(b"a", b"1")
    for read, wrote, refused in (
        (lambda tr: tr.get(b"a").value, b"a", True),
        (lambda tr: tr.get(b"a").value, b"b", False),
        (lambda tr: tr.snapshot.get(b"a").value, b"a", False),
        (lambda tr: tr.get_range(b"a", b"z").to_list(), b"y", True),
        (lambda tr: tr.get_range(b"a", b"z", limit=1).to_list(), b"y", False),
        (lambda tr: tr.snapshot.get_range(b"a", b"z").to_list(), b"y", False),
        (lambda tr: tr.add_read_conflict_key(b"q"), b"q", True),
    ):
        tr = db.create_transaction()
        read(tr)
        tr.get_read_version().wait()
        tr.set(b"mine", b"1")
        db.set(wrote, b"2")
        if refused:
            with pytest.raises(fdb.FDBError, match="1020"):
                tr.commit().wait()
        else:
            tr.commit().wait()
        db.clear(b"y")


def stamps(make: Make) -> None:
    """Stamps grow with every commit, and a stamped key holds its transaction's stamp."""
    db = make()
    told = []
    for number in range(20):
        tr = db.create_transaction()
        tr.set_versionstamped_key(b"log/" + bytes(10) + (4).to_bytes(4, "little"), b"%d" % number)
        stamp = tr.get_versionstamp()
        tr.commit().wait()
        told.append(stamp.value)
    rows = db.run(lambda tr: tr.get_range(b"log/", b"log0").to_list())
    assert [row.key[4:] for row in rows] == told
    assert [row.value for row in rows] == [b"%d" % number for number in range(20)]


def watches(make: Make) -> None:
    """A watch fires at the first commit that changes its key, and at no other."""
    db = make()
    db.set(b"bell", b"0")
    for number in range(10):
        _, watch = db.get_and_watch(b"bell")
        db.set(b"other", b"%d" % number)
        assert not watch.is_ready(), "it fired for another key"
        db.set(b"bell", b"%d" % number)  # the same value, the first time
        assert watch.is_ready() == (number > 0), "it fired for an equal value, or not for a different one"
    tr = db.create_transaction()
    assert tr.get(b"bell").value == b"9"
    watch = tr.watch(b"bell")
    db.set(b"bell", b"changed between the read and the commit")
    tr.commit().wait()
    assert watch.is_ready(), "a change before the watch's own commit was missed"


def selectors(make: Make) -> None:
    db = make()
    for key in (b"b", b"d", b"f"):
        db.set(key, b"")
    select = fdb.KeySelector
    for selector, key in (
        (select.first_greater_or_equal(b"d"), b"d"),
        (select.first_greater_than(b"d"), b"f"),
        (select.last_less_or_equal(b"d"), b"d"),
        (select.last_less_than(b"d"), b"b"),
        (select.last_less_than(b"b"), b""),
        (select.first_greater_than(b"f"), b"\xff"),
        (select.first_greater_or_equal(b"a") + 1, b"d"),
        (select.last_less_than(b"z") - 1, b"d"),
        (select.last_less_than(b"f") - 1, b"b"),
        (select.first_greater_or_equal(b"c") - 1, b"b"),
    ):
        assert db.create_transaction().get_key(selector).value == key, (selector.key, selector.offset)


def limits(make: Make) -> None:
    """Limits: 10,000 bytes of a key, 100,000 of a value, 10 MB of a transaction; a version is readable for 5 s."""
    db = make()
    tr = db.create_transaction()
    tr.set(b"k" * 10_000, b"v" * 100_000)
    for key, value, code in ((b"k" * 10_001, b"", 2102), (b"k", b"v" * 100_001, 2103), (b"\xff/x", b"", 2004)):
        with pytest.raises(fdb.FDBError, match=str(code)):
            tr.set(key, value)
    with pytest.raises(fdb.FDBError, match="2005"):
        tr.clear_range(b"z", b"a")
    tr.commit().wait()
    tr = db.create_transaction()
    for number in range(101):
        tr.set(b"large/%d" % number, bytes(99_000))
    with pytest.raises(fdb.FDBError, match="2101"):
        tr.commit().wait()


def times(make: Make) -> None:
    """A version can be read for five seconds, and a second has a million versions."""
    db = make()
    assert isinstance(db.cluster, Cluster)
    now = 0
    db.cluster.time_us = lambda: now
    first = db.run(lambda tr: tr.get_read_version().wait())
    old = db.create_transaction()
    old.get_read_version().wait()
    now = 4_900_000
    old.get(b"a").wait()
    now = 5_100_000
    assert db.run(lambda tr: tr.get_read_version().wait()) - first == pytest.approx(5_100_000, abs=10)
    with pytest.raises(fdb.FDBError, match="1007"):
        old.get(b"a").wait()
    old.on_error(1007).wait()
    begun = old.get_read_version().wait()
    db.cluster.recover()
    assert db.run(lambda tr: tr.get_read_version().wait()) >= begun + 100_000_000
    with pytest.raises(fdb.FDBError, match="1007"):
        old.get(b"a").wait()


ALL = (streams, conflicts, stamps, watches, selectors, limits, times)
__all__ = ["ALL", "Make", "still", *[check.__name__ for check in ALL]]
