"""`tenure.open`: the choice of engine and settings, and refusals."""

import gc
import logging
import os
import signal
import subprocess
import sys
import time
import weakref
from datetime import timedelta
from pathlib import Path

import pytest

import tenure
from tenure.api import opening
from tenure.errors import FormatError, OpenError, SettingsError, StoreLocked, UnknownEngine
from tenure.storage.engines.rocksdb import RocksEngine

ENGINES = ["rocksdb", "lmdb"]


@pytest.fixture(autouse=True)
def _plain(tmp_path, monkeypatch):
    """Remove all settings from the environment."""
    monkeypatch.chdir(tmp_path)
    for key in [key for key in os.environ if key.startswith("TENURE_")]:
        monkeypatch.delenv(key)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_store_is_made_and_found_again(tmp_path, engine):
    with tenure.open(f"{engine}:./data") as store:
        assert store.url == f"{engine}:{tmp_path / 'data'}"
        assert store.durability == "disk"
        job = store.queue("emails").enqueue(b"hello")
    with tenure.open(f"{engine}://{tmp_path}/data") as store:
        assert [d.id for d in store.queue("emails").claim()] == [job.id]
        assert store.check().clean


def test_memory():
    with tenure.open("memory:") as store:
        assert store.url == "memory:"
        assert store.durability == "memory"
        store.queue("emails").enqueue(b"hello")
        assert store.check().clean


def test_settings_open_a_store_without_a_url(tmp_path, monkeypatch):
    monkeypatch.setenv("TENURE_STORAGE_ENGINE", "lmdb")
    monkeypatch.setenv("TENURE_STORAGE_PATH", "$ROOM/data")
    monkeypatch.setenv("ROOM", str(tmp_path))
    with tenure.open() as store:
        assert store.url == f"lmdb:{tmp_path}/data"


def test_a_file_opens_a_store(tmp_path):
    Path("queues.toml").write_text('[storage]\nengine = "memory"\n[sweep]\nenabled = false\n')
    with tenure.open(config="queues.toml") as store:
        assert store.url == "memory:"
        assert store._sweeper is None


def test_home_is_expanded(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    with tenure.open("rocksdb:~/a") as store:
        assert store.url == f"rocksdb:{tmp_path}/a"
    with tenure.open("rocksdb:$HOME/a") as store:
        assert store.url == f"rocksdb:{tmp_path}/a"


def test_no_store_is_named():
    with pytest.raises(SettingsError, match="TENURE_STORAGE_PATH"):
        tenure.open()
    assert not list(Path().iterdir())


# ── options ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_options_reach_the_engine(monkeypatch):
    seen = {}

    def engine(path, **given):
        seen.update(given)
        return RocksEngine(path, **given)

    monkeypatch.setattr("tenure.storage.engines.rocksdb.RocksEngine", engine)
    with tenure.open(
        "rocksdb:./data",
        durability="os",
        cache_capacity="8MB",
        mode="low_space",
        sync_interval=timedelta(milliseconds=20),
    ) as store:
        assert store.durability == "os"
    seen.pop("boot_id")
    assert seen == {
        "durability": "os",
        "cache_capacity": 8 * 1024**2,
        "mode": "low_space",
        "sync_interval": 0.02,
        "listens": True,
    }


def test_lmdb_takes_a_map_size():
    tenure.open("lmdb:./data", map_size="4MB").close()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"cache": 5},
            "unknown option 'cache'.*cache_capacity, cert_file, .*listen, map_size, mode, one_slot, partitions",
        ),
        ({"mode": "fast"}, "storage.rocksdb.mode = 'fast' .*low_space, high_throughput"),
        ({"map_size": "1GB"}, "'map_size' is a setting of lmdb, and this is a rocksdb store"),
        ({"durability": "paper"}, "storage.durability = 'paper'"),
        ({"sweep": -1}, "sweep.interval = -1"),
        ({"path": "x"}, "unknown option 'path'"),
    ],
)
def test_wrong_options_are_named_and_nothing_is_made(options, said):
    with pytest.raises(SettingsError, match=said):
        tenure.open("rocksdb:./data", **options)
    assert not list(Path().iterdir())


