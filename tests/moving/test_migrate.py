"""Migration from RocksDB to LMDB and back keeps all jobs, also after interruptions."""

from __future__ import annotations

import itertools
import os
import socket
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

import tenure
from tenure import NewJob, Store
from tenure.api import migration
from tenure.backends.owner.listener import Listener
from tenure.cli.main import cli
from tenure.model.job_checksum import job_sum
from tenure.protocol.dispatcher import Dispatcher
from tests.backends.redis.servers import Server, running
from tests.moving import flows
from tests.moving.filled import fill

JOBS = int(os.environ.get("MIGRATE_JOBS", "0"))


def names(store: Store) -> list[tuple[str, str]]:
    return [(info.queue, info.tenant) for info in store.queues()]


def test_there_and_back_again(tmp_path: Path):
    there_and_back(tmp_path, 5000)


@pytest.mark.crash
@pytest.mark.timeout(3600)
@pytest.mark.skipif(not JOBS, reason="MIGRATE_JOBS says how many: make test-crash does")
def test_there_and_back_again_at_full_size(tmp_path: Path):
    there_and_back(tmp_path, JOBS)


def there_and_back(tmp_path: Path, jobs: int) -> None:
    urls = [f"rocksdb:{tmp_path / 'a'}", f"lmdb:{tmp_path / 'b'}", f"rocksdb:{tmp_path / 'c'}"]
    with tenure.open(urls[0], sweep=False, durability="os") as store:
        fill(store, jobs)
        first = migration.checksum(store, names(store))
        before = {(i.tenant, i.queue): (i.paused, i.policy, i.counts.waiting + i.counts.leased) for i in store.queues()}
    assert 0 < first.jobs <= jobs
    for source, target in itertools.pairwise(urls):
        with tenure.open(source, sweep=False) as here, tenure.open(target, sweep=False) as there:
            moved = migration.migrate(here, there)
            assert moved.verified, moved
            assert (moved.added, moved.jobs) == (first.jobs, first.jobs)
    with tenure.open(urls[2], sweep=False) as store:
        assert migration.checksum(store, names(store)) == first
        after = {(i.tenant, i.queue): (i.paused, i.policy, i.counts.waiting) for i in store.queues()}
        assert after == before
        assert store.check().clean
        for state in ("ready", "scheduled", "done", "dead"):
            assert any(store.queue(queue, tenant).list(state, limit=1).jobs for queue, tenant in names(store)), state


def test_a_move_that_was_stopped_goes_on(tmp_path: Path):
    class Stopped(Exception):
        pass

    with tenure.open("memory:", sweep=False) as here, tenure.open(f"lmdb:{tmp_path / 'b'}", sweep=False) as there:
        fill(here, 3000)
        total = migration.checksum(here, names(here)).jobs
        calls = 0

        def stop(done: int, of: int | None) -> None:
            nonlocal calls
            calls += 1
            assert of == total
            if calls == 3:
                raise Stopped

        with pytest.raises(Stopped):
            migration.migrate(here, there, progress=stop)
        assert not there.queue("emails").claim(), "nobody works on half a store"
        moved = migration.migrate(here, there)
        assert moved.verified
        assert moved.there > 0
        assert moved.added + moved.there == total
        assert there.queue("emails").claim()
        assert there.check().clean
        assert there.queues()[0].policy == here.queues()[0].policy


def test_flows_steps_signals_and_schedules_travel(tmp_path: Path):
    urls = [f"rocksdb:{tmp_path / 'a'}", f"lmdb:{tmp_path / 'b'}", f"rocksdb:{tmp_path / 'c'}"]
    with tenure.open(urls[0], sweep=False, durability="os") as store:
        flows.make(store)
        before = [flows.told(store.queue(name)) for name in ("site", "reports")]
        schedules = store.schedules()
    assert len(schedules) == 1
    for source, target in itertools.pairwise(urls):
        with tenure.open(source, sweep=False) as here, tenure.open(target, sweep=False) as there:
            moved = migration.migrate(here, there)
            assert moved.verified, moved
            assert there.check().clean
            assert migration.migrate(here, there).added == 0, "run again, it finds all there"
    with tenure.open(urls[2], sweep=False) as store:
        assert [flows.told(store.queue(name)) for name in ("site", "reports")] == before
        assert store.schedules() == schedules
        ran = flows.finish(store)
        assert (ran.count(b"index"), ran.count(b"report"), ran.count(b"charge")) == (flows.FLOWS, flows.FLOWS, 1)
        assert store.check().clean


