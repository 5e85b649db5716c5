"""Opening a store on Redis: what a URL says, what a server must be, and how the library gets there."""

from __future__ import annotations

import contextlib

import pytest
import redis

import tenure
from tenure.backends.redis.address import Address, parse
from tenure.backends.redis.library import library
from tenure.backends.redis.opening import _check_version
from tenure.errors import FormatError, InvalidArgument, OpenError, SettingsError, Unavailable
from tenure.settings import without_password
from tests.backends.redis.servers import RedisHarness, Server, running

pytestmark = pytest.mark.xdist_group("redis")


@pytest.fixture
def harness(server: Server) -> RedisHarness:
    return RedisHarness(server.url, [server])


@pytest.mark.parametrize(
    ("url", "kind", "hosts", "rest"),
    [
        ("redis://h", "server", (("h", 6379),), {}),
        ("valkey://h:7000/3", "server", (("h", 7000),), {"db": 3}),
        ("rediss://u:p%40@h", "server", (("h", 6379),), {"tls": True, "user": "u", "password": "p@"}),
        ("redis://:secret@[::1]:6380", "server", (("::1", 6380),), {"password": "secret"}),
        ("redis+unix:///tmp/a%20b", "unix", (), {"path": "/tmp/a b"}),
        ("redis+cluster://a:1,b:2,c", "cluster", (("a", 1), ("b", 2), ("c", 6379)), {}),
        ("valkeys+cluster://a", "cluster", (("a", 6379),), {"tls": True}),
        ("redis+sentinel://a,b:2/main/1", "sentinel", (("a", 26379), ("b", 2)), {"service": "main", "db": 1}),
        (
            "redis://h?prefix=x&wait_replicas=2",
            "server",
            (("h", 6379),),
            {"options": {"prefix": "x", "wait_replicas": "2"}},
        ),
    ],
)
def test_urls(url: str, kind: str, hosts: tuple[tuple[str, int], ...], rest: dict[str, object]) -> None:
    found = parse(url)
    assert (found.kind, found.hosts) == (kind, hosts)
    assert {name: getattr(found, name) for name in rest} == rest


@pytest.mark.parametrize(
    "url",
    ["redis://", "redis://a,b", "redis://h/x", "redis://h/1/2", "redis+unix://", "redis+sentinel://h",
     "redis+cluster://h/2", "redis://h?nosuch=1", "redis://h:port"],
)  # fmt: skip
def test_urls_that_are_none(url: str) -> None:
    with pytest.raises(OpenError):
        tenure.open(url, sweep=False)


def test_a_password_is_never_shown() -> None:
    assert "secret" not in parse("redis://u:secret@h").shown
    with pytest.raises(OpenError) as refused:
        tenure.open("redis://u:secret@127.0.0.1:1", sweep=False)
    assert "secret" not in str(refused.value)
    assert isinstance(parse("redis://u:secret@h"), Address)


@pytest.mark.parametrize("scheme", ["redis", "rediss", "valkey+cluster", "redis+sentinel", "redis+unix", "redsi"])
@pytest.mark.parametrize(
    "password",
    ["a@secret", "secret@b", "a/secret", "secret/b", "12/secret", "a?secret", "secret#b", "a:secret", "[secret",
     "a/secret@b/secret", "secret?prefix=b"],
)  # fmt: skip
def test_no_password_is_shown_whatever_it_holds(scheme: str, password: str) -> None:
    for login in (f":{password}", f"user:{password}"):
        url = f"{scheme}://{login}@127.0.0.1:1/main"
        assert "secret" not in without_password(url)
        with pytest.raises(OpenError) as refused:
            tenure.open(url, timeout=0.2, patience=0.2, sweep=False)
        assert "secret" not in str(refused.value)
        assert "secret" not in str(refused.value.__cause__ or "")


def test_what_is_no_login_is_shown() -> None:
    for url in ("redis://h:1/2?prefix=x", "redis+unix:///tmp/a@b", "rocksdb:./data@home", "memory:"):
        assert without_password(url) == url
    assert without_password("redis://user:p@ss@h/1") == "redis://user:***@h/1"
    assert parse("redis://user:p@ss@h/1").password == "p@ss"


def test_options_are_checked(server: Server) -> None:
    for query in ("partitions=0", "partitions=65", "partitions=x", "wait_replicas=-1", "timeout=0", "prefix="):
        with pytest.raises((SettingsError, OpenError)):
            tenure.open(f"{server.url}?{query}", sweep=False)
    with pytest.raises(SettingsError):
        tenure.open(server.url, prefix="a b", sweep=False)
    with pytest.raises(SettingsError, match="is a setting of redis"):
        tenure.open("memory:", prefix="x")


def test_no_server_is_an_error_at_once() -> None:
    with pytest.raises(OpenError, match="refused"):
        tenure.open("redis://127.0.0.1:1", sweep=False)
    with pytest.raises(OpenError):
        tenure.open("redis+unix:///tmp/no-such-socket", sweep=False)


@pytest.mark.parametrize(
    ("info", "fine"),
    [("redis_version:7.2.4", True), ("redis_version:7.0.0", True), ("redis_version:6.2.14", False),
     ("redis_version:7.2.4\r\nvalkey_version:8.0.1", True), ("redis_version:7.2.4\nvalkey_version:7.2.5", False)],
)  # fmt: skip
def test_old_servers_are_refused(info: str, fine: bool) -> None:
    with contextlib.nullcontext() if fine else pytest.raises(OpenError, match="is needed"):
        _check_version(info)


