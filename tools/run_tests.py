"""Run the tests on two processes; run those few that failed once more, alone.

    python tools/run_tests.py [pytest's options]

Some tests observe real processes, sockets and leases, and a machine that stalls for seconds can fail one of them. So up
to REPEATED failures get a second run, one after another in a separate process. A test that fails there has failed. One
that passes is named at the end, with the first run's report above: it is a defect of the test or a race in the code, to
be found, not to be ignored.

Stores are made in memory (/dev/shm) if it has ROOM: half of the time of a small test on a disk is spent making a
store's files durable. `make test-crash` runs on the disk.

Python writes bytecode, even where PYTHONDONTWRITEBYTECODE is set (many containers set it): without it each of the
thousand child processes compiles all modules of Tenure again, which doubles the time of its start.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

#: More failures than this have a common cause, and get no second run.
REPEATED = 5
MEMORY = Path("/dev/shm")
#: Bytes that must be free there. The tests need about a gigabyte.
ROOM = 8 << 30


class Failures:
    """A plugin that records which tests failed, in any process."""

    def __init__(self) -> None:
        self.tests: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        # xdist appends "@" and the group's name to the id of a test that must share its process with others.
        test = report.nodeid.rsplit("@", 1)[0] if "@" in report.nodeid.rsplit("]", 1)[-1] else report.nodeid
        if report.failed and test not in self.tests:
            self.tests.append(test)


def run(options: list[str]) -> int:
    failures = Failures()
    ended = pytest.main(["-q", "-n", "2", "--dist", "loadgroup", *options], plugins=[failures])
    if ended != pytest.ExitCode.TESTS_FAILED or not 0 < len(failures.tests) <= REPEATED:
        return int(ended)
    print(f"\n{len(failures.tests)} failed: once more, alone", flush=True)
    again = subprocess.run([sys.executable, "-m", "pytest", "-q", *failures.tests], check=False).returncode
    if again == 0:
        print("passed only when they were repeated alone (the first run's reports are above):")
        print(*(f"  {test}" for test in failures.tests), sep="\n")
    return again


def main(options: list[str]) -> int:
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    if not MEMORY.is_dir() or shutil.disk_usage(MEMORY).free < ROOM:
        return run(options)
    with tempfile.TemporaryDirectory(prefix="t-", dir=MEMORY, ignore_cleanup_errors=True) as folder:
        os.chmod(folder, 0o755)  # PostgreSQL runs as another user
        os.environ["TMPDIR"] = tempfile.tempdir = folder
        # Not in pytest's own subfolder: the path of a Unix socket must be short.
        return run([f"--basetemp={folder}/b", *options])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
