"""`make mutation`: change one small thing in the code, run the tests that execute it, and count how often one fails.

    python tools/mutation.py --sample 300            a mutation score of `model` and `queueing`
    python tools/mutation.py --sample 300 --part 2/4 every fourth of those mutants, from the second on
    python tools/mutation.py --only queueing/claim.py:120

A mutant is the source of one module with one change: a comparison, a boolean, a number, an operator, a condition or a
statement inside a function. The seed chooses which. Each mutant is tested in its own process, by the tests that execute
the changed line, fastest first, until one fails (the mutant is killed) or none does (it has survived). A survivor is a
missing assertion, or it behaves as the original does.

coverage.py measures once which tests execute which lines; build/mutation-map.json stores it.
"""

from __future__ import annotations

import argparse
import ast
import copy
import gc
import inspect
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, NamedTuple, NoReturn

import _pytest.runner
import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "tenure"
MAP = ROOT / "build" / "mutation-map.json"
PACKAGES = ("model", "queueing")
#: Fast tests of these packages, which need no disk, server or Java.
TESTS = (
    "tests/model", "tests/queueing", "--ignore=tests/queueing/test_rerun.py", "tests/conformance/test_memory.py",
    "tests/conformance/test_segments.py", "tests/simulation/test_simulation.py::test_no_history_violates_an_invariant",
    "tests/flows/test_repair.py", "tests/bulk/test_loading.py", "tests/bulk/test_staged_rows.py", "tests/moving",
    "tests/dashboard/test_explain.py", "tests/worker/test_schedules.py", "tests/worker/test_periodic.py",
    "tests/server/test_waiting.py", "tests/server/test_quotas.py", "tests/damage/test_repair.py",
    "tests/damage/test_late_repair.py", "tests/damage/test_lost_rows.py",
)  # fmt: skip
#: The most seconds that the chosen tests of one mutant take without it; and the seconds after which it has hung.
BUDGET = 40.0
PATIENCE = 180.0
#: CPU seconds after which it is in a loop.
CPU_SECONDS = 40
#: Plugins that none of these tests needs, and that take seconds to import.
_PLAIN = [f"-pno:{plugin}" for plugin in ("cacheprovider", "schemathesis", "faker")]


class Mutant(NamedTuple):
    """One change: lines and columns of `file` that are replaced by `text`."""

    file: str
    line: int
    column: int
    end_line: int
    end_column: int
    kind: str
    text: str

    @property
    def package(self) -> str:
        return self.file.partition("/")[0]

    def applied(self, source: str) -> str:
        """Return the module's source with the change. Lines keep their numbers."""
        lines = source.encode().splitlines(keepends=True)
        before = lines[self.line - 1][: self.column]
        behind = lines[self.end_line - 1][self.end_column :]
        gap = b"\n" * (self.end_line - self.line)
        text = self.text.encode()
        changed = before + (text[:-1] + gap + text[-1:] if text.endswith(b")") else text + gap) + behind
        return b"".join([*lines[: self.line - 1], changed, *lines[self.end_line :]]).decode()

    def original(self, source: str) -> str:
        lines = source.encode().splitlines()[self.line - 1 : self.end_line]
        lines[-1] = lines[-1][: self.end_column]
        lines[0] = lines[0][self.column :]
        return " ".join(b" ".join(lines).decode().split())


_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Div: ast.Mult, ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr, ast.LShift: ast.RShift, ast.RShift: ast.LShift, ast.Mod: ast.Add,
}  # fmt: skip


