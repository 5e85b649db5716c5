"""Decoders are made when their module is imported: threads that first decode a struct at once would crash msgspec."""

from __future__ import annotations

import subprocess
import sys

STORY = """
import sys, threading
from tenure.model.retry import Policy
from tenure.storage import records
sys.setswitchinterval(1e-6)
row = records.encode_struct(records.QueueRecord(1, "default", "emails", Policy(), False))
start = threading.Barrier(4)
def look():
    start.wait()
    records.decode_struct(records.QueueRecord, row, "a queue's row")
threads = [threading.Thread(target=look) for _ in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
"""


def test_threads_decode_at_once():
    for _ in range(3):  # without the fix a crash is likely, not certain
        assert subprocess.run([sys.executable, "-c", STORY], timeout=60).returncode == 0
