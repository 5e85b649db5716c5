"""Two processes that claim and repair at the same moment: no duplicate, and nothing stale is written over.

2,000 times in a plain run, 10,000 in `make test-crash`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter

import pytest

import tenure
from tenure.model.retry import Policy
from tenure.testing.conformance.world import assert_sound
from tests.backends.redis.servers import Server, running

pytestmark = pytest.mark.xdist_group("redis")
CLAIMS = 10_000 if "CRASH_ROUNDS" in os.environ else 2_000


@pytest.mark.crash
def test_two_processes_claim_and_repair_at_the_same_moment() -> None:
    with running(Server()) as server, tenure.open(server.url, sweep=False) as store:
        queue = store.queue("work")
        queue.configure(Policy(max_attempts=1_000_000))
        made = [e.id for e in queue.enqueue_many([b"x"] * 300)]
        command = [sys.executable, "-m", "tests.backends.redis.rival", server.url, str(CLAIMS // 2)]
        rivals = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
        answers = []
        for rival in rivals:
            assert rival.stdout is not None
            assert rival.stdout.readline() == "ready\n"
        for rival in rivals:
            assert rival.stdin is not None
            rival.stdin.write("go\n")
            rival.stdin.flush()
        for rival in rivals:
            out, _ = rival.communicate(timeout=100)
            answers.append(json.loads(out))
        given = Counter((job, token) for answer in answers for job, token, _ in answer["deliveries"])
        assert len(given) > CLAIMS
        assert max(given.values()) == 1, "one delivery was given to two"
        settled = [job for answer in answers for job in answer["settled"]]
        assert len(settled) == len(set(settled)), "one job was settled twice"
        tokens: dict[str, set[int]] = {}
        for job_id, token in given:
            tokens.setdefault(job_id, set()).add(token)
        for job_id in set(made) - set(settled):
            job = queue.get(job_id)
            assert job is not None
            # Every delivery was counted, by whichever of them: none was written over by a stale one.
            count = len(tokens.get(job_id, ()))
            assert (job.token, job.attempt) == (count, count)
            assert tokens.get(job_id, set()) == set(range(1, count + 1))
        assert not {job for job in settled if queue.get(job) is not None}
        assert queue.counts().removed == len(settled)
        assert_sound(store)
        report = store.check()
        assert report.events > 2 * CLAIMS, "leases were taken over again and again"
        print(
            f"{CLAIMS} claims by two processes: {len(given)} deliveries, none given twice; {len(settled)} settled once"
        )
