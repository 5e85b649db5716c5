"""Apps that other processes import: workers that are killed, and the children of process pools.

What a handler does is written to the file that TRACE names, one line an event, by single appends: they survive a kill.
"""

from __future__ import annotations

import ctypes
import os
import sqlite3
import time

from tenure import App, Backoff, Policy, chain, current_job, group

app = App(os.environ.get("TEST_STORE", "memory:"), policies={"fenced": Policy(lease=1.0, max_attempts=1000)})

_holding = ctypes.PyDLL(None)  # its calls keep the GIL, as a careless C extension does


def trace(*words: object) -> None:
    file = os.open(os.environ["TRACE"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(file, (" ".join(map(str, words)) + "\n").encode())
    finally:
        os.close(file)


@app.task
def note(word: str) -> str:
    trace("note", word, current_job().attempt)
    return word


@app.task(queue="busy")
def hold_the_gil(seconds: float) -> int:
    """No other thread of this interpreter runs meanwhile."""
    trace("gil", current_job().attempt, os.getpid())
    _holding.usleep(int(seconds * 1e6))
    return current_job().attempt


@app.task(queue="busy")
def sleep(seconds: float) -> str:
    trace("sleep", current_job().id, current_job().attempt)
    time.sleep(seconds)
    trace("slept", current_job().id, current_job().attempt)
    return "slept"


@app.task(queue="busy", timeout=0.3, max_attempts=1)
def too_long() -> None:
    time.sleep(60)


@app.task(queue="busy", max_attempts=2, backoff=Backoff.fixed(0.01))
def die_once() -> int:
    """Takes its process with it, the first time."""
    if current_job().attempt == 1:
        os._exit(9)
    return os.getpid()


@app.task(queue="busy")
def pid() -> int:
    return os.getpid()


@app.task(queue="busy")
def report() -> tuple[int, int, str, dict[str, str], bool]:
    job = current_job()
    job.progress(0.4, "resizing")
    return job.attempt, job.token, job.queue, dict(job.headers), job.deadline is None


@app.task(queue="fenced", max_attempts=1000)
def effect(number: int) -> None:
    """Writes elsewhere, fenced: a delivery older than the last one seen is refused, and a job takes effect once."""
    job = current_job()
    trace("start", number, job.attempt, job.token)
    time.sleep(0.002)
    with sqlite3.connect(os.environ["EFFECTS"], timeout=30, isolation_level=None) as db:
        db.execute("begin immediate")
        fence = db.execute("select token from fence where job = ?", (job.id,)).fetchone()
        if fence is not None and fence[0] >= job.token:
            db.execute("rollback")
            raise RuntimeError(f"stale: token {job.token} after {fence[0]}")
        db.execute("insert or replace into fence values (?, ?)", (job.id, job.token))
        db.execute("insert or ignore into effects values (?, ?)", (job.id, number))
        db.execute("commit")
    db.close()


@app.task(queue="steps", max_attempts=2, backoff=Backoff.fixed(0.01))
def step_and_die() -> str:
    """Its first attempt ends with its process, behind the step; the second waits for a signal."""
    job = current_job()
    charged = job.step("charge", _charge)
    if job.attempt == 1:
        trace("dies")
        os._exit(9)
    return f"{charged} {job.wait_for('go').decode()}"


def _charge() -> str:
    trace("charged")
    return "charged"


@app.task
def hand_over(words: list[str]) -> None:
    current_job().then(group([note.s(word) for word in words]))
    current_job().then(chain(note.s(words[-1])))