@pytest.mark.xdist_group("redis")
def test_flows_within_a_queue_travel_to_valkey_and_back(tmp_path: Path):
    one = ("site", "site")
    with running(Server()) as server:
        urls = [f"rocksdb:{tmp_path / 'a'}", server.url, f"lmdb:{tmp_path / 'b'}"]
        with tenure.open(urls[0], sweep=False, durability="os") as store:
            flows.make(store, one)
            before, schedules = flows.told(store.queue("site")), store.schedules()
        for source, target in itertools.pairwise(urls):
            with tenure.open(source, sweep=False) as here, tenure.open(target, sweep=False) as there:
                moved = migration.migrate(here, there)
                assert moved.verified, moved
                assert there.check().clean
                assert flows.told(there.queue("site")) == before
                assert there.schedules() == schedules
        with tenure.open(urls[1], sweep=False) as store:
            ran = flows.finish(store, one)
            assert (ran.count(b"index"), ran.count(b"report"), ran.count(b"charge")) == (flows.FLOWS, flows.FLOWS, 1)
            assert store.check().clean


def test_a_queue_alone_leaves_jobs_behind_that_wait_for_another(tmp_path: Path):
    """They are reported, and the target stays paused, so that no job runs early."""
    with tenure.open("memory:", sweep=False) as here, tenure.open("memory:", sweep=False) as there:
        flows.make(here)
        moved = migration.migrate(here, there, queue="reports")
        assert (moved.verified, len(moved.refused)) == (False, 2 * flows.FLOWS - 2), (
            "the first flow's other parents are done"
        )
        assert all("which is not there" in why for why in moved.refused.values())
        assert there.check().clean


def test_a_lost_step_is_told():
    with tenure.open("memory:", sweep=False) as here, tenure.open("memory:", sweep=False) as there:
        flows.make(here)
        moved = migration.migrate(here, there)
        (job,) = [job for job in there.queue("site").list("scheduled") if job.has_steps]
        assert there.queue("site").signal(job.id, "another")
        again = migration.migrate(here, there)
        assert (moved.verified, again.verified) == (True, False)


def test_a_difference_is_told(tmp_path: Path):
    with tenure.open("memory:", sweep=False) as here, tenure.open("memory:", sweep=False) as there:
        fill(here, 50)
        there.queue("emails").enqueue(b"a stranger")
        moved = migration.migrate(here, there)
        assert not moved.verified
        assert moved.source != moved.target
        assert not there.queue("emails").claim(), "it stays paused"


def test_the_command(tmp_path: Path):
    source, target = f"rocksdb:{tmp_path / 'a'}", f"lmdb:{tmp_path / 'b'}"

    def run(*args: str) -> tuple[int, str]:
        ran = CliRunner().invoke(cli, ["migrate", *args])
        return ran.exit_code, ran.stdout + ran.stderr

    assert run(source, target)[0] == 4, "there is no store to copy"
    with tenure.open(source, sweep=False, durability="os") as store:
        fill(store, 300)
    assert run(source, source)[0] == 2
    code, said = run(source, target)
    assert code == 0, said
    assert "verified" in said
    code, said = run(source, target, "--json")
    assert code == 0
    assert '"added":0' in said.replace(" ", "")
    with tenure.open(source, sweep=False) as store:
        store.queue("emails").enqueue(b"one more")
    with tenure.open(target, sweep=False) as store:
        store.queue("reports").enqueue(b"another")
    code, said = run(source, target)
    assert code == 1
    assert "differ" in said
    assert run(source, target, "--no-verify", "--queue", "emails", "--tenant", "acme")[0] == 0


def test_to_a_server_and_back(tmp_path: Path):
    served, target = f"rocksdb:{tmp_path / 'served'}", f"lmdb:{tmp_path / 'b'}"
    with (
        tenure.open("memory:", sweep=False) as here,
        tenure.open(served, sweep=False, durability="os") as owner,
        socket.create_server(("127.0.0.1", 0)) as listening,
    ):
        fill(here, 400)
        flows.make(here)
        first = migration.checksum(here, names(here))
        listener = Listener(listening, Dispatcher(owner._backend))
        try:
            with tenure.open(f"http://127.0.0.1:{listening.getsockname()[1]}", sweep=False) as there:
                assert migration.migrate(here, there).verified
                with tenure.open(target, sweep=False) as last:
                    moved = migration.migrate(there, last)
        finally:
            listener.stop()
        assert (moved.verified, moved.source) == (True, str(first))
        assert owner.check().clean


def test_jobs_of_another_group_are_other_jobs():
    """With another group, the same ids, payloads and states have another checksum."""
    with tenure.open("memory:") as source, tenure.open("memory:") as target:
        source.queue("q").enqueue_many([NewJob(b"x", group="a"), NewJob(b"y")])
        (grouped,) = [job for job in source.queue("q").list("ready") if job.group]
        target.queue("q").restore([msgspec.structs.replace(grouped, group="b")])
        found = target.queue("q").get(grouped.id)
        assert found is not None
        assert found.group == "b"
        assert job_sum(found) != job_sum(grouped)
        assert job_sum(msgspec.structs.replace(found, group="a")) == job_sum(grouped)
