"""The tables say what the store says, row by row, on every engine."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import tenure
from tenure import Corrupt, GroupPolicy, NewJob, Policy, SnapshotExpired, bulk
from tenure.api.store import Store
from tenure.backends.named_snapshots import open_copy
from tenure.bulk import events as tables_of_events
from tenure.bulk.plan import plan
from tenure.bulk.plan import read as read_part
from tenure.bulk.query import Query, StoreView
from tenure.bulk.schemas import TABLES
from tenure.bulk.snapshots import FolderSnapshot, view_of
from tenure.clock import ManualClock
from tenure.errors import InvalidArgument, OpenError
from tenure.model.job import Job
from tenure.storage import keyspace, records
from tenure.testing.harness import engine_of
from tests.bulk.filling import fill
from tests.bulk.flow_filling import fill_flows


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=["memory", "rocksdb", "lmdb"])
def store(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> Iterator[Store]:
    url = "memory:" if request.param == "memory" else f"{request.param}:{tmp_path / 'data'}"
    with tenure.open(url, clock=clock, sweep=False) as made:
        fill(made, clock)
        yield made


def _at(ms: int | None) -> datetime | None:
    return None if ms is None else datetime.fromtimestamp(ms / 1000, UTC)


def _all_jobs(store: Store) -> list[Job]:
    return [
        job
        for info in store.queues()
        for state in ("scheduled", "ready", "leased", "done", "dead")
        for job in store.queue(info.queue, tenant=info.tenant).list(state, limit=10_000)
    ]


def _shown(job: Job) -> dict[str, object]:
    return {
        "tenant": job.tenant, "queue": job.queue, "id": job.id, "state": job.state, "priority": job.priority,
        "attempt": job.attempt, "max_attempts": job.max_attempts, "replays": job.replays, "token": job.token,
        "created_at": _at(job.created_at_ms), "visible_at": _at(job.visible_at_ms), "ended_at": _at(job.ended_at_ms),
        "reason": job.reason, "lease_id": job.lease_id, "lease_until": _at(job.lease_until_ms), "worker": job.worker,
        "key": job.key, "group": job.group, "headers": sorted(job.headers.items()), "payload": job.payload, "error": job.error,
        "result": job.result, "progress": job.progress, "progress_note": job.progress_note,
    }  # fmt: skip


def _sorted_headers(row: dict[str, object]) -> dict[str, object]:
    return row | {"headers": sorted(row["headers"])}  # type: ignore[call-overload]


def test_jobs_are_what_the_store_shows(store: Store):
    expected = {job.id: _shown(job) for job in _all_jobs(store)}
    assert len(expected) > 400
    assert {job["group"] for job in expected.values()} == {None, "g1", "g2"}
    assert {job["state"] for job in expected.values()} == {"scheduled", "ready", "leased", "done", "dead"}
    table = bulk.read(store, "jobs")
    table.validate(full=True)
    found = {row["id"]: _sorted_headers(row) for row in table.to_pylist()}
    assert found.keys() == expected.keys()
    for id, row in expected.items():
        assert {name: found[id][name] for name in row} == row
    assert len(table) == len(expected), "each once"


def test_jobs_point_at_their_last_event(store: Store):
    events = {(e.commit, e.index): e for e in store.events(limit=100_000)}
    for row in bulk.read(store, "jobs").to_pylist():
        event = events[row["last_commit"], row["last_index"]]
        assert event.job_id == row["id"]
        assert event.token == row["token"]


def test_events_are_what_the_store_shows(store: Store):
    expected = list(store.events(limit=100_000))
    assert {"queue_created", "queue_configured", "queue_paused", "enqueued", "claimed", "extended", "done", "retried",
            "died", "released", "cancelled"} <= {event.type for event in expected}  # fmt: skip
    table = bulk.read(store, "events")
    table.validate(full=True)
    rows = table.to_pylist()
    assert [(r["shard"], r["commit"], r["index"], r["number"]) for r in rows] == [
        ("0", e.commit, e.index, e.number) for e in expected
    ]
    for row, event in zip(rows, expected, strict=True):
        for name in ("type", "tenant", "queue", "job_id", "state", "priority", "attempt", "max_attempts", "token",
                     "lease_id", "reason"):  # fmt: skip
            assert row[name] == getattr(event, name), (name, event)
        assert row["time"] == event.time
        assert (row["visible_at"] or row["lease_until"]) == _at(event.at_ms)
        assert (row["lease_until"] is not None) == (event.type in ("claimed", "extended"))
        assert (row["worker"] or row["error"] or row["text"]) == event.text
        assert row["raw"] is None
        previous = None if row["previous_commit"] is None else (row["previous_commit"], row["previous_index"])
        assert previous == event.previous


def test_an_unknown_event_is_kept_raw(store: Store):
    event = records.EventRecord(99, 1, 3, 0, 1, b"j" * 16, bytes(16), 7, 1, 2, 0, 0, 0, 4)
    packed = records.journal._EVENT.pack(*event)
    engine = engine_of(store)
    engine.transact(lambda tx: tx.append(keyspace.JOURNAL, records.encode_journal(10**6, 10**12, [packed], b"text")))
    row = bulk.read(store, "events").to_pylist()[-1]
    assert row["type"] == "type_99"
    assert row["text"] == "text"
    assert row["raw"] == packed + b"text"


def test_leases_queues_and_counters(store: Store):
    infos = {(info.tenant, info.queue): info for info in store.queues()}
    queues = bulk.read(store, "queues").to_pylist()
    assert {(q["tenant"], q["queue"]) for q in queues} == infos.keys()
    for row in queues:
        info = infos[row["tenant"], row["queue"]]
        assert row["paused"] == info.paused
        assert row["queue_number"] == info.number
        assert msgspec.json.decode(row["policy"], type=tenure.Policy) == info.policy
        for name in ("max_attempts", "lease", "retention", "result_retention", "dedup_window", "max_waiting",
                     "backoff_on_expiry"):  # fmt: skip
            assert row[name] == getattr(info.policy, name)
    for row in bulk.read(store, "counters").to_pylist():
        assert row["value"] == getattr(infos[row["tenant"], row["queue"]].counts, row["counter"])
    jobs = bulk.read(store, "jobs", state="leased").to_pylist()
    leases = {row["id"]: row for row in bulk.read(store, "leases").to_pylist()}
    assert {job["lease_id"] for job in jobs} == leases.keys()
    for id, lease in leases.items():
        held = [job for job in jobs if job["lease_id"] == id]
        assert lease["open"] == len(held)
        assert {(lease["expires_at"], lease["worker"])} == {(j["lease_until"], j["worker"]) for j in held}
    assert {(row["given"], row["lost"], row["claim"] is not None) for row in leases.values()} == {
        (40, 1, True),
        (5, 0, False),
    }
    given = bulk.read(store, "lease_jobs").to_pylist()
    tokens = {(row["lease_id"], row["job_id"]): row["token"] for row in given if not row["cancelled"]}
    assert len(tokens) == 45
    for job in jobs:
        assert tokens[job["lease_id"], job["id"]] == job["token"]
    assert [row["token"] for row in given if row["cancelled"]] == [None]


@pytest.mark.parametrize("columns", [("group", "key", "payload"), ("group", "created_at"), ("group",)])
def test_the_group_of_jobs_that_are_stored_together(store: Store, columns: tuple[str, ...]) -> None:
    queue = store.queue("together")
    for group in ("red", "blue", None):
        queue.enqueue_many([NewJob(b"x", group=group)] * 300)
    found = bulk.read(store, "jobs", queue="together", columns=columns)
    assert Counter(found.column("group").to_pylist()) == {"red": 300, "blue": 300, None: 300}
    assert "key" not in columns or found.column("key").null_count == 900
    assert "payload" not in columns or set(found.column("payload").to_pylist()) == {b"x"}


def test_groups(store: Store):
    queue = store.queue("thumbs", tenant="zebra")
    queue.configure(Policy(group=GroupPolicy(max_leased=1), groups={"g2": GroupPolicy(rate="1/m")}))
    queue.claim(limit=20)
    rows = {row["group"]: row for row in bulk.read(store, "groups", queue="thumbs").to_pylist()}
    infos = {info.group: info for info in queue.groups()}
    assert rows.keys() == infos.keys() == {"g1", "g2"}
    for name, row in rows.items():
        assert (row["waiting"], row["leased"]) == (infos[name].waiting, infos[name].leased)
    assert (rows["g1"]["leased"], rows["g1"]["at_limit"], rows["g1"]["full_at"]) == (1, True, None)
    assert (rows["g2"]["leased"], rows["g2"]["at_limit"]) == (1, False)
    assert rows["g2"]["full_at"] > datetime.fromtimestamp(0, UTC)
    assert bulk.read(store, "groups", queue="plain").num_rows == 0


def test_parents(store: Store):
    flows = fill_flows(store)
    table = bulk.read(store, "parents")
    table.validate(full=True)
    found: dict[str, list[tuple[Any, ...]]] = {}
    rows = table.to_pylist()
    for row in rows:
        told = (row["place"], row["parent_queue"], row["parent_state"], row["met"], row["unmet"], row["on_parent_dead"])
        found.setdefault(row["job_id"], []).append(told)
    assert found == {
        flows.half: [
            (0, "flows", "gone", True, 1, "cancel"),
            (1, "kept", "done", True, 1, "cancel"),
            (2, "flows", "ready", False, 1, "cancel"),
        ],
        flows.patient: [(0, "kept", "dead", False, 1, "wait")],
        flows.runs: [(0, "flows", "ready", False, 1, "run"), (1, "kept", "dead", True, 1, "run")],
        flows.ready: [(0, "flows", "gone", True, None, None), (1, "kept", "done", True, None, None)],
    }
    for row in rows:
        assert row["queue"] == "flows"
        assert row["parent_id"] == store.queue("flows").parents(row["job_id"])[row["place"]].id
    assert bulk.read(store, "parents", queue="kept").num_rows == 0, "the queue is the job's"
    one = bulk.read(store, "parents", columns=["met", "job_id"])
    assert one.to_pylist() == [{"met": row["met"], "job_id": row["job_id"]} for row in rows]


def test_parents_that_share_rows(store: Store):
    queue = store.queue("wide")
    jobs = [NewJob(b"%d" % n, name=str(n)) for n in range(620)]
    *parents, child = queue.enqueue_many([*jobs, NewJob(b"child", after=[f"#{n}" for n in range(620)])])
    queue.ack_many(list(queue.claim(limit=130)))
    rows = bulk.read(store, "parents", queue="wide").to_pylist()
    assert [(row["job_id"], row["place"], row["parent_id"], row["unmet"]) for row in rows] == [
        (child.id, place, parent.id, 490) for place, parent in enumerate(parents)
    ]
    assert [row["met"] for row in rows] == [True] * 130 + [False] * 490


def test_steps(store: Store, clock: ManualClock):
    clock.advance(60)
    flows = fill_flows(store)
    table = bulk.read(store, "steps")
    table.validate(full=True)
    rows = sorted(table.to_pylist(), key=lambda row: row["number"])
    expected = store.queue("steps").steps(flows.stepped)
    assert [(r["name"], r["kind"], r["value"], r["stored_at"]) for r in rows] == [
        (step.name, step.kind, step.value, _at(step.stored_at_ms)) for step in expected
    ]
    assert [(r["number"], r["name"], r["size"]) for r in rows] == [
        (0, "charge", 2),
        (1, "approval", 3),
        (2, "ship", 10_000),
    ]
    assert {(r["queue"], r["job_id"], r["count"]) for r in rows} == {("steps", flows.stepped, 3)}
    moment = rows[0]["stored_at"]
    assert bulk.read(store, "steps", since=moment).num_rows == 3
    assert bulk.read(store, "steps", until=moment).num_rows == 0
    assert bulk.read(store, "steps", queue="flows").num_rows == 0
    assert sorted(bulk.read(store, "steps", columns=["size"]).column("size").to_pylist()) == [2, 3, 10_000]


def test_indexes_agree_with_the_jobs(store: Store):
    jobs = {row["id"]: row for row in bulk.read(store, "jobs").to_pylist()}
    rows = bulk.read(store, "indexes").to_pylist()
    by_index = {name: {r["id"]: r for r in rows if r["index"] == name} for name in {r["index"] for r in rows}}
    waiting = {id for id, job in jobs.items() if job["state"] in ("ready", "scheduled")}
    assert by_index["ready"].keys() == waiting
    for id, row in by_index["ready"].items():
        assert (row["time"], row["priority"]) == (jobs[id]["visible_at"], jobs[id]["priority"])
    assert by_index["group_ready"].keys() == {id for id in waiting if jobs[id]["group"]}
    names = {row["id"]: row["group"] for row in bulk.read(store, "groups").to_pylist()}
    for id, row in by_index["group_ready"].items():
        indexed = (row["time"], row["priority"], names[row["group_id"]])
        assert indexed == (jobs[id]["visible_at"], jobs[id]["priority"], jobs[id]["group"])
    for state in ("done", "dead"):
        assert by_index[state].keys() == {id for id, job in jobs.items() if job["state"] == state}
        assert all(row["time"] == jobs[id]["ended_at"] for id, row in by_index[state].items())
    assert by_index["due_lease"].keys() == {row["id"] for row in bulk.read(store, "leases").to_pylist()}
    assert by_index["due_ttl"].keys() | by_index["due_retention"].keys() == {i for i, j in jobs.items() if j["due_at"]}


# ── parts, columns and filters ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("rows", [3, 100])
def test_parts_are_the_whole_each_row_once(store: Store, table: str, rows: int):
    fill_flows(store)
    with view_of(store) as moment:
        query = Query(table)
        parts = plan(moment, query, rows)
        batches = [batch for part in parts for batch in read_part(moment, query, part)]
        whole = [b for part in plan(moment, query, 10**9) for b in read_part(moment, query, part)]
    assert pa.Table.from_batches(batches, query.schema).to_pylist() == pa.Table.from_batches(whole).to_pylist()
    if table == "jobs":
        assert len(parts) == -(-sum(batch.num_rows for batch in whole) // rows)


@pytest.mark.parametrize("table", TABLES)
def test_any_column_by_itself_is_the_same(store: Store, table: str):
    with view_of(store) as moment:

        def of(*columns: str) -> pa.Table:
            query = Query(table, columns)
            return pa.Table.from_batches(
                [b for part in plan(moment, query, 10**9) for b in read_part(moment, query, part)], query.schema
            )

        whole = of()
        for column in whole.column_names:
            assert of(column).column(0).to_pylist() == whole.column(column).to_pylist(), column


@pytest.mark.parametrize(
    "which",
    [
        {"tenant": "acme"}, {"queue": "plain"}, {"tenant": "zebra", "queue": "thumbs"}, {"tenant": "nobody"},
        {"state": "dead"}, {"state": ["done", "leased"]}, {"tenant": "acme", "state": "ready"}, {"state": "scheduled"},
    ],
)  # fmt: skip
def test_filters_choose_what_a_filter_of_the_whole_would(store: Store, which: dict[str, Any]):
    def chosen(row: dict[str, object]) -> bool:
        states = which.get("state", row["state"])
        return (
            row["tenant"] == which.get("tenant", row["tenant"])
            and row["queue"] == which.get("queue", row["queue"])
            and row["state"] in ([states] if isinstance(states, str) else states)
        )

    whole = bulk.read(store, "jobs").to_pylist()
    assert bulk.read(store, "jobs", **which).to_pylist() == [row for row in whole if chosen(row)]


@pytest.mark.parametrize(("table", "column"), [("jobs", "created_at"), ("events", "time"), ("leases", "granted_at")])
def test_since_and_until(store: Store, table: str, column: str):
    whole = bulk.read(store, table).to_pylist()
    moments = sorted({row[column] for row in whole})
    assert len(moments) > 1
    found = bulk.read(store, table, since=moments[0], until=moments[-1]).to_pylist()
    assert found == [row for row in whole if row[column] < moments[-1]]
    assert bulk.read(store, table, since=moments[-1]).to_pylist() == [r for r in whole if r[column] == moments[-1]]


@pytest.mark.parametrize(
    "which",
    [{"table": "nope"}, {"columns": ["nope"]}, {"state": "waiting"}, {"table": "leases", "state": "ready"},
     {"table": "queues", "since": 0}, {"tenant": "A/B"}],
)  # fmt: skip
def test_what_cannot_be_asked_is_refused(store: Store, which: dict[str, object]):
    with pytest.raises(InvalidArgument):
        bulk.read(store, **({"table": "jobs"} | which))  # type: ignore[arg-type]


def test_an_empty_store_has_empty_tables():
    with tenure.open("memory:", sweep=False) as store:
        for table in TABLES:
            assert len(bulk.read(store, table)) == 0


# ── moments ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_named_snapshot_stays_as_it_was(store: Store, clock: ManualClock):
    taken = store.take_snapshot("audit", ttl=60)
    before = {table: bulk.read(store, table, snapshot=taken.id) for table in TABLES}
    queue = store.queue("emails", tenant="acme")
    queue.enqueue(b"after")
    queue.purge("dead")
    assert len(bulk.read(store, "jobs")) != len(before["jobs"])
    for table in TABLES:
        assert bulk.read(store, table, snapshot=taken.id).equals(before[table])
    clock.advance(59)
    bulk.read(store, "queues", snapshot=taken.id)
    clock.advance(59)  # renewed by use
    bulk.read(store, "queues", snapshot=taken.id)
    clock.advance(61)
    with pytest.raises(SnapshotExpired):
        bulk.read(store, "jobs", snapshot=taken.id)


def test_another_reader_opens_the_folder(store: Store, tmp_path: Path):
    if store.url == "memory:":
        pytest.skip("a memory store has no folder")
    # By the machine's clock: whoever reads a folder from outside has no other.
    with tenure.open(store.url.split(":")[0] + f":{tmp_path / 'second'}", sweep=False) as second:
        fill(second)
        taken = second.take_snapshot("read", ttl=600)
        assert taken.where is not None
        kept, query = FolderSnapshot(taken.where), Query("jobs")
        moment = kept.view()
        table = pa.Table.from_batches(
            [b for part in plan(moment, query, 50) for b in kept.in_use(read_part(moment, query, part))]
        )
        assert table.equals(bulk.read(second, "jobs", snapshot=taken.id).combine_chunks()) or (
            table.to_pylist() == bulk.read(second, "jobs", snapshot=taken.id).to_pylist()
        )
        second.drop_snapshot(taken.id)
        with pytest.raises(SnapshotExpired):
            kept.view()


# ── damage ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _flip(store: Store, space: int, key: bytes, at: int) -> None:
    """One bit of a value, past the engine's own checks."""

    def run(tx: object) -> None:
        value = bytearray(tx.get(space, key))  # type: ignore[attr-defined]
        value[at] ^= 4
        tx.put(space, key, bytes(value))  # type: ignore[attr-defined]

    engine_of(store).transact(run)


