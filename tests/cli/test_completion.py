"""Shell completion: commands, options, and the queues of the store."""

from __future__ import annotations

import os
import subprocess
import sys

import tenure

TENURE = [sys.executable, "-c", "from tenure.cli.main import main; main()"]


def completed(*words: str) -> list[str]:
    """The answers for a line whose last word is not finished, as bash asks for them."""
    surroundings = {
        "_TENURE_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(["tenure", *words]),
        "COMP_CWORD": str(len(words)),
    }
    done = subprocess.run(TENURE, env=os.environ | surroundings, capture_output=True, text=True, check=True)
    return [line.partition(",")[2] for line in done.stdout.splitlines() if line]


def test_commands_and_options():
    assert completed("outbox", "r") == ["retry", "run"]
    assert completed("enqueue", "--pri") == ["--priority"]


def test_queues_of_the_store_that_the_line_names(tmp_path):
    url = f"rocksdb:{tmp_path / 'data'}"
    with tenure.open(url) as store:
        for name in ("emails", "errands", "pictures"):
            store.queue(name).enqueue(b"x")
        store.queue("elsewhere", "acme").enqueue(b"x")
        assert completed("--store", url, "counts", "e") == ["emails", "errands"]  # also while another has it open
    assert completed("claim", "--store", url, "pictures", "em") == ["emails"]
    assert completed("counts", "--store", url, "--tenant", "acme", "e") == ["elsewhere"]


def test_a_store_that_is_not_there_has_no_queues_and_is_not_made(tmp_path):
    assert completed("--store", f"rocksdb:{tmp_path / 'nothing'}", "counts", "e") == []
    assert list(tmp_path.iterdir()) == []
