"""Statements of the documents that were once wrong, held against what really happens."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import tenure
from tenure.server.service import Bind, Service, listening
from tenure.server_settings import Server
from tenure.settings import URL_FORMS
from tests.docs.blocks import DOCS, table

TENURE = [sys.executable, "-c", "from tenure.cli.main import main; main()"]


def counts(url: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*TENURE, "counts", "emails", "--store", url], capture_output=True, text=True, timeout=60)


def test_a_second_process_joins_the_owner_unless_it_does_not_listen(tmp_path: Path):
    url = f"rocksdb:{tmp_path / 'data'}"
    with tenure.open(url) as store:
        store.queue("emails").enqueue(b"x")
        assert counts(url).returncode == 0
    with tenure.open(url, listen=False):
        assert counts(url).returncode == 4
    (locked,) = [row for row in table(DOCS / "errors.md", "class", "code") if row[0] == "`StoreLocked`"]
    (other,) = [
        row for row in table(DOCS / "durability.md", "what happens", "what you see") if "another process" in row[0]
    ]
    for text in (locked[2], other[1], (DOCS / "command-line.md").read_text()):
        assert "server.md#the-owners-socket" in text
    assert "`listen=False`" in locked[2]
    assert "does not listen" in other[1]


def test_an_unknown_engine_is_answered_with_every_url():
    (row,) = [row for row in table(DOCS / "errors.md", "class", "code") if row[0] == "`UnknownEngine`"]
    assert [form for form in URL_FORMS.values() if f"`{form}`" not in row[3]] == []


def test_only_the_last_event_of_a_page_has_an_id():
    assert "Only the last event of each page carries an `id`" in " ".join((DOCS / "protocol.md").read_text().split())
    bind = Bind("127.0.0.1", 0)
    with tenure.open("memory:", sweep=False) as store, listening(bind) as sock:
        last = [store.queue("emails").enqueue(b"x").id.encode() for _ in range(3)][-1]  # three commits
        with (
            Service(store, bind, Server()).running(sock),
            socket.create_connection(("127.0.0.1", sock.getsockname()[1]), 30) as caller,
        ):
            caller.sendall(b"GET /v1/events HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n")
            text = b""
            while last not in text or not text.split(last)[1].count(b"\n\n"):
                text += caller.recv(65536)
    assert text.count(b"\nevent: enqueued") == 3
    assert text.count(b"\nid: ") == 1
