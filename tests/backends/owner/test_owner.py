"""The owner's socket: several processes on one path, and what happens when the one that has it ends."""

import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import tenure
from tenure.backends.joined import JoinedBackend
from tenure.backends.owner.backend import OwnerBackend
from tenure.errors import OpenError, StoreClosed, StoreLocked
from tenure.testing.conformance.world import eventually

OWNER = """
import tenure, sys, time
options = {"durability": "os"} if len(sys.argv) < 3 else {"durability": sys.argv[2]}
store = tenure.open(sys.argv[1], sweep=False, **options)
store.queue("work").enqueue_many([b"%d" % n for n in range(10)])
print("ready", flush=True)
sys.stdin.readline()
store.close()
"""


class Owner:
    """Another process that has the store open."""

    def __init__(self, url: str, *more: str, code: str = OWNER) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, url, *more], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    def end(self, how: str) -> None:
        if how == "killed":
            self.process.kill()
        else:
            assert self.process.stdin is not None
            self.process.stdin.write("\n")
            self.process.stdin.flush()

    def __enter__(self) -> "Owner":
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()
        self.process.wait(20)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"rocksdb:{tmp_path / 'data'}"


def test_a_second_process_gets_in_and_has_the_whole_contract(url: str, tmp_path: Path):
    with Owner(url), tenure.open(url, sweep=False) as store:
        assert isinstance(store._backend, JoinedBackend)
        assert (store.traits.scope, store.durability, store.url) == ("host", "os", f"rocksdb:{tmp_path / 'data'}")
        queue = store.queue("work")
        claim = queue.claim(limit=4)
        assert queue.ack_many(claim).lost == []
        assert queue.counts().ready == 6
        assert store.sweep().total >= 0
        store.snapshot(tmp_path / "copy")
        assert store.check().clean
    with tenure.open(f"rocksdb:{tmp_path / 'copy'}", sweep=False) as copy:
        assert copy.queue("work").counts().ready == 6


def test_the_socket_is_the_owners_alone(url: str, tmp_path: Path):
    with tenure.open(url, sweep=False) as store:
        assert isinstance(store._backend, OwnerBackend)
        mode = (tmp_path / "data" / "SOCKET").stat().st_mode
        assert stat.S_ISSOCK(mode)
        assert stat.S_IMODE(mode) == 0o600
    assert not (tmp_path / "data" / "SOCKET").exists()


def test_a_folder_whose_name_is_too_long_for_a_socket(tmp_path: Path):
    url = f"rocksdb:{tmp_path / ('d' * 60) / ('e' * 60) / ('f' * 60)}"
    with Owner(url), tenure.open(url, sweep=False) as store:
        assert store.queue("work").counts().ready == 10


@pytest.mark.parametrize("how", ["killed", "closed"])
def test_whoever_is_left_takes_over(url: str, how: str):
    with Owner(url) as owner, tenure.open(url, sweep=True) as store:
        queue = store.queue("work")
        claim = queue.claim(limit=4, lease=60)
        owner.end(how)
        owner.process.wait(20)
        assert queue.ack_many(claim).lost == []
        assert isinstance(store._backend, JoinedBackend)
        assert store._backend.owns
        assert store._sweeper is not None, "who owns the store sweeps it"
        assert queue.counts().ready == 6
        assert store.check().clean


def test_a_waiting_claim_goes_on_with_the_next_owner(url: str):
    with Owner(url) as owner, tenure.open(url, sweep=False) as store:
        queue = store.queue("other")
        claims: list[tenure.Claim] = []
        waiter = threading.Thread(target=lambda: claims.append(queue.claim(wait=90)))
        waiter.start()
        time.sleep(0.2)
        owner.end("killed")
        backend = store._backend
        assert isinstance(backend, JoinedBackend)
        assert eventually(lambda: backend.owns), "a claim that waits notices, and takes over"
        job_id = queue.enqueue(b"x").id
        waiter.join(60)
        assert [d.id for claim in claims for d in claim] == [job_id]