class _Finder(ast.NodeVisitor):
    """Finds every possible change of a module. Annotations, decorators, asserts and error messages are left alone."""

    def __init__(self, file: str) -> None:
        self._file = file
        self.found: list[Mutant] = []

    def _add(self, node: ast.expr | ast.stmt, kind: str, text: str) -> None:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        self.found.append(
            Mutant(self._file, node.lineno, node.col_offset, node.end_lineno, node.end_col_offset, kind, text)
        )

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        for statement in node.body:
            self.visit(statement)

    def visit_Module(self, node: ast.Module) -> None:
        self._defined(node.body)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._defined(node.body)

    def _defined(self, body: Sequence[ast.stmt]) -> None:
        """Visit only functions of a module or a class: the rest is executed once, at import."""
        for statement in body:
            if isinstance(statement, ast.FunctionDef | ast.ClassDef):
                self.visit(statement)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_Assert(self, node: ast.Assert) -> None:
        pass

    def visit_Raise(self, node: ast.Raise) -> None:
        pass

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        pass

    def visit_If(self, node: ast.If) -> None:
        if "TYPE_CHECKING" not in ast.unparse(node.test):
            self._condition(node.test)
            self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._condition(node.test)
        self.generic_visit(node)

    def visit_While(self, node: ast.While) -> None:
        self.generic_visit(node)

    def _condition(self, test: ast.expr) -> None:
        if not isinstance(test, ast.Compare | ast.UnaryOp):
            self._add(test, "condition", f"(not ({ast.unparse(test)}))")

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            self._add(node, "boolean", f"({ast.unparse(node.operand)})")
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        other = copy.copy(node)
        other.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        self._add(node, "boolean", f"({ast.unparse(other)})")
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        for place, operator in enumerate(node.ops):
            other = copy.copy(node)
            other.ops = list(node.ops)
            other.ops[place] = _COMPARISONS[type(operator)]()
            self._add(node, "comparison", f"({ast.unparse(other)})")
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        becomes = _OPERATORS.get(type(node.op))
        text = isinstance(node.left, ast.Constant | ast.JoinedStr) and not isinstance(
            getattr(node.left, "value", ""), int | float
        )
        if becomes is not None and not text and not _names_types(node):
            other = copy.copy(node)
            other.op = becomes()
            self._add(node, "arithmetic", f"({ast.unparse(other)})")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self._add(node, "constant", str(not node.value))
        elif isinstance(node.value, int | float):
            self._add(node, "constant", f"({node.value + 1})")

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Call | ast.Await) and not ast.unparse(node.value).startswith("_log"):
            self._add(node, "statement", "pass")
        if not isinstance(node.value, ast.Constant):
            self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._add(node, "statement", "pass")
        self.generic_visit(node)

    def visit_Continue(self, node: ast.Continue) -> None:
        self._add(node, "statement", "pass")

    def visit_Break(self, node: ast.Break) -> None:
        self._add(node, "statement", "pass")


def _names_types(node: ast.BinOp) -> bool:
    """Whether it is `A | B` of types, which is no arithmetic."""
    return isinstance(node.op, ast.BitOr) and any(
        (isinstance(side, ast.Constant) and side.value is None) or (isinstance(side, ast.Name) and side.id[:1].isupper())
        for side in (node.left, node.right)
    )  # fmt: skip


def all_mutants(package: str) -> list[Mutant]:
    """Every mutant of the package's modules."""
    found: list[Mutant] = []
    for path in sorted((SOURCE / package).rglob("*.py")):
        finder = _Finder(str(path.relative_to(SOURCE)))
        finder.visit(ast.parse(path.read_text()))
        found += finder.found
    return found


def sampled(seed: int, count: int) -> list[Mutant]:
    """Return `count` random mutants, a third of them of the first package."""
    chance, shares = random.Random(seed), (count // 3, count - count // 3)
    found: list[Mutant] = []
    for package, share in zip(PACKAGES, shares, strict=True):
        mutants = all_mutants(package)
        found += chance.sample(mutants, min(share, len(mutants)))
    return found


# ── which tests execute which lines ──────────────────────────────────────────────────────────────────────────────────


class _Contexts:
    """A pytest plugin: coverage records which test executed each line, and how long each test takes."""

    def __init__(self, measured: Any) -> None:  # a coverage.Coverage, which has no types here
        self._measured = measured
        self.seconds: dict[str, float] = {}
        self.failed: list[str] = []

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._measured.switch_context(nodeid)

    def pytest_runtest_logreport(self, report: Any) -> None:  # a pytest.TestReport
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0.0) + report.duration
        if report.failed:
            self.failed.append(report.nodeid)