def test_a_password_that_is_missing_or_wrong(server: Server) -> None:
    client = server.client()
    client.config_set("requirepass", "pw")
    try:
        with pytest.raises(OpenError, match="asks for a password") as refused:
            tenure.open(server.url, sweep=False)
        assert str(server.socket) in str(refused.value)
        with pytest.raises(OpenError, match="refuses this user"):
            tenure.open(f"redis+unix://:no@{server.socket}", sweep=False)
        tenure.open(f"redis+unix://:pw@{server.socket}", sweep=False).close()
    finally:
        client.config_set("requirepass", "")


def test_a_server_that_evicts_is_refused(server: Server, harness: RedisHarness) -> None:
    client = server.client()
    client.config_set("maxmemory-policy", "allkeys-lru")
    try:
        with pytest.raises(OpenError, match="noeviction"):
            harness.open()
    finally:
        client.config_set("maxmemory-policy", "noeviction")
    assert not list(client.scan_iter(match=f"{harness.prefix}*"))


def test_durability_is_what_the_server_has(server: Server, harness: RedisHarness) -> None:
    client = server.client()
    with harness.open() as store:
        assert store.durability == "os"
    assert harness.url is not None
    with pytest.raises(OpenError, match="'disk' was asked for"):
        tenure.open(harness.url, durability="disk", sweep=False)
    client.config_set("appendfsync", "always")
    try:
        with tenure.open(harness.url, durability="disk", sweep=False) as store:
            assert store.durability == "disk"
    finally:
        client.config_set("appendfsync", "everysec")
    with running(Server(appendonly=False)) as plain:
        with tenure.open(plain.url, sweep=False) as store:
            assert store.durability == "memory"
        with pytest.raises(OpenError, match="'os' was asked for"):
            tenure.open(plain.url, durability="os", sweep=False)


def test_another_format_is_refused_and_nothing_changed(server: Server, harness: RedisHarness) -> None:
    client = server.client()
    key = f"{harness.prefix}:{{registry}}:format"
    client.set(key, "tenure 99")
    with pytest.raises(FormatError, match="99"):
        harness.open()
    assert client.get(key) == b"tenure 99"


def test_the_clock_is_the_servers(server: Server, harness: RedisHarness) -> None:
    class Another:
        def wall_ms(self) -> int:
            return 0

        steady_ms = wall_ms

    assert harness.url is not None
    with pytest.raises(InvalidArgument, match="server's clock"):
        tenure.open(harness.url, clock=Another(), sweep=False)  # type: ignore[arg-type]
    with harness.open() as store:
        seconds, micros = server.client().time()
        assert abs(store._backend.now_ms() - (seconds * 1000 + micros / 1000)) < 5000


def test_functions_are_used_and_come_back_when_they_are_lost(server: Server, harness: RedisHarness) -> None:
    client = server.client()
    with harness.open() as store:
        queue = store.queue("work")
        queue.enqueue(b"1")
        assert not store._backend._core.commands._scripts  # type: ignore[attr-defined]
        assert library().name.encode() in str(client.function_list()).encode()
        client.function_flush()
        queue.enqueue(b"2")
        assert queue.counts().ready == 2


def test_without_functions_scripts_do(server: Server, harness: RedisHarness) -> None:
    client = server.client()
    client.acl_setuser("plain", enabled=True, reset=True, passwords=["+pw"], keys=["*"], channels=["*"],
                       categories=["+@all"], commands=["-function", "-fcall", "-fcall_ro", "-config"])  # fmt: skip
    url = f"redis+unix://plain:pw@{server.socket}?prefix={harness.prefix}"
    with tenure.open(url, sweep=False) as store:
        assert store._backend._core.commands._scripts  # type: ignore[attr-defined]
        queue = store.queue("work")
        made = [e.id for e in queue.enqueue_many([b"%d" % n for n in range(50)])]
        client.script_flush()
        claim = queue.claim(limit=50)
        assert [d.id for d in claim] == made
        assert queue.ack_many(claim).lost == []
        assert store.check().clean


def test_a_server_without_memory_refuses_and_nothing_is_written(harness: RedisHarness) -> None:
    with running(Server("--maxmemory", "6mb")) as small, tenure.open(small.url, sweep=False) as store:
        queue = store.queue("work")
        added = 0
        refused = ""
        while not refused and added < 1000:
            try:
                added += len(queue.enqueue_many([bytes(50_000)] * 10))
            except Unavailable as exc:
                refused = str(exc)
        assert "memory" in refused
        assert queue.counts().enqueued == added
        small.client().config_set("maxmemory", "200mb")
        queue.enqueue(b"x")
        assert store.check().clean


def test_the_driver_retries_nothing(harness: RedisHarness) -> None:
    with harness.open() as store:
        node = store._backend._core.commands._topology.primaries()[0]  # type: ignore[attr-defined]
        connection = node.connection_pool.get_connection()
        try:
            assert connection.retry._retries == 0
        finally:
            node.connection_pool.release(connection)
    assert issubclass(redis.ConnectionError, redis.RedisError)


def test_the_extra_is_named_when_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    for name in [name for name in sys.modules if name.startswith("tenure.backends.redis")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(SettingsError, match=r"tenure\[redis\]"):
        tenure.open("redis://localhost", sweep=False)