@pytest.mark.parametrize("at", [0, 1, 20, 72, 73, 76])
def test_a_damaged_state_is_named_not_shown(store: Store, at: int):
    job = store.queue("emails", tenant="acme").list("dead", limit=1).jobs[0]
    key = keyspace.of_queue(1, bytes.fromhex(job.id))
    _flip(store, keyspace.STATE, key, at)
    with pytest.raises(Corrupt) as damage:
        bulk.read(store, "jobs", columns=["id"])
    assert damage.value.job_id == job.id
    assert len(bulk.read(store, "jobs", queue="plain")) == 100, "the rest can be read"


@pytest.mark.parametrize("at", [0, 5, 19, -1, -5])
def test_a_damaged_job_is_named_not_shown(store: Store, at: int):
    job = store.queue("emails", tenant="acme").list("dead", limit=1).jobs[0]
    _flip(store, keyspace.JOBS, keyspace.of_queue(1, bytes.fromhex(job.id)), at)
    with pytest.raises(Corrupt) as damage:
        bulk.read(store, "jobs")
    assert damage.value.job_id == job.id


@pytest.mark.parametrize("space", [keyspace.STATE, keyspace.JOBS])
@pytest.mark.parametrize("which", [0, 5, -1])
def test_half_a_job_is_named_not_passed_over(store: Store, space: int, which: int):
    ids = sorted(row["id"] for row in bulk.read(store, "jobs", queue="emails").to_pylist())
    key = keyspace.of_queue(1, bytes.fromhex(ids[which]))
    engine_of(store).transact(lambda tx: tx.delete(space, key))
    with pytest.raises(Corrupt, match="missing") as damage:
        bulk.read(store, "jobs")
    assert damage.value.job_id == ids[which]