def measure() -> dict[str, Any]:
    """Run all tests once, and write MAP: the tests' durations, and the tests that execute each line."""
    import coverage  # requirements/coverage.txt: only `make coverage` and this need it

    MAP.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="tenure-mutation-") as folder:
        measured = coverage.Coverage(
            data_file=str(Path(folder) / "data"), source=[str(SOURCE / p) for p in PACKAGES], config_file=False
        )
        measured.start()
        plugin = _Contexts(measured)
        pytest.main(["-q", "-p", "no:cacheprovider", "--timeout", "600", *TESTS], plugins=[plugin])
        measured.stop()
        data = measured.get_data()
        tests = sorted(plugin.seconds)
        numbers = {test: number for number, test in enumerate(tests)}
        files: dict[str, dict[str, list[int]]] = {}
        for name in data.measured_files():
            lines = data.contexts_by_lineno(name)
            files[str(Path(name).relative_to(SOURCE))] = {
                str(line): sorted(numbers[context] for context in contexts if context in numbers)
                for line, contexts in lines.items()
            }
    measured_map = {
        "tests": tests,
        "seconds": [round(plugin.seconds[test], 3) for test in tests],
        "failed": plugin.failed,
        "files": files,
    }
    MAP.write_text(json.dumps(measured_map))
    print(
        f"{len(tests)} tests, {sum(plugin.seconds.values()):.0f} s; failed without a mutant: {plugin.failed}",
        flush=True,
    )
    return measured_map


def tests_of(mutant: Mutant, known: dict[str, Any]) -> list[str]:
    """Return the tests that execute the changed lines, within BUDGET: those named after the module, then fast ones."""
    lines: dict[str, list[int]] = known["files"].get(mutant.file, {})
    numbers = set().union(*(lines.get(str(line), ()) for line in range(mutant.line, mutant.end_line + 1)))
    chosen: list[str] = []
    left = BUDGET
    named = f"test_{Path(mutant.file).stem}"
    order = [(named not in known["tests"][number], float(known["seconds"][number]), number) for number in numbers]
    for other, seconds, number in sorted(order):
        left -= seconds * other
        if known["tests"][number] not in known["failed"] and (left > 0 or not other or not chosen):
            chosen.append(known["tests"][number])
    return chosen


# ── one mutant ───────────────────────────────────────────────────────────────────────────────────────────────────────


class _Runner:
    """A pytest plugin: when all tests are collected, each mutant is tested in a fork of this process.

    The fork gets the changed code of the mutant's function only: nothing is imported or collected again.
    """

    def __init__(self, mutants: Sequence[Mutant], known: dict[str, Any]) -> None:
        self._mutants = mutants
        self._known = known
        self.outcomes: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))

    def pytest_runtestloop(self, session: Any) -> bool:  # a pytest.Session
        items = {item.nodeid: item for item in session.items}
        functions: dict[tuple[str, int, str], list[FunctionType]] = defaultdict(list)
        for found in gc.get_objects():
            if isinstance(found, FunctionType):
                code = found.__code__
                functions[code.co_filename, code.co_firstlineno, code.co_name].append(found)
        gc.freeze()
        for mutant in self._mutants:
            began = time.monotonic()
            tests = [items[test] for test in tests_of(mutant, self._known) if test in items]
            how = self._outcome(mutant, tests, functions)
            self.outcomes[mutant.package][how] += 1
            original = mutant.original((SOURCE / mutant.file).read_text())
            print(
                f"{how:12} {time.monotonic() - began:5.1f} s {len(tests):>5} tests  {mutant.file}:{mutant.line}  {mutant.kind}: "
                f"{original[:110]}  →  {mutant.text[:110]}",
                flush=True,
            )
        return True

    def _outcome(self, mutant: Mutant, tests: Sequence[Any], functions: dict[tuple[str, int, str], Any]) -> str:
        path = SOURCE / mutant.file
        changed = _outermost(compile(mutant.applied(path.read_text()), str(path), "exec"), mutant.line)
        if changed is None or not (there := functions.get((str(path), changed.co_firstlineno, changed.co_name))):
            return "not found"
        if not tests:
            return "not executed"
        child = os.fork()
        if not child:
            os.setsid()
            resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
            for function in there:
                function.__code__ = changed
            _run_tests(tests)
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                loops = os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL)
                return "survived" if status == 0 else "hung" if loops else "killed"
            time.sleep(0.01)
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return "hung"


