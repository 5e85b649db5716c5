"""`make coverage`: the lines and branches of `model`, `storage` and `queueing` that the tests execute, by package.

    python tools/branch_coverage.py                 run the tests, print the table; ends with 1 below 95 %
    python tools/branch_coverage.py --missing       also print what is not executed in each file
    python tools/branch_coverage.py --tests tests/model tests/queueing --data build/coverage/more
                                                    run only these, into a separate file
    python tools/branch_coverage.py --report        combine what earlier runs measured, and print the table

Only this process is measured: processes that the tests start do not count.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "tenure"
DATA = ROOT / "build" / "coverage"
PACKAGES = ("model", "storage", "queueing")
TARGET_PERCENT = 95.0
TESTS = (
    "tests/model", "tests/queueing", "tests/storage", "tests/before", "tests/bulk", "tests/moving", "tests/flows/test_repair.py",
    "tests/flows/test_random_graphs.py", "tests/damage/test_repair.py", "tests/damage/test_head.py",
    "tests/damage/test_tail.py", "tests/damage/test_failed_sync.py", "tests/damage/test_disk_full.py", "tests/machine",
    "tests/dashboard/test_explain.py", "tests/worker/test_schedules.py", "tests/worker/test_periodic.py",
    "tests/server/test_waiting.py", "tests/server/test_quotas.py",
    *(f"tests/conformance/test_{store}.py" for store in ("memory", "segments", "rocksdb", "lmdb", "foundationdb")),
)  # fmt: skip


class Part(NamedTuple):
    """The executed part of some files."""

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


def measure(tests: Sequence[str], data: Path, options: Sequence[str]) -> int:
    """Run the tests under coverage in a separate process, which writes its measurements to `data`."""
    data.parent.mkdir(parents=True, exist_ok=True)
    sources = ",".join(str(SOURCE / package) for package in PACKAGES)
    command = [sys.executable, "-m", "coverage", "run", "--branch", f"--data-file={data}", f"--source={sources}"]
    pytest = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout", "900", *options, *tests]
    return subprocess.run([*command, *pytest], cwd=ROOT, check=False).returncode


def report(missing: bool) -> bool:
    """Print the table of all measurements. Return whether every package reaches the target."""
    import coverage  # type: ignore[import-not-found]  # requirements/coverage.txt: only this and `make mutation` need it

    parts = [str(path) for path in DATA.iterdir()]
    with tempfile.TemporaryDirectory(prefix="tenure-coverage-") as folder:
        measured = coverage.Coverage(data_file=str(Path(folder) / "all"), branch=True, config_file=False)
        measured.combine(parts, keep=True)
        measured.exclude(r"^if TYPE_CHECKING:|: \.\.\.$|^    \.\.\.$|^\s+\.\.\.$")
        files = [str(path) for package in PACKAGES for path in sorted((SOURCE / package).rglob("*.py"))]
        summary = Path(folder) / "summary.json"
        measured.json_report(morfs=files, outfile=str(summary))
        found = {package: Part() for package in PACKAGES}
        for name, told in json.loads(summary.read_text())["files"].items():
            package = Path(name).resolve().relative_to(SOURCE).parts[0]
            found[package] = found[package].plus(told["summary"])
        if missing:
            measured.report(morfs=files, show_missing=True, skip_covered=True)
    print(f"\n{'package':10} {'lines':>7} {'run':>8} {'branches':>9} {'run':>9} {'':>8}")
    for package, part in found.items():
        print(part.row(package))
    return all(part.percent >= TARGET_PERCENT for part in found.values())


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python tools/branch_coverage.py", description="Measure branch coverage.")
    parser.add_argument("--tests", nargs="+", default=list(TESTS), help="which tests to run")
    parser.add_argument("--data", type=Path, default=DATA / "all", help="the file for what they measure")
    parser.add_argument("--report", action="store_true", help="run nothing: print what earlier runs measured")
    parser.add_argument("--missing", action="store_true", help="print what was not executed")
    given, options = parser.parse_known_args(arguments)
    ended = 0 if given.report else measure(given.tests, given.data, options)
    return 0 if report(given.missing) and not ended else 1


if __name__ == "__main__":
    sys.exit(main())
