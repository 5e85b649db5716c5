"""A few hundred of the histories that `make simulate` runs; and tests that a planted defect is found and shrunk."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tenure.queueing import settle, steps
from tenure.storage import keyspace
from tests.simulation import shrinking
from tests.simulation.__main__ import main, tell
from tests.simulation.batch import Tally, simulate
from tests.simulation.engine import Fate, FaultyEngine
from tests.simulation.linearizability import Call, explained
from tests.simulation.record import Record
from tests.simulation.shrinking import failure_of, shrunk
from tests.simulation.world import Dice, History

HISTORIES = int(os.environ.get("HISTORIES", "80"))


@pytest.mark.parametrize("part", range(2))
def test_no_history_violates_an_invariant(part: int) -> None:
    tally = simulate(range(part * HISTORIES, (part + 1) * HISTORIES))
    assert not tally.failures, (
        f"python -m tests.simulation --seed {tally.failures[0][0]} tells of it: {tally.failures[0][1]}"
    )
    assert tally.histories == HISTORIES
    assert tally.power_cuts > 0


def test_a_seed_makes_the_same_history_again() -> None:
    first, second = History(5, talk=True), History(5, talk=True)
    first.run()
    second.run()
    assert first.log == second.log
    assert first.log
    other = History(6)
    other.run()
    assert first.journal == second.journal != other.journal


def test_a_transaction_that_does_not_read_the_damaged_row_is_durable() -> None:
    """Once it was answered before it was durable, and a power loss undid the claim before it, but not its commit."""
    engine = FaultyEngine("process")
    engine._not_durable.append([])  # a claim that did not wait for durability
    engine.fate = lambda: "damaged"
    engine.transact(lambda tx: tx.put(keyspace.META, b"key", b"value"))
    assert engine.lose_what_is_not_durable() == 0


def test_a_repeated_claim_that_is_not_answered_may_take_effect_then() -> None:
    """Once only its first attempt was recorded: a job enqueued in between seemed to be leased by nobody (seed 10013558)."""

    class Ones(Dice):
        def below(self, bound: int) -> int:
            return 1 % bound

    history = next(history for history in map(History, range(100)) if history.scope == "host")
    history._open()
    history._dice = Ones(0)
    queue = history._stores[0].queue("b")  # the one that these dice choose
    queue.enqueue(b"x")
    fates: Iterator[Fate] = iter(("unknown_lost", "unknown_done"))
    history._engine.fate = lambda: next(fates, "")
    history._claim()
    assert queue.counts().leased == 0
    between = history._moment
    history._repeat()
    assert queue.counts().leased == 1
    assert [call.end > between for _, call in history._doubtful] == [False, True]


def test_a_call_over_which_time_went_back_may_have_happened_at_either_time() -> None:
    """A nack at the end of its lease, a power cut, and its repeat before that end, since the clock lost 30 s (seed 30103616)."""
    history = History(0)
    history._open()
    now = history._now()
    history._record(b"j" * 16, "nack", 0, now + 30_000, "ok")
    [call] = history._calls[b"j" * 16]
    assert (call.from_ms, call.to_ms) == (now, now + 30_000)


def test_a_step_that_is_stored_twice_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "read_row", lambda *_: None)
    found = next(filter(None, (failure_of(History(seed)) for seed in range(100))))
    assert "step" in found or "signal" in found


def test_a_planted_defect_is_found_and_shrunk(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A planted defect: settling does not check whether the lease has ended."""
    judge = settle._judge

    def forgetful(unit, queue, items):
        now, unit.now = unit.now, 0
        try:
            return judge(unit, queue, items)
        finally:
            unit.now = now

    monkeypatch.setattr(settle, "_judge", forgetful)
    seed = next(seed for seed in range(100) if failure_of(History(seed)))
    numbers = shrunk(seed, range(200), seconds=20)
    assert len(numbers) < 60
    assert tell(seed, numbers) == 1
    assert "lease ended" in capsys.readouterr().out