def _run_tests(tests: Sequence[Any]) -> NoReturn:
    """Run the tests until one fails, in the fork. Ends the process: 0 if none has."""
    code = 1
    try:
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        for item in tests:
            reports = _pytest.runner.runtestprotocol(item, log=False, nextitem=None)
            if any(report.failed for report in reports):
                os._exit(1)
        code = 0
    finally:
        os._exit(code)


def _outermost(code: CodeType, line: int) -> CodeType | None:
    """Return the code of the outermost function that contains the line."""
    for const in code.co_consts:
        if isinstance(const, CodeType) and line in _lines(const):
            return const if const.co_flags & inspect.CO_OPTIMIZED else _outermost(const, line)
    return None


def _lines(code: CodeType) -> set[int]:
    lines = {line for _, _, line in code.co_lines() if line is not None}
    return lines.union(*(_lines(const) for const in code.co_consts if isinstance(const, CodeType)))


def report(outcomes: dict[str, dict[str, int]]) -> None:
    print(
        f"\n{'package':10} {'mutants':>8} {'killed':>7} {'hung':>5} {'survived':>9} {'not executed':>13} {'score':>7}"
    )
    for package, counts in outcomes.items():
        mutants = sum(counts.values())
        found = counts["killed"] + counts["hung"]
        print(
            f"{package:10} {mutants:>8} {counts['killed']:>7} {counts['hung']:>5} {counts['survived']:>9} "
            f"{counts['not executed']:>13} {100 * found / max(mutants, 1):>6.1f}%"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python tools/mutation.py", description="Measure a mutation score.")
    parser.add_argument("--sample", type=int, default=300, help="how many mutants")
    parser.add_argument("--seed", type=int, default=1, help="which")
    parser.add_argument("--part", default="1/1", help="n/m: every m-th of them, from the n-th on")
    parser.add_argument("--skip", type=int, default=0, help="leave out so many of the first: they were tested before")
    parser.add_argument("--only", help="FILE:LINE, every mutant of one line")
    parser.add_argument(
        "--measure", action="store_true", help="measure again which tests execute which lines, and stop"
    )
    given = parser.parse_args(arguments)
    if given.measure:
        return bool(measure()["failed"])
    if not MAP.exists():
        subprocess.run([sys.executable, __file__, "--measure"], check=True)
    known = json.loads(MAP.read_text())
    if given.only:
        file, _, line = given.only.rpartition(":")
        mutants = [m for m in all_mutants(file.partition("/")[0]) if (m.file, m.line) == (file, int(line))]
    else:
        part, parts = map(int, given.part.split("/"))
        mutants = sampled(given.seed, given.sample)[part - 1 :: parts][given.skip :]
    runner = _Runner(mutants, known)
    used = sorted({test.partition("::")[0] for mutant in mutants for test in tests_of(mutant, known)})
    pytest.main(["-q", "--timeout", "60", *_PLAIN, *used], plugins=[runner])
    report(runner.outcomes)
    return 0


if __name__ == "__main__":
    sys.exit(main())
