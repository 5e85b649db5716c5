"""Rows of a user's transaction become jobs, each once, whatever ends the relay; on SQLite and on PostgreSQL."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import tenure
from tenure import App, NewJob, Policy, outbox
from tenure.api.store import Store
from tenure.errors import InvalidArgument, OpenError, TooLarge
from tenure.outbox import OutboxTable, Relay, Sent
from tests.outbox.conftest import UserDatabase


@pytest.fixture
def store() -> Iterator[Store]:
    with tenure.open("memory:", sweep=False) as opened:
        yield opened
        assert opened.check().clean


@pytest.fixture
def table(database: UserDatabase) -> Iterator[OutboxTable]:
    with closing(outbox.connect(database.address)) as connected:
        yield connected


def add(database: UserDatabase, *jobs: bytes | NewJob, queue: str = "emails") -> list[str]:
    with closing(database.connect()) as connection:
        keys = [outbox.add(connection, queue, job) for job in jobs]
        connection.commit()
    return keys


def payloads(store: Store, queue: str = "emails") -> list[bytes]:
    return [job.payload for job in store.queue(queue).list("ready", limit=1000).jobs]


def test_a_row_becomes_a_job_if_its_transaction_commits(database: UserDatabase, table: OutboxTable, store: Store):
    with closing(database.connect()) as connection:
        connection.execute("INSERT INTO orders VALUES (1)")
        outbox.add(connection, "emails", b"order 1")
        connection.commit()
        assert Relay(table, store).drain() == Sent(enqueued=1)
        connection.execute("INSERT INTO orders VALUES (2)")
        outbox.add(connection, "emails", b"order 2")
        assert Relay(table, store).drain() == Sent()  # what is not committed is neither seen nor waited for
        connection.rollback()
        assert connection.execute("SELECT count(*) FROM orders").fetchone() == (1,)
    assert Relay(table, store).drain() == Sent()
    assert payloads(store) == [b"order 1"]
    assert table.waiting() == (0, 0, None)


def test_a_job_has_all_that_was_asked_for(database: UserDatabase, table: OutboxTable, store: Store):
    job = NewJob(
        b"\x00\xff", delay=3600, priority=7, key="order-17", max_attempts=3, ttl=timedelta(days=2),
        headers={"trace": "é"}, group="customer-17",
    )  # fmt: skip
    with closing(database.connect()) as connection:
        assert outbox.add(connection, "emails", job, tenant="acme") == "order-17"
        connection.commit()
    Relay(table, store).drain()
    (found,) = store.queue("emails", "acme").list("scheduled").jobs
    assert (found.payload, found.priority, found.key, found.max_attempts) == (b"\x00\xff", 7, "order-17", 3)
    assert found.headers == {"trace": "é"}
    assert found.group == "customer-17"
    assert 3_500_000 < found.visible_at_ms - found.created_at_ms <= 3_600_000


def test_a_task_is_called_through_the_outbox(database: UserDatabase, table: OutboxTable, store: Store):
    app = App(store, tenant="acme")

    @app.task(queue="mail", max_attempts=2, unique=lambda to, subject: to)
    def send(to: str, subject: str) -> str:
        return f"{subject} to {to}"

    with closing(database.connect()) as connection:
        key = outbox.delay(connection, send, "ada", subject="hi")
        assert outbox.delay(connection, send, "ada", subject="again") == key  # one job: the first wins
        connection.commit()
    assert Relay(table, store).drain() == Sent(enqueued=1, duplicates=1)
    with app.worker():
        (job,) = store.list("ready", tenant="acme").jobs or store.list("leased", tenant="acme").jobs or store.list("done", tenant="acme").jobs  # fmt: skip
        assert send.handle(job.id).result(30) == "hi to ada"


def test_what_no_store_would_take_is_refused_where_it_is_added(database: UserDatabase, table: OutboxTable):
    with closing(database.connect()) as connection:
        for queue, job in (
            ("no such name!", b"x"),
            ("emails", NewJob(b"x", priority=10)),
            ("emails", NewJob(b"x", queue="other")),
            ("emails", NewJob(b"x", after=["0" * 32])),
            ("emails", "text"),
        ):
            with pytest.raises(InvalidArgument):
                outbox.add(connection, queue, job)  # type: ignore[arg-type]  # text is what is tried
        with pytest.raises(TooLarge):
            outbox.add(connection, "emails", bytes(9 * 2**20))
        with pytest.raises(InvalidArgument, match="not the name of a table"):
            outbox.add(connection, "emails", b"x", table="a; DROP TABLE orders")
        connection.commit()
    assert table.waiting().rows == 0


def test_a_row_that_no_store_would_take_does_not_hold_up_the_others(
    database: UserDatabase, table: OutboxTable, store: Store
):
    """Any program may write into the table."""
    with closing(database.connect()) as connection:
        for columns, values in (
            ("queue, payload", "'no such name!', 'x'"),
            ("queue, payload, priority", "'emails', 'x', 10"),
            ("queue, payload, headers", "'emails', 'x', '[1]'"),
            ("queue, payload, ttl", "'emails', 'x', -1"),
            ("queue, payload, on_conflict", "'emails', 'x', 'perhaps'"),
            ("queue, payload, tenant", "'emails', 'good', 'acme'"),
        ):
            connection.execute(f"INSERT INTO tenure_outbox ({columns}) VALUES ({values})")
        connection.commit()
    assert Relay(table, store).drain() == Sent(enqueued=1, refused=5)
    assert payloads(store) == []
    assert [job.payload for job in store.queue("emails", "acme").list("ready").jobs] == [b"good"]
    errors = [row.error for row in table.refused()]
    assert [word in error for word, error in zip(("queue", "priority", "headers", "ttl", "on_conflict"), errors, strict=True)] == [True] * 5  # fmt: skip
    with closing(database.connect()) as connection:
        connection.execute("UPDATE tenure_outbox SET priority = 9 WHERE priority = 10")
        connection.commit()
    assert table.retry([row.id for row in table.refused() if "priority" in row.error]) == 1
    assert Relay(table, store).drain() == Sent(enqueued=1)
    assert table.waiting()[:2] == (0, 4)


#: What SQLite keeps in a column, whatever its type.
ODD = {
    "queue": ("1", "1.5", "x'ff'", "'\x1b[31mred'"),
    "payload": ("1.5", "12", "10000000000000"),
    "tenant": ("1.5", "x'ff'"),
    "key": ("17", "1.5", "x'ff'"),
    "on_conflict": ("1", "x'ff'"),
    "priority": ("1.5", "'x'", "x'ff'"),
    "max_attempts": ("1.5", "'x'", "x'ff'"),
    "ttl": ("'x'", "x'ff'", "9e999"),
    "headers": ("1", "x'ff'"),
    "visible_at": ("'x'", "x'ff'", "9e999"),
    "job_group": ("1", "x'ff'"),
    "sending_since": ("'x'", "x'ff'"),
}


@pytest.mark.parametrize(("column", "value"), [(column, value) for column, values in ODD.items() for value in values])
def test_a_value_of_another_type_is_refused_and_holds_up_no_row(column: str, value: str, tmp_path: Path):
    from click.testing import CliRunner

    from tenure.cli.main import cli

    path = tmp_path / "app.db"
    with closing(sqlite3.connect(path)) as connection, tenure.open("memory:", sweep=False) as store:
        outbox.create(connection)
        row = {"queue": "'emails'", "payload": "'x'"} | {column: value}
        names, values = ", ".join(row), ", ".join(row.values())
        connection.execute(f"INSERT INTO tenure_outbox ({names}) VALUES ({values})")
        outbox.add(connection, "emails", b"good")
        connection.commit()
        with closing(outbox.connect(f"sqlite:{path}")) as source:
            sent = Relay(source, store).drain()
        assert sent.ended == 2
        assert b"good" in payloads(store)
        if column == "payload":
            assert sent.refused == 1
    shown = CliRunner().invoke(cli, ["outbox", "status", f"sqlite:{path}"])
    assert (shown.exit_code, "\x1b" in shown.stdout) == (0, False)


def test_a_key_that_another_job_holds(database: UserDatabase, table: OutboxTable, store: Store):
    store.queue("emails").enqueue(b"first", key="17")
    add(database, NewJob(b"first", key="17"), NewJob(b"other", key="17"), NewJob(b"more", key="17", on_conflict="keep"), b"plain")  # fmt: skip
    assert Relay(table, store).drain() == Sent(enqueued=1, duplicates=2, refused=1)
    assert payloads(store) == [b"first", b"plain"]
    assert "has another payload" in table.refused()[0].error


def test_a_full_queue_delays_its_own_rows_only(database: UserDatabase, table: OutboxTable, store: Store):
    store.apply({"emails": Policy(max_waiting=3)})
    clock = tenure.ManualClock()
    relay = Relay(table, store, batch=4, clock=clock)
    add(database, *(b"%d" % number for number in range(10)))
    add(database, b"else", queue="other")
    assert relay.drain() == Sent(enqueued=4, held_back=1)
    assert (payloads(store), payloads(store, "other")) == ([b"0", b"1", b"2"], [b"else"])
    assert table.waiting().rows == 7
    store.queue("emails").purge("ready")
    assert relay.drain() == Sent()  # it is not asked again at once
    clock.advance(5)
    assert relay.drain().enqueued == 3
    assert payloads(store) == [b"3", b"4", b"5"]


def test_a_relay_that_was_killed_after_the_store_had_the_jobs(
    database: UserDatabase, table: OutboxTable, store: Store, monkeypatch: pytest.MonkeyPatch
):
    add(database, *(b"%d" % number for number in range(20)))
    interrupt(monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        Relay(table, store).step()
    monkeypatch.undo()
    assert Relay(table, store).drain() == Sent(duplicates=20)
    assert payloads(store) == [b"%d" % number for number in range(20)]


def test_a_row_in_doubt_is_not_sent_twice(
    database: UserDatabase, table: OutboxTable, store: Store, monkeypatch: pytest.MonkeyPatch
):
    """The relay was away for longer than the queue remembers keys: here the queue remembers none of a job that ended."""
    store.apply({"emails": Policy(dedup_window=0)})
    (key,) = add(database, b"once")
    interrupt(monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        Relay(table, store).step()
    monkeypatch.undo()
    store.queue("emails").ack(store.queue("emails").claim()[0])
    add(database, b"new")
    assert Relay(table, store).drain() == Sent(enqueued=1, refused=1)
    assert payloads(store) == [b"new"]
    (row,) = table.refused()
    assert row.key == key
    assert row.error.startswith("in doubt: ")


def interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    """End the relay between the enqueue and the delete."""

    def remove(self: OutboxTable, ids: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(OutboxTable, "remove", remove)


def test_two_relays_at_once(database: UserDatabase, store: Store):
    add(database, *(b"%d" % number for number in range(300)))

    def relay() -> None:
        with closing(outbox.connect(database.address)) as table:
            Relay(table, store, batch=20).drain()

    threads = [threading.Thread(target=relay) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(int, payloads(store))) == list(range(300))


def test_a_missing_table_or_database_is_named(database: UserDatabase, tmp_path: Any):
    with (
        closing(outbox.connect(database.address, "elsewhere")) as table,
        pytest.raises(OpenError, match="outbox create"),
    ):
        table.waiting()
    with pytest.raises(OpenError, match="no SQLite database"):
        outbox.connect(f"sqlite:{tmp_path / 'nothing'}")
    assert not (tmp_path / "nothing").exists()
    with pytest.raises(InvalidArgument, match="sqlite:PATH"):
        outbox.connect("mysql://root:secret@db/app")


def test_passwords_are_not_shown():
    from tenure.outbox.databases import without_password

    for address in ("postgresql://app:se/cret@db/app", "postgresql://app:p@ss@db/app", "postgresql://db/app?user=a&password=secret"):  # fmt: skip
        shown = without_password(address)
        assert "secret" not in shown
        assert "se/cret" not in shown
    with pytest.raises(InvalidArgument) as caught:
        outbox.connect("mysql://root:secret@db/app")
    assert "secret" not in str(caught.value)


def test_sqlalchemy_and_its_driver_connection(database: UserDatabase, table: OutboxTable, store: Store):
    """As docs/outbox.md has it."""
    sqlalchemy = pytest.importorskip("sqlalchemy")
    engine = sqlalchemy.create_engine("sqlite://" if "sqlite" in database.address else "postgresql+psycopg://", creator=database.connect)  # fmt: skip
    with engine.begin() as connection:
        connection.execute(sqlalchemy.text("INSERT INTO orders VALUES (3)"))
        outbox.add(connection.connection.driver_connection, "emails", b"order 3")
    engine.dispose()
    Relay(table, store).drain()
    assert payloads(store) == [b"order 3"]


# ── PostgreSQL ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_relay_outlives_its_database(postgres: Any, store: Store):
    address = postgres.new_database()
    with closing(outbox.connect(address)) as table:
        table.create()
        relay = Relay(table, store, poll=0.01)
        stop = threading.Event()
        thread = threading.Thread(target=relay.run, args=(stop,))
        thread.start()
        try:
            for number in range(3):
                with postgres.psycopg.connect(address) as connection:
                    outbox.add(connection, "emails", b"%d" % number)
                with postgres.psycopg.connect(address, autocommit=True) as other:
                    other.execute(
                        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
                    )
            while len(payloads(store)) < 3:
                assert thread.is_alive()
                stop.wait(0.01)
        finally:
            stop.set()
            thread.join()
    assert payloads(store) == [b"0", b"1", b"2"]


# ── the command line ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_commands(database: UserDatabase, tmp_path: Any, monkeypatch: pytest.MonkeyPatch):
    from click.testing import CliRunner

    from tenure.cli.main import cli

    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> Any:
        done = CliRunner().invoke(cli, ["--store", "rocksdb:./data", "outbox", *words, "--json"])
        assert done.exit_code == 0, done.stderr
        return json.loads(done.stdout)

    assert run("create", database.address, "--table", "second") == {"table": "second", "created": True}
    add(database, b"a", b"b")
    assert run("status", database.address)["waiting"] == 2
    assert run("run", database.address, "--once") == {"enqueued": 2, "duplicates": 0, "refused": 0, "held_back": 0}
    assert run("retry", database.address) == {"retried": 0}
    assert run("retry", database.address, "17") == {"retried": 0}
    missing = CliRunner().invoke(cli, ["outbox", "run", database.address, "--table", "third", "--once"])
    assert (missing.exit_code, "tenure outbox create" in missing.stderr) == (4, True)
    with tenure.open("rocksdb:./data") as store:
        assert payloads(store) == [b"a", b"b"]
