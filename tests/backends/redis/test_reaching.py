"""Servers that are reached in other ways: over TLS, and by asking Sentinel who is the primary."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

import tenure
from tenure.errors import OpenError, SettingsError
from tests.backends.redis.servers import Server, free_ports, program, running, wait_until
from tests.server.certificates import Certificates, certificates

pytestmark = pytest.mark.xdist_group("redis")


# ── TLS ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _with_tls() -> str | None:
    """A server's program that was built with TLS: the wheel's is not, Debian's is."""
    for name in (program(), "valkey-server", "redis-server"):
        path = shutil.which(name)
        if path is not None:
            ended = subprocess.run([path, "--port", "0", "--tls-port", "1", "--tls-cert-file", "/none"],
                                   capture_output=True, text=True, timeout=20, check=False)  # fmt: skip
            if "TLS support" not in ended.stdout and "Missing implement" not in ended.stdout:
                return path
    return None


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module", params=["no", "yes"], ids=["anyone", "clients with a certificate"])
def secure(files: Certificates, request: pytest.FixtureRequest) -> Iterator[tuple[Server, int, bool]]:
    path = _with_tls()
    if path is None:
        pytest.skip("no server here was built with TLS (Debian's redis-server is: apt-get install redis-server)")
    port = free_ports(1)[0]
    made = Server(
        "--tls-port", str(port), "--tls-cert-file", files.cert, "--tls-key-file", files.key, "--tls-ca-cert-file",
        files.ca, "--tls-auth-clients", request.param, binary=path,
    )  # fmt: skip
    with running(made):
        made.client().config_set("requirepass", "pw")
        yield made, port, request.param == "yes"


def test_over_tls(secure: tuple[Server, int, bool], files: Certificates) -> None:
    _, port, known = secure
    ours = f"&cert_file={files.cert}&key_file={files.key}" if known else ""
    with tenure.open(f"rediss://:pw@localhost:{port}?prefix=a{ours}", ca_file=files.ca, sweep=False) as store:
        queue = store.queue("work")
        queue.enqueue(bytes(300_000))
        claim = queue.claim(wait=5)
        assert claim[0].payload == bytes(300_000)
        queue.ack(claim[0])
        assert not queue.claim(wait=0.1)  # its listener speaks TLS too
        assert store.check().clean


def test_whom_it_does_not_know(secure: tuple[Server, int, bool], files: Certificates, tmp_path: Path) -> None:
    _, port, known = secure
    with pytest.raises(OpenError, match="certificate"):
        tenure.open(f"rediss://:pw@localhost:{port}", sweep=False, patience=0.01)
    other = certificates(tmp_path)
    with pytest.raises(OpenError, match="certificate"):
        tenure.open(f"rediss://:pw@localhost:{port}", ca_file=other.ca, sweep=False, patience=0.01)
    with pytest.raises(OpenError):
        tenure.open(f"redis://:pw@localhost:{port}", sweep=False, patience=0.01, timeout=2)
    with pytest.raises(SettingsError, match=r"ca_file = '/none'"):
        tenure.open(f"rediss://:pw@localhost:{port}?ca_file=/none", sweep=False)
    if known:
        with pytest.raises(OpenError):
            tenure.open(f"rediss://:pw@localhost:{port}", ca_file=files.ca, sweep=False, patience=0.01)


# ── Sentinel ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class Watched:
    """A primary, its replica, and a sentinel that watches them; all of the same program."""

    def __init__(self) -> None:
        first, second, self.port = free_ports(3)
        self.primary = Server(port=first)
        self.replica = Server("--replicaof", "127.0.0.1", str(first), "--repl-diskless-sync-delay", "0", port=second)
        wait_until(self.follows, "the replica does not follow")
        self.folder = Path(tempfile.mkdtemp(prefix="lh-sentinel-", dir="/tmp"))
        config = self.folder / "sentinel.conf"
        config.write_text(
            f"port {self.port}\nbind 127.0.0.1\ndir {self.folder}\nsentinel monitor main 127.0.0.1 {first} 1\n"
            "sentinel down-after-milliseconds main 2000\nsentinel failover-timeout main 4000\n"
        )
        with (self.folder / "log").open("wb") as log:
            self._process = subprocess.Popen([program(), str(config), "--sentinel"], stdout=log, stderr=log)
        wait_until(self.knows_both, f"the sentinel does not know both: {self.folder / 'log'}")

    @property
    def url(self) -> str:
        return f"redis+sentinel://127.0.0.1:{self.port}/main"

    def follows(self) -> bool:
        return bool(self.replica.client().info("replication")["master_link_status"] == "up")

    def knows_both(self) -> bool:
        try:
            with redis.Redis(port=self.port) as sentinel:
                return len(sentinel.sentinel_slaves("main")) == 1
        except redis.RedisError:
            return False

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        self.primary.stop()
        self.replica.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


@pytest.fixture
def watched() -> Iterator[Watched]:
    made = Watched()
    try:
        yield made
    finally:
        made.stop()


@pytest.mark.timeout(300)  # a sentinel that found itself slow does nothing for half a minute
def test_whoever_sentinel_says_is_the_primary(watched: Watched) -> None:
    with tenure.open(f"{watched.url}?patience=100&timeout=2", sweep=False) as store:
        queue = store.queue("work")
        made = [e.id for e in queue.enqueue_many([b"%d" % n for n in range(20)])]
        claim = queue.claim(5, lease=300)
        assert watched.primary.client().wait(1, 30_000) == 1
        watched.primary.kill()
        made.append(queue.enqueue(b"after").id)  # found out, and sent again
        assert queue.ack_many(claim).lost == []
        assert [job.id for job in queue.list("ready", limit=100)] == made[5:]
        assert store.check().clean
    assert watched.replica.client().info("replication")["role"] == "master"
    with pytest.raises(OpenError, match="nosuch"):
        tenure.open(f"redis+sentinel://127.0.0.1:{watched.port}/nosuch", sweep=False)
