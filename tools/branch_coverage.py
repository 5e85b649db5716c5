"""`make coverage`: which lines and branches of `model`, `storage` and `queueing` the tests execute, by package.

    python tools/branch_coverage.py                 run the tests, print the table; ends with 1 below 95 %
    python tools/branch_coverage.py --missing       also print what is not executed in each file
    python tools/branch_coverage.py --continue      run only the parts that have not ended yet
    python tools/branch_coverage.py --tests tests/model tests/queueing
                                                    run these parts only, again
    python tools/branch_coverage.py --report        run nothing: combine what earlier runs measured, and print the table

A part is one entry of TESTS, in a process of its own; its measurement is a file in build/coverage. A run that is stopped
loses the part that was running. The process of the tests, its forks, and the Python programs that it starts are measured.
What a killed process did does not count.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import coverage

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "tenure"
DATA = ROOT / "build" / "coverage"
PACKAGES = ("model", "storage", "queueing")
TARGET_PERCENT = 95.0


def _each(folder: str) -> list[str]:
    """The files of a folder, each of which is a part."""
    return sorted(str(path.relative_to(ROOT)) for path in (ROOT / folder).glob("test_*.py"))


TESTS = (
    "tests/model", "tests/queueing", *_each("tests/storage"), "tests/before", *_each("tests/bulk"), "tests/moving", "tests/flows/test_repair.py",
    "tests/flows/test_random_graphs.py", "tests/damage/test_repair.py", "tests/damage/test_late_repair.py", "tests/damage/test_lost_rows.py", "tests/damage/test_head.py",
    "tests/damage/test_tail.py", "tests/damage/test_failed_sync.py", "tests/damage/test_disk_full.py", "tests/damage/test_fork.py",
    "tests/damage/test_closing.py", "tests/damage/test_folder_gone.py", "tests/damage/test_ownership.py", "tests/machine",
    "tests/dashboard/test_explain.py", "tests/worker/test_schedules.py", "tests/worker/test_periodic.py",
    "tests/server/test_waiting.py", "tests/server/test_quotas.py",
    *(f"tests/conformance/test_{store}.py" for store in ("memory", "segments", "rocksdb", "lmdb", "foundationdb")),
)  # fmt: skip
#: It raises an exception in another thread, after which Python 3.11 loops for ever if that thread is traced.
_UNTRACED = "tests/storage/test_group_commit.py::test_an_interrupted_waiter_does_not_block_others"
#: Plugins that none of these tests needs, and that take seconds to import.
_PLAIN = [f"-pno:{plugin}" for plugin in ("cacheprovider", "schemathesis", "faker")]


#: Each process writes what it measured into a file of its own: also forks that end with os._exit, and started programs.
_OPTIONS = "[run]\nbranch = true\nparallel = true\npatch = _exit, subprocess\nsource =\n" + "".join(
    f"    {SOURCE / package}\n" for package in PACKAGES
)


class Part(NamedTuple):
    """How much of some files was executed."""

    lines: int = 0
    lines_run: int = 0
    branches: int = 0
    branches_run: int = 0

    def plus(self, numbers: dict[str, int]) -> Part:
        return Part(
            self.lines + numbers["num_statements"],
            self.lines_run + numbers["covered_lines"],
            self.branches + numbers["num_branches"],
            self.branches_run + numbers["covered_branches"],
        )

    @property
    def percent(self) -> float:
        return 100 * self.branches_run / max(self.branches, 1)

    def row(self, name: str) -> str:
        lines = 100 * self.lines_run / max(self.lines, 1)
        return f"{name:10} {self.lines:>7} {lines:>6.1f} % {self.branches:>9} {self.branches_run:>9} {self.percent:>6.1f} %"


def data_of(part: str) -> Path:
    """Where the measurement of a part is kept."""
    return DATA / ".".join(Path(part).with_suffix("").parts)


def measure(part: str, options: Sequence[str]) -> bool:
    """Run one part under coverage, in a process of its own. Returns whether its tests passed; the measurement is then kept."""
    data = data_of(part)
    data.parent.mkdir(parents=True, exist_ok=True)
    data.unlink(missing_ok=True)
    running = data.with_name(f"running.{data.name}")
    shutil.rmtree(running, ignore_errors=True)
    running.mkdir()
    options_file = running / "options"
    options_file.write_text(_OPTIONS)
    command = [sys.executable, "-m", "coverage", "run", f"--rcfile={options_file}", f"--data-file={running / 'data'}"]
    pytest = ["-m", "pytest", "-q", "--timeout", "900", *options, *_PLAIN, "--deselect", _UNTRACED, part]
    print(f"{part}:", flush=True)
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    ended = subprocess.run([*command, *pytest], cwd=ROOT, check=False).returncode
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    core = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(f"  {time.monotonic() - began:.0f} s, {core:.0f} s of a core, exit {ended}", flush=True)
    combine(running.glob("data.*"), data)
    shutil.rmtree(running)
    return ended == 0


def combine(measurements: Iterable[Path], into: Path) -> coverage.Coverage:
    """Add up what some processes measured, in the file `into`."""
    import coverage  # requirements/coverage.txt: only this and `make mutation` need it

    measured = coverage.Coverage(data_file=str(into), branch=True, config_file=False)
    measured.combine([str(path) for path in measurements], keep=True)
    measured.save()
    return measured


def report(missing: bool) -> bool:
    """Print the table of all that was measured. Returns whether every package has enough."""
    measurements = [path for path in DATA.iterdir() if not path.name.startswith("running.")]
    with tempfile.TemporaryDirectory(prefix="tenure-coverage-") as folder:
        measured = combine(measurements, Path(folder) / "all")
        measured.exclude(r"^if TYPE_CHECKING:|: \.\.\.$|^    \.\.\.$|^\s+\.\.\.$")
        files = [str(path) for package in PACKAGES for path in sorted((SOURCE / package).rglob("*.py"))]
        summary = Path(folder) / "summary.json"
        measured.json_report(morfs=files, outfile=str(summary))
        found = {package: Part() for package in PACKAGES}
        for name, result in json.loads(summary.read_text())["files"].items():
            package = Path(name).resolve().relative_to(SOURCE).parts[0]
            found[package] = found[package].plus(result["summary"])
        if missing:
            measured.report(morfs=files, show_missing=True, skip_covered=True)
    print(f"\n{'package':10} {'lines':>7} {'run':>8} {'branches':>9} {'run':>9} {'':>8}")
    for package, part in found.items():
        print(part.row(package))
    return all(part.percent >= TARGET_PERCENT for part in found.values())


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python tools/branch_coverage.py", description="Measure branch coverage.")
    parser.add_argument("--tests", nargs="+", default=list(TESTS), help="which tests to run")
    parser.add_argument(
        "--continue", dest="missing_only", action="store_true", help="only parts that have not ended yet"
    )
    parser.add_argument("--report", action="store_true", help="run nothing: print what earlier runs measured")
    parser.add_argument("--missing", action="store_true", help="print what was not executed")
    given, options = parser.parse_known_args(arguments)
    parts = [] if given.report else given.tests
    if given.missing_only:
        parts = [part for part in parts if not data_of(part).exists()]
    failed = [part for part in parts if not measure(part, options)]
    enough = report(given.missing)
    for part in failed:
        print(f"failed: {part}")
    return 0 if enough and not failed else 1


if __name__ == "__main__":
    sys.exit(main())
