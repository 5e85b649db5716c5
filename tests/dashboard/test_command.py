"""`tenure dashboard`: a store on this machine, also while another process owns it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import tenure


def test_it_shows_a_store_that_another_process_owns(tmp_path: Path):
    url = f"rocksdb:{tmp_path / 'data'}"
    with tenure.open(url) as store:
        queue = store.queue("emails")
        job = queue.enqueue(b"x")
        line = [sys.executable, "-m", "tenure", "--store", url, "--json", "dashboard", "--bind", "localhost:0"]
        with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                address = json.loads(process.stdout.readline())["address"]

                def shown(view: str) -> dict[str, object]:
                    with urllib.request.urlopen(f"{address}/ui/{view}", timeout=30) as answer:
                        found: dict[str, object] = json.load(answer)
                        return found

                assert shown("me")["operator"] is True
                assert shown("overview")["found"] == 1
                assert shown(f"job?queue=emails&id={job.id}")["explanation"]["state"] == "ready"  # type: ignore[index]
                assert shown(f"flow?queue=emails&id={job.id}")["jobs"] == 1
                assert shown("groups?queue=emails")["groups"] == shown("schedules")["schedules"] == []
                queue.fail(queue.claim(worker="w1")[0], error="Oops")
                assert shown("dead?queue=emails")["looked_at"] == 1
            finally:
                process.send_signal(signal.SIGINT)
                process.communicate(timeout=30)
        assert process.returncode in (0, 130)


def test_it_stays_on_this_machine_and_makes_no_store(tmp_path: Path):
    for bind in ("0.0.0.0:0", "unix:./socket"):
        run = subprocess.run(
            [sys.executable, "-m", "tenure", "--store", f"rocksdb:{tmp_path}", "dashboard", "--bind", bind],
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert run.returncode == 2, run.stderr
        assert "this machine" in run.stderr
    missing = tmp_path / "nothing"
    run = subprocess.run(
        [sys.executable, "-m", "tenure", "--store", f"rocksdb:{missing}", "dashboard", "--bind", "localhost:0"],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert run.returncode == 4, run.stderr
    assert not missing.exists()
