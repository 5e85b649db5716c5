"""Reads the logs of callers (`caller`), and says whether the answers about each job are linearizable.

    logs ──▶ CallHistory ──▶ violations(): none, or for each wrong job the story of its calls

A call without an answer (its caller was killed, or the store could not be reached) took effect at some later moment, or
not at all. The callers' calendar is the store's, to `SLACK_MS`: all run on one host.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from tenure.model.tokens import TOKEN_COUNT
from tests.simulation.linearizability import FOREVER, Call, explained

SLACK_MS = 50


class Told(msgspec.Struct):
    """A call and its answer, by the log. `answer` is "unknown" if there is none."""

    verb: str
    details: Any
    begin: int
    from_ms: int
    end: int = FOREVER
    to_ms: int = FOREVER
    answer: str = "unknown"
    result: Any = None

    def call(self, verb: str, answer: object, **more: Any) -> Call:
        """As the checker wants it. An unknown call may take effect after its caller gave up."""
        unknown = answer == "unknown"
        end, to_ms = (FOREVER, FOREVER) if unknown else (self.end, self.to_ms + SLACK_MS)
        return Call(verb, self.begin, end, self.from_ms - SLACK_MS, to_ms, answer, **more)


def read(log: Path) -> list[Told]:
    """The calls of one process. A line that it did not finish is ignored."""
    found: dict[int, Told] = {}
    text = log.read_bytes()
    for line in text[: text.rfind(b"\n") + 1].splitlines():
        kind, number, moment, ms, what, details = msgspec.json.decode(line)
        if kind == "call":
            found[number] = Told(what, details, moment, ms)
        else:
            told = found[number]
            told.end, told.to_ms, told.answer, told.result = moment, ms, what, details
    return list(found.values())


class CallHistory:
    def __init__(self, calls: Iterable[Told]) -> None:
        self.calls = sorted(calls, key=lambda told: told.begin)
        #: By job: its queue, and its calls. By queue: calls that may have changed any of its jobs.
        self.queues: dict[str, str] = {}
        self._of_job: dict[str, list[Call]] = defaultdict(list)
        self._doubtful: dict[str, list[Call]] = defaultdict(list)
        #: By payload: the call that enqueued it, and the jobs that have it.
        self._enqueues: dict[str, Told] = {}
        self._made: dict[str, set[str]] = defaultdict(set)
        for told in self.calls:
            getattr(self, f"_take_{told.verb}", self._take_settle)(told)
        for payload, jobs in self._made.items():
            for job in jobs:
                if not any(call.verb == "enqueue" for call in self._of_job[job]):  # it was not answered
                    self._of_job[job].append(self._enqueues[payload].call("enqueue", "ok"))

    @property
    def unanswered(self) -> int:
        return sum(told.answer == "unknown" for told in self.calls)

    @property
    def jobs(self) -> int:
        return len(self._of_job)

    def violations(self) -> list[str]:
        """What no order of the calls explains."""
        wrong = [f"{payload!r} is {len(jobs)} jobs" for payload, jobs in self._made.items() if len(jobs) > 1]
        for job, own in self._of_job.items():
            first = min(call.begin for call in own)
            calls = own + [call for call in self._doubtful[self.queues[job]] if call.end > first]
            if not explained(calls):
                story = "\n".join(str(call) for call in sorted(calls, key=lambda call: call.begin))
                wrong.append(f"nothing explains what callers were told of job {job}:\n{story}")
        return wrong

    def _add(self, queue: str, job: str, call: Call) -> None:
        self.queues[job] = queue
        self._of_job[job].append(call)

    def _take_enqueue(self, told: Told) -> None:
        queue, payloads = told.details
        self._enqueues.update(dict.fromkeys(payloads, told))
        if told.answer == "ok":
            for job, payload in zip(told.result, payloads, strict=True):
                self._made[payload].add(job)
                self._add(queue, job, told.call("enqueue", "ok"))

    def _take_claim(self, told: Told) -> None:
        queue, lease_ms = told.details
        if told.answer != "ok":  # also of a repeat whose lease had ended
            self._doubtful[queue].append(told.call("claim", "unknown", lease_ms=int(lease_ms)))
            return
        until_ms, deliveries = told.result
        for job, lease, token, payload in deliveries:
            self._made[payload].add(job)
            self._add(queue, job, told.call("claim", "ok", lease=lease, token=token & TOKEN_COUNT, until_ms=until_ms))

    def _take_settle(self, told: Told) -> None:
        queue, (job, lease, token) = told.details
        self._add(queue, job, told.call(told.verb, told.answer, lease=lease, token=token & TOKEN_COUNT))

    def _take_ack_many(self, told: Told) -> None:
        queue, proofs = told.details
        done = told.result[0] if told.answer == "ok" else ()
        for job, lease, token in proofs:
            answer = "unknown" if told.answer != "ok" else "ok" if job in done else "lost"
            self._add(queue, job, told.call("ack", answer, lease=lease, token=token & TOKEN_COUNT))

    def _take_extend(self, told: Told) -> None:
        queue, proofs, ms = told.details
        until = told.result if told.answer == "ok" else 0
        for job, lease, token in proofs:
            more = {"token": token & TOKEN_COUNT, "until_ms": until, "lease_ms": int(ms)}
            self._add(queue, job, told.call("extend", told.answer, lease=lease, **more))

    def _take_get(self, told: Told) -> None:
        queue, job = told.details
        if told.answer == "ok":
            state, token = told.result or ("", 0)
            state = "waiting" if state in ("ready", "scheduled") else state
            self._add(queue, job, told.call("get", (state, token & TOKEN_COUNT) if state else None))

    def _take_cancel(self, told: Told) -> None:
        queue, job = told.details
        answer = told.answer if told.answer == "unknown" else "ok" if told.result else "no"
        self._add(queue, job, told.call("cancel", answer))

    def _take_replay(self, told: Told) -> None:
        (queue,) = told.details
        if told.answer != "ok":  # it may have replayed some
            self._doubtful[queue].append(told.call("replay", "unknown"))
            return
        for job in told.result:
            self._add(queue, job, told.call("replay", "ok"))