@pytest.mark.parametrize("which", [3, -2])
def test_a_journal_row_that_is_missing_is_named(store: Store, which: int):
    commits = sorted({event.commit for event in store.events(limit=100_000)})
    engine_of(store).transact(lambda tx: tx.delete(keyspace.JOURNAL, keyspace.commit(commits[which])))
    with pytest.raises(Corrupt, match=f"journal row {commits[which]} is missing"):
        bulk.read(store, "events")


@pytest.mark.parametrize("at", [2, 30, -1])
def test_a_damaged_journal_row_is_named(store: Store, at: int):
    _flip(store, keyspace.JOURNAL, keyspace.commit(4), at)
    with pytest.raises(Corrupt, match="journal row 4"):
        bulk.read(store, "events")


@pytest.mark.parametrize("scheme", ["rocksdb", "lmdb"])
def test_flipped_bytes_of_a_copy_are_an_error_or_nothing_at_all(scheme: str, tmp_path: Path):
    """The driver's quickest scan ends at damage without a word: ours must not."""
    with tenure.open(f"{scheme}:{tmp_path / 'data'}", sweep=False) as store:
        fill(store, scale=10)
        store.snapshot(tmp_path / "copy")
    truth = _tables_of(tmp_path / "copy")
    files = sorted(file for file in (tmp_path / "copy" / "db").iterdir() if file.suffix in (".sst", ".mdb", ".log"))
    random, met = Random(7), 0
    for turn in range(60):
        broken = tmp_path / f"broken-{turn}"
        shutil.copytree(tmp_path / "copy", broken)
        file = broken / "db" / random.choices(files, [max(1, f.stat().st_size) for f in files])[0].name
        data = bytearray(file.read_bytes())
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)
        file.write_bytes(data)
        try:
            found = _tables_of(broken)
        except (Corrupt, OpenError):
            met += 1
        else:
            assert found == truth, f"turn {turn}: a wrong table, and no word of it"
        shutil.rmtree(broken)
    assert met > 5, "most bytes matter"