def test_two_holders_of_one_job_have_no_explanation() -> None:
    def call(verb: str, at: int, answer: str = "ok", token: int = 0) -> Call:
        return Call(verb, 2 * at, 2 * at + 1, at, at, answer, f"lease {token}", token, 100)

    story = [call("enqueue", 1), call("claim", 2, token=1), call("ack", 3, token=1)]
    assert explained(story)
    assert not explained([*story, call("claim", 4, token=2)])
    assert not explained([*story[:2], call("claim", 3, token=2)])
    assert explained([*story[:2], call("ack", 3, "unknown", token=1), call("ack", 4, "ok", token=1)])


@pytest.mark.parametrize("settled", [False, True])
def test_a_lost_call_was_decided_at_some_time_between_its_beginning_and_its_end(settled: bool) -> None:
    """Time passed while the commit was slow. Once the checker let such a lease end only after the end of the call."""
    story = [
        Call("enqueue", 0, 1, 0, 0, "ok"),
        Call("claim", 2, 3, 0, 0, "ok", "lease", 1, 1_000),
        Call("extend", 4, 5, 500, 6_000, "unknown", "lease", 1, 0, 5_000),
    ]
    ends = (
        [Call("ack", 6, 7, 10_999, 10_999, "ok", "lease", 1)] if settled else [Call("replay", 6, 7, 6_001, 6_001, "ok")]
    )
    assert explained([*story, *ends])
    lost = [Call("enqueue", 0, 1, 0, 0, "ok"), Call("claim", 2, 3, 0, 5_000, "unknown", lease_ms=5_000)]
    assert explained([*lost, Call("replay", 4, 5, 5_001, 5_001, "ok")])
    assert not explained([*lost, Call("replay", 4, 5, 4_999, 4_999, "ok")])


def test_a_history_that_does_not_end_is_told_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once a verb in a loop stopped the command, and no seed was printed."""

    def loop(*_: object, **__: object) -> None:
        while True:
            pass

    monkeypatch.setattr(shrinking, "ENDLESS", 0.2)
    monkeypatch.setattr(settle, "settle", loop)
    assert (failure_of(History(0)) or "").startswith("Endless")


def test_the_command_runs_histories_in_other_processes() -> None:
    assert "$(PY) -m tests.simulation" in Path("Makefile").read_text()
    command = [sys.executable, "-m", "tests.simulation", "--histories", "4", "--processes", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("4 histories, 800 steps")


def test_a_recorded_run_goes_on_where_it_was_stopped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "runs.jsonl"
    record = Record(file)
    record.add(range(2), simulate(range(2)))
    record.add(range(50, 54), Tally(4, journals=7, failures=((51, "lost"),)))
    whole = file.read_text()
    file.write_text(whole + whole[:30])  # the process ended while it wrote a line
    again = Record(file)
    assert again.total() == record.total()
    assert again.total().failures == ((51, "lost"),)
    assert again.has(range(2))
    assert not again.has(range(4))
    again.add(range(54, 56), Tally(2))
    assert Record(file).total() == again.total()

    file.write_text(whole.splitlines()[0] + "\n")
    assert main(["--histories", "2", "--record", str(file), "--processes", "1"]) == 0
    assert capsys.readouterr().out.startswith("2 histories, 400 steps")
    assert len(file.read_text().splitlines()) == 1, "its seeds were run again"


def test_a_recorded_run_is_stopped_and_goes_on(tmp_path: Path) -> None:
    """Ctrl-C reaches all processes of a terminal: what runs is finished and recorded, and the totals are printed."""
    file = tmp_path / "runs.jsonl"
    command = [sys.executable, "-m", "tests.simulation", "--processes", "1", "--record", str(file), "--histories"]
    started = subprocess.Popen([*command, "1000000"], stdout=subprocess.PIPE, text=True, start_new_session=True)
    while not file.exists() and started.poll() is None:
        time.sleep(0.01)
    os.killpg(started.pid, signal.SIGINT)
    said, _ = started.communicate()
    assert started.returncode == 130
    assert f"the same command goes on after what {file} records" in said
    done = Record(file).total().histories
    assert said.startswith(f"{done} histories")
    again = subprocess.run([*command, str(done + 1)], stdout=subprocess.PIPE, text=True, check=True)
    assert again.stdout.startswith(f"{done + 1} histories")