def test_the_sweeper_is_on_off_or_at_an_interval(monkeypatch):
    with tenure.open("memory:") as store:
        assert store._sweeper is not None
        assert store._sweeper.interval == 1.0
    with tenure.open("memory:", sweep=False) as store:
        assert store._sweeper is None
    monkeypatch.setenv("TENURE_SWEEP_ENABLED", "false")
    with tenure.open("memory:") as store:
        assert store._sweeper is None
    with tenure.open("memory:", sweep=timedelta(seconds=0.5)) as store:
        assert store._sweeper is not None
        assert store._sweeper.interval == 0.5


def test_the_background_sweeper_brings_expired_jobs_back():
    with tenure.open("memory:", sweep=0.01) as store:
        queue = store.queue("emails")
        job = queue.enqueue(b"hello")
        queue.claim(lease=0.02)
        events = store.events(after=None)
        kinds = {event.type for event in events}
        while "expired" not in kinds:
            events = store.events(after=events.cursor, wait=5)
            assert events.events
            kinds |= {event.type for event in events}
        found = queue.get(job.id)
        assert found is not None
        assert found.state == "ready"
        assert store.check().clean


# ── durability ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("asked", ["disk", "os"])
def test_memory_refuses_to_promise_more(asked):
    with pytest.raises(OpenError, match=f"'memory', and '{asked}' was asked for"):
        tenure.open("memory:", durability=asked)


@pytest.mark.parametrize(
    ("engine", "asked", "has"),
    [
        ("rocksdb", "disk", "disk"),
        ("rocksdb", "os", "os"),
        ("rocksdb", "memory", "os"),
        ("lmdb", "disk", "disk"),
        ("lmdb", "os", "disk"),
        ("lmdb", "memory", "disk"),
        ("memory", "memory", "memory"),
    ],
)
def test_more_than_was_asked_for_is_fine(engine, asked, has):
    with tenure.open("memory:" if engine == "memory" else f"{engine}:./data", durability=asked) as store:
        assert store.durability == has


def test_an_engine_with_less_is_closed_again(monkeypatch):
    class Weak(RocksEngine):
        def __init__(self, path, **given):
            super().__init__(path, **{**given, "durability": "os"})

    with monkeypatch.context() as patch:
        patch.setattr("tenure.storage.engines.rocksdb.RocksEngine", Weak)
        with pytest.raises(OpenError, match="'os', and 'disk' was asked for"):
            tenure.open("rocksdb:./data")
    tenure.open("rocksdb:./data").close()  # it is free


def test_a_backend_that_fails_leaves_the_engine_closed(monkeypatch):
    def fail(*args):
        raise OpenError("no")

    with monkeypatch.context() as patch:
        patch.setattr("tenure.backends.owner.backend.OwnerBackend", fail)
        with pytest.raises(OpenError, match="no"):
            tenure.open("rocksdb:./data")
    tenure.open("rocksdb:./data").close()


# ── refusals ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("url", ["./data", "sqlite:./data"])
def test_unknown_engines(url):
    with pytest.raises(UnknownEngine):
        tenure.open(url)
    assert not list(Path().iterdir())


@pytest.mark.parametrize("engine", ENGINES)
def test_bad_paths(engine):
    Path("file").write_text("not a store")
    Path("strange").mkdir()
    Path("strange/notes.txt").write_text("mine")
    for path, error in [
        ("file", OpenError),
        ("file/inside", OpenError),
        ("strange", FormatError),
        ("$NOWHERE/x", OpenError),
    ]:
        with pytest.raises(error):
            tenure.open(f"{engine}:{path}")
    assert sorted(str(p) for p in Path().rglob("*")) == ["file", "strange", "strange/notes.txt"]


def test_a_store_of_another_engine():
    tenure.open("rocksdb:./data").close()
    with pytest.raises(FormatError, match="holds a rocksdb store"):
        tenure.open("lmdb:./data")


def test_a_path_that_is_open_already():
    with tenure.open("rocksdb:./data"), pytest.raises(StoreLocked, match="this process"):
        tenure.open("rocksdb:./data")


# ── telling, and loading ─────────────────────────────────────────────────────────────────────────────────────────────


