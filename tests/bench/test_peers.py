"""Each peer that is on this machine lives a life: what was enqueued is claimed, and after its ack nothing is left."""

import contextlib
import shutil
from pathlib import Path

import pytest

from bench.peers import ALL
from bench.peers.server_process import Missing
from bench.peers.tasks import PEERS
from bench.runner import fresh_folder
from bench.tasks import OurTasks, measure

pytestmark = pytest.mark.slow


@pytest.fixture
def folder():
    """Not pytest's own, which a server's account may not enter, and whose path is too long for a socket."""
    made = fresh_folder(None)
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.mark.parametrize("name", list(ALL))
def test_a_life(folder: Path, name: str):
    try:
        peer = ALL[name](folder / name, "os")
    except Missing as exc:
        pytest.skip(str(exc))
    with contextlib.closing(peer):
        client = peer.client()
        for batch in (3, 1):
            client.enqueue([b"one", b"two", b"three"][:batch])
            claimed = client.claim(batch)
            assert len(claimed) == batch
            client.ack(claimed)
        peer.tidy()
        client.close()


@pytest.mark.parametrize("name", ["ours", *PEERS])
@pytest.mark.filterwarnings("ignore")  # theirs, of which there are some
def test_tasks_run(folder: Path, name: str):
    try:
        peer = OurTasks(folder / name) if name == "ours" else PEERS[name](folder / name)
    except Missing as exc:
        pytest.skip(str(exc))
    with contextlib.closing(peer):
        enqueued, ran = measure(peer, 10)
    assert enqueued > 0
    assert ran > 0