WORKER = """
import json, tenure, pathlib, sys
store = tenure.open(sys.argv[1], durability="os")
queue = store.queue("work")
print("ready", flush=True)
done, added = [], []
while not pathlib.Path(sys.argv[2]).exists():
    claim = queue.claim(limit=5, lease=30, wait=0.5)
    done += queue.ack_many(claim).done
    added += [e.id for e in queue.enqueue_many([b"again"] * len(claim))]
print(json.dumps([done, added]), flush=True)
sys.stdin.readline()
store.close()
"""


def test_the_owner_killed_again_and_again_and_each_job_done_once(url: str, tmp_path: Path):
    """Acks and enqueues of the survivors all hold, and none was done twice. OWNER_KILLS makes it longer."""
    kills, stop = int(os.environ.get("OWNER_KILLS", "3")), tmp_path / "stop"
    with tenure.open(url, sweep=False, durability="os") as store:
        first = [e.id for e in store.queue("work").enqueue_many([b"first" for _ in range(100)])]
    workers = [Owner(url, str(stop), code=WORKER) for _ in range(kills + 2)]
    try:
        for _ in range(kills):
            pid = _owner_of(url)
            victim = next(w for w in workers if w.process.pid == pid)
            time.sleep(0.2)
            victim.process.kill()
            workers.remove(victim)
            victim.__exit__()
            assert eventually(lambda gone=pid: _owner_of(url) not in (None, gone))  # type: ignore[misc]
        with tenure.open(url, sweep=False) as store:  # those that are left go on
            before = store.queue("work").counts().removed
            assert eventually(lambda: store.queue("work").counts().removed > before + 100)
        stop.touch()
        done: list[str] = []
        added: list[str] = []
        for worker in workers:
            assert worker.process.stdout is not None
            told = json.loads(worker.process.stdout.readline())
            done += told[0]
            added += told[1]
    finally:
        for worker in workers:
            worker.__exit__()
    assert len(done) == len(set(done)), "a job was settled twice"
    assert len(done) > 50
    with tenure.open(url, sweep=False) as store:
        assert store.check().clean
        queue = store.queue("work")
        left = {job.id for state in ("ready", "leased") for job in queue.list(state, limit=10_000)}
        assert left.isdisjoint(done), "an ack was lost"
        assert {*first, *added} - {*done} - left <= _done_by_the_killed(store, done), "an enqueue was lost"


def _done_by_the_killed(store: tenure.Store, told: list[str]) -> set[str]:
    """Jobs whose end the journal knows, and no survivor told of."""
    ended: set[str] = set()
    page = store.events(limit=10_000)
    while page.events:
        ended |= {event.job_id for event in page.events if event.type == "done" and event.job_id is not None}
        page = store.events(after=page.cursor, limit=10_000)
    return ended - set(told)


def _owner_of(url: str) -> int | None:
    try:
        owner = json.loads((Path(url.removeprefix("rocksdb:")) / "OWNER").read_text())
        pid: int = owner["pid"]
        os.kill(pid, 0)
        return pid
    except (OSError, ValueError, KeyError):
        return None


def test_an_owner_that_does_not_listen(url: str):
    with (
        Owner(url, code=OWNER.replace("sweep=False", "sweep=False, listen=False")) as owner,
        pytest.raises(StoreLocked, match=str(owner.process.pid)),
    ):
        tenure.open(url, sweep=False)


def test_who_does_not_listen_does_not_join(url: str):
    with Owner(url) as owner, pytest.raises(StoreLocked, match=str(owner.process.pid)):
        tenure.open(url, sweep=False, listen=False)


def test_more_durability_than_the_owner_keeps_is_refused(url: str):
    with Owner(url), pytest.raises(OpenError, match="'os', and 'disk'"):
        tenure.open(url, sweep=False, durability="disk")


