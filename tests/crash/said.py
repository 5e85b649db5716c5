"""Parses the log of a working process (the lines of `worker.Log`) incrementally."""

from __future__ import annotations

import json
from typing import Any


class Said:
    """The acknowledged calls, the deliveries and the contents of DURABLE up to now."""

    def __init__(self, said: bytes = b"") -> None:
        self._rest = b""
        self._verbs: dict[str, tuple[str, Any]] = {}
        #: (event, job) of every enqueue and ack that has returned.
        self.acknowledged: set[tuple[str, str]] = set()
        #: (job, token) of every delivery that a claim has returned.
        self.given: set[tuple[str, int]] = set()
        #: The contents of DURABLE after each of the last calls.
        self.marks: list[bytes] = []
        self.feed(said)

    def feed(self, said: bytes) -> None:
        """Parse more of the log. An incomplete line is kept until the rest comes."""
        *lines, self._rest = (self._rest + said).split(b"\n")
        for line in lines:
            self._take(json.loads(line))

    def _take(self, words: list[Any]) -> None:
        if words[0] == "B":
            self._verbs[words[1]] = (words[2], words[3])
        elif words[0] == "E":
            self._answered(*self._verbs[words[1]], words[2])
        elif words[0] == "mark":
            self.marks = [*self.marks[-12:], bytes.fromhex(words[1])]
        elif words[0] == "died":
            raise AssertionError(words)

    def _answered(self, verb: str, arguments: Any, outcome: Any) -> None:
        if verb in ("enqueue", "enqueue_many"):
            self.acknowledged |= {("enqueued", job_id) for job_id, duplicate in outcome if not duplicate}
        elif verb == "ack" and outcome is None:
            self.acknowledged.add(("done", arguments["jobs"][0][0]))
        elif verb == "ack_many" and "done" in outcome:
            self.acknowledged |= {("done", job_id) for job_id in outcome["done"]}
        elif verb == "claim" and outcome is not None:
            self.given |= {(job_id, token) for job_id, token, _ in outcome[1]}