def test_it_says_what_it_opened(tmp_path, caplog):
    caplog.set_level(logging.INFO, "tenure")
    tenure.open("rocksdb:./data", sweep=False).close()
    line = next(record.msg for record in caplog.records if record.msg["event"] == "opened")
    assert line == {
        "event": "opened",
        "url": f"rocksdb:{tmp_path}/data",
        "engine": "rocksdb",
        "durability": "disk",
        "format": 2,
        "sweep": None,
    }


def test_drivers_are_loaded_when_they_are_asked_for():
    code = """
import sys
import time
import weakref
import tenure
heavy = {"rocksdict", "lmdb", "sortedcontainers", "structlog", "prometheus_client", "click", "rich", "asyncio", "redis"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
with tenure.open("memory:") as store:
    queue = store.queue("emails")
    queue.enqueue(b"hello")
    queue.ack(queue.claim()[0])
assert not {"rocksdict", "lmdb", "prometheus_client"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_suspended_owner_is_named_as_one_that_does_not_answer(tmp_path, monkeypatch):
    monkeypatch.setattr("tenure.backends.joined.PATIENCE", 0.5)
    monkeypatch.setenv("TENURE_STORAGE_HTTP_TIMEOUT", "0.5")
    url = f"rocksdb:{tmp_path}/data"
    hold = f"import sys, tenure; store = tenure.open({url!r}); print('open', flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"open\n"
        owner.send_signal(signal.SIGSTOP)
        os.waitpid(owner.pid, os.WUNTRACED)  # until all its threads have stopped: one may still answer for a moment
        try:
            with pytest.raises(
                StoreLocked, match=f"process {owner.pid} .*, which does not answer. It may be suspended"
            ):
                tenure.open(url)
        finally:
            owner.send_signal(signal.SIGCONT)
        tenure.open(url).close()
        owner.communicate(timeout=60)


@pytest.mark.parametrize("engine", ["rocksdb", "lmdb"])
def test_without_file_handles_a_store_is_not_opened(tmp_path, engine):
    code = f"""
import os, resource, pytest, tenure
from tenure.errors import OpenError
for name in ("warm", "cold"):
    if name == "cold":
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        held = []
        while True:
            try:
                held.append(os.open(os.devnull, os.O_RDONLY))
            except OSError:
                break
        with pytest.raises(OpenError, match="Too many open files"):
            tenure.open("{engine}:{tmp_path}/cold")
        for handle in held:
            os.close(handle)
    tenure.open("{engine}:{tmp_path}/" + name).close()
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_options_are_the_engines_settings():
    assert sorted(opening.OPTIONS) == [
        "bloom_capacity", "bloom_cleanup", "bloom_cleanup_capacity", "bloom_ghosts", "bloom_ghosts_capacity",
        "bloom_keys", "bloom_keys_capacity", "bloom_rate", "bloom_rotation", "ca_file", "cache_capacity", "cert_file",
        "directory", "encoding", "grace", "key_file", "lease_versions", "listen", "map_size", "mode", "one_slot",
        "partitions", "patience", "prefix", "retry_limit", "sync_interval", "timeout", "token", "token_file", "wait_aof",
        "wait_replicas",
    ]  # fmt: skip


def test_a_store_that_was_not_closed_is_collected():
    store = tenure.open("memory:", sweep=0.01)
    store.queue("emails").enqueue(b"hello")
    gone = weakref.ref(store)
    del store
    until = time.monotonic() + 60
    while gone() is not None and time.monotonic() < until:
        gc.collect()
        time.sleep(0.01)
    assert gone() is None


@pytest.mark.parametrize("engine", ENGINES)
def test_a_store_that_was_not_closed_does_not_keep_the_interpreter(engine):
    code = f"""
import tenure
store = tenure.open("{engine}:./data", sweep=0.001)
store.queue("emails").enqueue(b"hello")
"""
    ended = subprocess.run([sys.executable, "-c", code], timeout=60, capture_output=True, text=True, check=True)
    assert ended.stderr == ""
    with tenure.open(f"{engine}:./data") as store:
        assert store.queue("emails").counts().ready == 1