def test_a_fork_of_who_joined_is_refused_and_the_parent_goes_on(url: str):
    with Owner(url), tenure.open(url, sweep=False) as store:
        queue = store.queue("work")
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            try:
                queue.enqueue(b"from a fork")
                told = "enqueued"
            except StoreClosed:
                told = "StoreClosed"
            except BaseException as error:
                told = repr(error)
            os.write(writing, told.encode())
            os._exit(0)
        os.waitpid(child, 0)
        os.close(writing)
        assert os.read(reading, 1000) == b"StoreClosed"
        os.close(reading)
        queue.enqueue(b"from the parent")


def test_a_fork_of_the_owner_does_not_keep_its_socket_open(url: str, tmp_path: Path):
    """A copy of the listening socket in a child would take connections after the owner's end, and answer none."""
    code = OWNER.replace(
        'print("ready"', 'import os\nif not os.fork():\n    time.sleep(30)\n    os._exit(0)\nprint("ready"'
    )
    with Owner(url, code=code) as owner:
        owner.process.send_signal(signal.SIGKILL)
        owner.process.wait(20)
        started = time.monotonic()
        with tenure.open(url, sweep=False) as store:
            assert store.queue("work").counts().ready == 10
        assert time.monotonic() - started < 20


def test_closing_ends_a_joined_store(url: str):
    with Owner(url):
        store = tenure.open(url, sweep=False)
        store.close()
        store.close()
        with pytest.raises(StoreClosed):
            store.queue("work").counts()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_is_not_let_in_whatever_the_modes(url: str, tmp_path: Path):
    """The mode of a socket is no protection on every file system: who is at the other end is."""
    code = (
        "import os, socket, sys\n"
        "os.setgid(12345), os.setuid(12345)\n"
        "sock = socket.socket(socket.AF_UNIX)\n"
        "sock.settimeout(20)\n"
        "sock.connect(sys.argv[1])\n"
        "try:\n"
        "    sock.sendall(b'GET /v1/queues HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n')\n"
        "    print(sock.recv(1000))\n"
        "except ConnectionError:\n"
        "    print(b'')\n"
    )
    with tenure.open(url, sweep=False) as store:
        store.queue("secret").enqueue(b"x")
        place = Path(url.partition(":")[2])
        place.chmod(0o777)
        (place / "SOCKET").chmod(0o777)
        for folder in (tmp_path, *list(tmp_path.parents)[:-1]):
            folder.chmod(folder.stat().st_mode | 0o711)
        python = getattr(sys, "_base_executable", sys.executable)
        done = subprocess.run(
            [python, "-c", code, str(place / "SOCKET")], capture_output=True, text=True, timeout=60, cwd="/"
        )
        if "Permission denied" in done.stderr:
            pytest.skip(f"another user cannot get as far as the socket here: {done.stderr[-300:]}")
        assert done.stdout == "b''\n", done.stdout + done.stderr
        assert [info.queue for info in store.queues()] == ["secret"]


def test_a_signal_handler_may_run_a_verb_inside_another_one_of_a_joined_store(tmp_path: Path) -> None:
    """In a process of its own: it used to wait for itself for ever."""
    script = (
        "import random, signal, sys, tenure\n"
        "store = tenure.open(sys.argv[1], sweep=False)\n"
        "queue, ran = store.queue('q'), []\n"
        "signal.signal(signal.SIGALRM, lambda *_: ran.append(queue.enqueue(b'from the handler')))\n"
        "done = 0\n"
        "while done < 400 or not ran:\n"
        "    signal.setitimer(signal.ITIMER_REAL, random.uniform(0.00001, 0.002))\n"
        "    queue.enqueue(b'x')\n"
        "    done += 1\n"
        "signal.setitimer(signal.ITIMER_REAL, 0)\n"
        "assert queue.counts().waiting == done + len(ran), (queue.counts(), done, len(ran))\n"
    )
    url = f"rocksdb:{tmp_path}/data"
    with tenure.open(url, durability="os", sweep=False) as owner:
        run = subprocess.run([sys.executable, "-c", script, url], capture_output=True, text=True, timeout=100)
        assert run.returncode == 0, run.stderr[-4000:]
        assert owner.check().clean