def _tables_of(folder: Path) -> list[pa.Table]:
    with open_copy(folder) as reader:
        moment = StoreView(reader, 0)
        return [
            pa.Table.from_batches(
                [batch for part in plan(moment, query, 300) for batch in read_part(moment, query, part)], query.schema
            )
            for query in (Query("jobs"), Query("events"), Query("leases"), Query("indexes"))
        ]


@pytest.mark.parametrize("scheme", ["rocksdb", "lmdb"])
def test_batches_are_bounded_by_bytes(tmp_path: Path, scheme: str) -> None:
    """Large payloads and results among small ones, whole, filtered and by state: no batch is much over 16 MiB."""
    with tenure.open(f"{scheme}:{tmp_path / 'data'}", sweep=False) as store:
        queue = store.queue("large")
        queue.configure(Policy(retention=3600))
        sizes = [10] * 300 + [7_500_000] * 5 + [60_000] * 500 + [10] * 300 + [3_000_000] * 4
        for size in sizes:
            queue.enqueue(bytes(size))
        for delivery in queue.claim(limit=320, max_bytes=64 * 1024**2):
            queue.ack(delivery, result=bytes(5_000_000) if len(delivery.payload) > 10 else b"r")
        wanted = Counter(sizes)
        for which in (
            {},
            {"state": ("done", "ready")},
            {"columns": ["id", "payload"]},
            {"columns": ["result", "state"]},
        ):
            batches = list(bulk.batches(store, "jobs", **which))
            assert max(batch.nbytes for batch in batches) < 24 * 1024**2
            assert sum(batch.num_rows for batch in batches) == len(sizes)
            if "payload" in batches[0].schema.names:
                lengths = [n for batch in batches for n in pc.binary_length(batch.column("payload")).to_pylist()]
                assert Counter(lengths) == wanted
        done = list(bulk.batches(store, "jobs", state="done"))
        ids = [id for batch in done for id in batch.column("id").to_pylist()]
        assert len(ids) == len(set(ids)) == queue.counts().done


