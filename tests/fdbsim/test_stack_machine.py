"""Compares the simulator with the reference, by random streams of the binding tester's instructions."""

from __future__ import annotations

import pytest

from tenure.testing import fdb
from tenure.testing.fdb import tuples
from tests.fdbsim.stack_machine import StackMachine
from tests.fdbsim.streams import compare

STREAMS, INSTRUCTIONS = 100, 1_000


@pytest.mark.parametrize("part", range(4))
def test_random_instructions_agree_with_the_reference(part):
    done = sum(compare(seed, INSTRUCTIONS) for seed in range(part, STREAMS, 4))
    assert done >= STREAMS * INSTRUCTIONS // 4


def test_a_program_stored_in_the_database_runs_with_its_threads():
    """Two machines: the first waits until the keys of the second are cleared."""
    db = fdb.Database(fdb.Cluster())
    main = [("PUSH", b"side"), ("START_THREAD",), ("PUSH", b"flag"), ("WAIT_EMPTY",), ("PUSH", b"log/"), ("LOG_STACK",)]
    side = [("PUSH", b"flag/1"), ("CLEAR_DATABASE",)]
    db.set(b"flag/1", b"there")
    for prefix, program in ((b"main", main), (b"side", side)):
        for at, instruction in enumerate(program):
            db.set(tuples.pack((prefix, at)), tuples.pack(instruction))
    StackMachine(db, b"main").run()
    rows = db.run(lambda tr: tr.get_range(b"log/", b"log0").to_list())
    assert [tuples.unpack(row.value) for row in rows] == [(b"WAITED_FOR_EMPTY",)]
    assert db.get(b"flag/1") is None