def test_batches_fit_into_the_buffer_that_java_keeps() -> None:
    """Of 4 MiB: a larger one is new memory for every batch."""
    with tenure.open("memory:", sweep=False) as store:
        for _ in range(30):
            store.queue("small").enqueue_many([bytes(300)] * 1_000)
        batches = list(bulk.batches(store, "jobs"))
    assert sum(batch.num_rows for batch in batches) == 30_000
    assert max(batch.nbytes for batch in batches) <= 4 * 1024**2
    assert len(batches) < 10


def test_batches_of_results_are_bounded_by_bytes(tmp_path: Path) -> None:
    """Results that are stored with the notes, whose sizes are not known before they are read."""
    with tenure.open(f"rocksdb:{tmp_path / 'data'}", sweep=False, durability="os") as store:
        queue = store.queue("large")
        for size, count in ((1, 5_000), (60_000, 2_500)):
            queue.enqueue_many([b"x"] * count)
            for delivery in queue.claim(limit=count):
                queue.ack(delivery, result=bytes(size))
        batches = list(bulk.batches(store, "jobs", columns=["result"]))
        assert sum(batch.num_rows for batch in batches) == 7_500
        assert max(batch.nbytes for batch in batches) < 64 * 1024**2


def test_batches_of_events_are_bounded_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of one event, and then rows of a thousand: the size of a batch followed the first ones."""
    monkeypatch.setattr(tables_of_events, "_BATCH_BYTES", 256 * 1024)
    with tenure.open("memory:", sweep=False) as store:
        queue = store.queue("many")
        for _ in range(1_000):
            queue.enqueue(b"x")
        for _ in range(250):
            queue.enqueue_many([b"x"] * 1_000)
        batches = list(bulk.batches(store, "events", columns=["number", "commit"]))
        numbers = [number for batch in batches for number in batch.column("number").to_pylist()]
        assert numbers == list(range(1, len(numbers) + 1))
        assert len(numbers) == 251_001
        # So many bytes, and up to 128 rows over.
        assert max(batch.num_rows for batch in batches) <= 128_000 + 256 * 1024 // 80
